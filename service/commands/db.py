"""`python -m service db migrate|status|backup|restore|prune|delete-project`."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.commands.memory import add_json_flag, now_ms, open_database_of, prepared_database
from service.settings import Settings

if TYPE_CHECKING:
    from service.db.backup import Copy

DAY_MS = 24 * 3600 * 1000
ReadSettings = Callable[[argparse.Namespace], Settings]


def add_parser(commands: Any, read_settings: ReadSettings) -> None:
    """Adds the command `db`."""
    parser = commands.add_parser("db", help="migrate, look at and clean the database", description="The database.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace, Settings], None], text: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
        add_json_flag(action)
        action.set_defaults(run=lambda arguments: run(arguments, read_settings(arguments)))
        return action

    add("migrate", _migrate, "bring the schema to this release, under a lock")
    add("status", _status, "show the schema, the rows and what is spooled")
    add("backup", _backup, "copy the embedded database to a file, also while it is in use").add_argument(
        "file", type=Path, metavar="FILE", help="a new file"
    )
    add("restore", _restore, "put a backup in the embedded database's place").add_argument(
        "file", type=Path, metavar="FILE", help="what 'db backup' wrote"
    )
    add("prune", _prune, "delete what is older").add_argument(
        "--keep-days", type=_days, required=True, metavar="DAYS", help="age in days from which rows are deleted"
    )
    add("delete-project", _delete_project, "delete everything about one project").add_argument(
        "project", metavar="PROJECT", help="as the header X-Project-ID named it"
    )


def _days(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of days")
    return int(text)


def _migrate(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.schema import HEAD, current_revision

    database = prepared_database(settings)
    found = current_revision(database)
    _say(arguments, {"database": str(database), "schema": found, "release": HEAD})


def _status(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.retention import row_counts
    from service.db.schema import HEAD, current_revision

    database = prepared_database(settings)
    facts = {"database": str(database), "schema": current_revision(database), "release": HEAD}
    _say(arguments, {**facts, **row_counts(database), "spooled_bytes": _spooled_bytes(settings)})


def _backup(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.backup import back_up

    # Neither migrated nor prepared: an upgrade begins with this.
    database = open_database_of(settings)
    copied = back_up(database, arguments.file)
    _say(arguments, {"database": str(database), **_shown(copied), "spooled_bytes": _spooled_bytes(settings)})


def _restore(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.backup import restore

    copied = restore(open_database_of(settings), arguments.file)
    replaced = str(copied.replaced) if copied.replaced else None
    _say(arguments, {"restored": str(arguments.file), **_shown(copied), "replaced": replaced})


def _shown(copied: "Copy") -> dict[str, Any]:
    return {"file": str(copied.path), "bytes": copied.bytes, "schema": copied.schema}


def _prune(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.retention import prune

    _say(arguments, prune(prepared_database(settings), before_ms=now_ms() - arguments.keep_days * DAY_MS))


def _delete_project(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.retention import delete_project

    deleted = delete_project(prepared_database(settings), arguments.project)
    # What is spooled comes later; whoever must be sure runs the command again then.
    _say(arguments, {**deleted, "spooled_bytes": _spooled_bytes(settings)})


def _spooled_bytes(settings: Settings) -> int:
    from service.db.spool import SUFFIX

    folder = settings.spool_dir or settings.data_dir / "spool"
    return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}")) if folder.is_dir() else 0


def _say(arguments: argparse.Namespace, facts: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(facts))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()))
