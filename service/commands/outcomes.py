"""`python -m service outcomes post|collect|report`: a small client of a running service."""

import argparse
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from service.commands.collector import Window, collect
from service.domain.errors import ArtefactError
from service.hook_client import NoRedirect

TIMEOUT_S = 30.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_parser(commands: Any) -> None:
    """Adds the command `outcomes`."""
    parser = commands.add_parser("outcomes", help="report outcomes to a service", description="Outcomes of a service.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")

    post = actions.add_parser(
        "post", help="send a report, or the file that verify wrote", description="Sends a file to POST /v1/outcomes."
    )
    post.add_argument("file", type=Path, metavar="FILE", help="JSON")
    post.set_defaults(run=_post)

    report = actions.add_parser(
        "report", help="print expected against observed", description="Prints GET /v1/outcomes/report."
    )
    report.add_argument("--days", type=int, default=90, help="how far back (default: 90)")
    report.set_defaults(run=_report)

    collection = actions.add_parser(
        "collect",
        help="read vLLM's metrics from Prometheus and report them",
        description="Reads a window of vLLM's metrics from Prometheus' HTTP API and sends it to POST /v1/outcomes.",
    )
    _add_collect(collection)
    for action in (post, report, collection):
        action.add_argument("--url", default="http://127.0.0.1:8000", help="of the service (default: %(default)s)")
        action.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help="holds the bearer token (default: MEMORYPOLICY_TOKEN, if set)",
        )


def _add_collect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prometheus", required=True, metavar="URL", help="such as http://prometheus:9090")
    parser.add_argument("--selector", required=True, help='label matchers of the server, such as model_name="qwen"')
    parser.add_argument("--window", type=_seconds, default="15m", help="length, such as 15m (default: 15m)")
    parser.add_argument("--end", type=int, metavar="UNIX", help="its end (default: the last whole window)")
    parser.add_argument("--recommendation-id", metavar="ID", help="what the server was recommended")
    parser.add_argument("--project", help="with --endpoint: instead of the id")
    parser.add_argument("--endpoint", help="with --project: instead of the id")
    parser.add_argument("--arm", choices=("recommended", "engine_default", "other"), required=True, help="what ran")
    parser.add_argument("--mode", choices=("apply", "shadow"), default="apply", help="default: apply")
    parser.add_argument(
        "--engine-args", type=_object, required=True, metavar="JSON", help="the engine arguments that really ran"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the report, send nothing")
    parser.set_defaults(run=_collect)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: write such as 90s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS[found[2]]


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: give a JSON object such as '{{\"max_num_seqs\": 128}}'")
    return parsed


def _post(arguments: argparse.Namespace) -> None:
    print(_call(arguments, "/v1/outcomes", arguments.file.read_bytes()))


def _report(arguments: argparse.Namespace) -> None:
    print(json.dumps(json.loads(_call(arguments, f"/v1/outcomes/report?days={arguments.days}")), indent=2))


def _collect(arguments: argparse.Namespace) -> None:
    # A whole window, so that the same command run twice within it is the same report.
    end = arguments.end if arguments.end is not None else int(time.time()) // arguments.window * arguments.window
    found = collect(
        arguments.prometheus,
        selector=arguments.selector,
        window=Window(end_unix=end, length_s=arguments.window),
    )
    for name in found.missing:
        print(f"memorypolicy: {name}: Prometheus has no value; left out", file=sys.stderr)
    if "output_throughput_tps" not in found.measured:
        raise ArtefactError(
            f"{arguments.prometheus}: no vllm:generation_tokens_total for {{{arguments.selector}}}; check --selector"
        )
    about = {name: getattr(arguments, name) for name in ("recommendation_id", "project", "endpoint")}
    body = {
        **{name: value for name, value in about.items() if value is not None},
        "arm": arguments.arm,
        "mode": arguments.mode,
        "engine_args": arguments.engine_args,
        "measured": found.measured,
        "source": "collector",
    }
    if arguments.dry_run:
        print(json.dumps(body, indent=2))
    else:
        print(_call(arguments, "/v1/outcomes", json.dumps(body).encode()))


def _call(arguments: argparse.Namespace, path: str, body: bytes | None = None) -> str:
    url = f"{arguments.url}{path}"
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json", **_token(arguments)})
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        raise ArtefactError(f"{url}: {error.code}, {_problem(error.read())}") from error
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{url}: the service cannot be reached ({error}); check --url") from error


def _token(arguments: argparse.Namespace) -> dict[str, str]:
    """The header that carries the token, if there is one. A flag would show it to everyone who lists processes."""
    file: Path | None = arguments.token_file
    token = file.read_text(encoding="utf-8").strip() if file else os.environ.get("MEMORYPOLICY_TOKEN", "")
    if any(character.isspace() or not character.isprintable() for character in token):
        raise ArtefactError(f"{file or 'MEMORYPOLICY_TOKEN'}: one line with the token and nothing else is wanted")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _problem(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
