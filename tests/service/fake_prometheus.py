"""A process that answers Prometheus' instant queries from a JSON file: {metric name in the query: value}."""

import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """GET /api/v1/query. The values are read at each query; a metric without one has an empty result."""

    values: Path
    queries: Path

    def do_GET(self) -> None:
        """One instant query."""
        address = urllib.parse.urlparse(self.path)
        parameters = urllib.parse.parse_qs(address.query)
        query, at = parameters["query"][0], parameters["time"][0]
        with self.queries.open("a") as file:
            file.write(f"{at} {query}\n")
        values: dict[str, Any] = json.loads(self.values.read_text())
        found = next((value for key, value in values.items() if key in query), None)
        result = [] if found is None else [{"metric": {}, "value": [float(at), str(found)]}]
        status = 200 if address.path == "/api/v1/query" and found != "refuse" else 400
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if found != "garbage" else b"<html>")

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


if __name__ == "__main__":
    Handler.values, Handler.queries = Path(sys.argv[1]), Path(sys.argv[2])
    server = HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
