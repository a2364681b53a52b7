"""`python -m service bundle list|verify|activate|rollback`. Heavy imports stand in the functions: --help is quick."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service.commands.memory import add_json_flag, now_ms, prepared_database
from service.settings import Settings

ReadSettings = Callable[[argparse.Namespace], Settings]


def add_parser(commands: Any, read_settings: ReadSettings) -> None:
    """Adds the command `bundle`."""
    parser = commands.add_parser("bundle", help="check, list and activate bundles", description="Works on bundles.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")

    verify = actions.add_parser(
        "verify", help="check hashes, schema, candidates and the graph", description="Checks all that serving needs."
    )
    verify.add_argument("bundle_dir", nargs="?", metavar="DIR", help="default: the configured bundle")
    verify.set_defaults(run=lambda arguments: _verify(arguments, read_settings(arguments)))

    listing = actions.add_parser(
        "list", help="stored bundles and which is active", description="Lists what was ever activated."
    )
    listing.set_defaults(run=lambda arguments: _list(arguments, read_settings(arguments)))

    activation = actions.add_parser(
        "activate",
        help="make a bundle the active one on every replica",
        description="Verifies a bundle, stores it, and makes it the active one; replicas follow within seconds.",
    )
    activation.add_argument("bundle", metavar="DIR|DIGEST", help="a bundle folder, or a stored digest's beginning")
    activation.add_argument("--note", help="why, for the record")
    activation.set_defaults(run=lambda arguments: _activate(arguments, read_settings(arguments)))

    rollback = actions.add_parser(
        "rollback", help="go back to what was active before", description="Takes the last activation back."
    )
    rollback.add_argument("--note", help="why, for the record")
    rollback.set_defaults(run=lambda arguments: _roll_back(arguments, read_settings(arguments)))
    for action in (verify, listing, activation, rollback):
        add_json_flag(action)


def _verify(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.policies import load_policy

    bundle = load_policy(settings.bundle_dir).bundle
    manifest = bundle.manifest
    facts = {
        "directory": str(bundle.directory),
        "name": manifest.name,
        "version": manifest.version,
        "sha256": bundle.sha256,
        "evidence": manifest.evidence,
        "gpu": manifest.gpu,
        "engine_version": manifest.engine_version,
        "files": sorted(manifest.files),
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        print(f"ok: {manifest.name} {manifest.version} in {bundle.directory}")
        print(f"    manifest sha256 {bundle.sha256}; {len(manifest.files)} files, {manifest.evidence} evidence")


def _list(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.policies import stored_bundles

    bundles = stored_bundles(prepared_database(settings))
    if arguments.json:
        print(json.dumps([asdict(bundle) for bundle in bundles], indent=2))
        return
    if not any(bundle.active for bundle in bundles):
        print(f"active: the bundle of each replica's settings (here {settings.bundle_dir})")
    for bundle in bundles:
        stored = datetime.fromtimestamp(bundle.created_ms / 1000, tz=UTC)
        mark = "active" if bundle.active else "      "
        print(
            f"{mark}  {bundle.sha256[:12]}  {bundle.version}  {bundle.gpu}  {bundle.evidence}  {stored:%Y-%m-%d %H:%M}"
        )


def _activate(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.policies import activate, active_digest, full_digest, read_bundle
    from service.policies import load_policy, policy_of

    database = prepared_database(settings)
    # Verified to the end, the graph's session included, before anybody can see it.
    if Path(arguments.bundle).is_dir():
        policy = load_policy(Path(arguments.bundle))
    else:
        policy = policy_of(read_bundle(database, full_digest(database, arguments.bundle)))
    before = active_digest(database)
    activate(database, policy.bundle, now_ms=now_ms(), note=arguments.note)
    _say(arguments, before=before, now=policy.bundle.sha256, version=policy.bundle.manifest.version)


def _roll_back(arguments: argparse.Namespace, settings: Settings) -> None:
    from service.db.policies import active_digest, read_bundle, roll_back
    from service.policies import policy_of

    database = prepared_database(settings)
    before = active_digest(database)
    now = roll_back(database, now_ms=now_ms(), verify=policy_of, note=arguments.note)
    version = read_bundle(database, now).manifest.version if now else "the bundle of each replica's settings"
    _say(arguments, before=before, now=now, version=version)


def _say(arguments: argparse.Namespace, *, before: str | None, now: str | None, version: str) -> None:
    if arguments.json:
        print(json.dumps({"before": before, "active": now, "version": version}))
    else:
        print(f"active: {version}" + (f", sha256 {now}" if now else ""))
