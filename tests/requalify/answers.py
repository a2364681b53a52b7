"""The service's answers, in the service's own environment: command lines in and answers out, as JSON."""

import contextlib
import io
import json
import sys
from typing import Any

from service.__main__ import main as service


def answered(arguments: list[str]) -> dict[str, Any]:
    """set: the arguments that are recommended, None where the engine's default is kept; bundle: whose answer it is."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = service(arguments)
    if status:
        raise SystemExit(status)
    answer = json.loads(printed.getvalue())
    return {
        "set": answer["set"] if answer["decision"] == "recommended" else None,
        "bundle": answer["policy"]["version"],
    }


def main() -> None:
    """One answer for each command line."""
    json.dump([answered(arguments) for arguments in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
