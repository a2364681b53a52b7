"""`python -m service token new|check`."""

import argparse
import json
from pathlib import Path
from typing import Any

from service.commands.memory import add_json_flag
from service.domain.errors import InvalidInputError


def add_parser(commands: Any) -> None:
    """Adds the command `token`."""
    parser = commands.add_parser("token", help="make and check bearer tokens", description="Bearer tokens.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")

    new = actions.add_parser(
        "new", help="make a token", description="Prints a new token, once, and its entry for MEMORYPOLICY_TOKENS_FILE."
    )
    new.add_argument("name", metavar="NAME", help="who will have it; records and logs name it")
    new.add_argument(
        "--scope", action="append", required=True, choices=("recommend", "outcomes", "admin"), dest="scopes",
        help="what it opens; repeatable, admin opens everything",
    )  # fmt: skip
    add_json_flag(new)
    new.set_defaults(run=_new)

    check = actions.add_parser("check", help="check a file of tokens", description="Lists whose tokens a file accepts.")
    check.add_argument("file", metavar="FILE", type=Path, help="as MEMORYPOLICY_TOKENS_FILE names it")
    add_json_flag(check)
    check.set_defaults(run=_check)


def _new(arguments: argparse.Namespace) -> None:
    from service.api.caller import NAME
    from service.api.token import new_secret, token_entry

    if not NAME.fullmatch(arguments.name):
        raise InvalidInputError(path="NAME", value=arguments.name, remedy="use letters, digits and ._:/@- only")
    secret = new_secret()
    entry = token_entry(arguments.name, secret, dict.fromkeys(arguments.scopes))
    if arguments.json:
        print(json.dumps({"name": arguments.name, "token": secret, "entry": entry}))
        return
    print(
        f"{secret}\n\nGive it to {arguments.name}: it is shown only now. Add to MEMORYPOLICY_TOKENS_FILE:\n\n{entry}",
        end="",
    )


def _check(arguments: argparse.Namespace) -> None:
    from service.api.token import read_tokens

    tokens = read_tokens(arguments.file).tokens
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "scopes": sorted(token.scopes),
            "secrets": len(token.sha256),
            "expires": token.expires.isoformat() if token.expires else None,
        }
        for name, token in tokens.items()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        expires = f", until {row['expires']}" if row["expires"] else ""
        print(f"{row['name']}: {', '.join(row['scopes'])}{expires}")
    print(f"{len(rows)} tokens")
