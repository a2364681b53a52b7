"""The service's answers, in the service's own environment: a JSON list of command lines in, engine arguments out."""

import contextlib
import io
import json
import sys
from typing import Any

from service.__main__ import main as service


def recommended(arguments: list[str]) -> dict[str, Any] | None:
    """The four arguments that are recommended; None where the engine's default is kept."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = service(arguments)
    if status:
        raise SystemExit(status)
    answer = json.loads(printed.getvalue())
    chosen: dict[str, Any] | None = answer["set"] if answer["decision"] == "recommended" else None
    return chosen


def main() -> None:
    """One answer for each command line."""
    json.dump([recommended(arguments) for arguments in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
