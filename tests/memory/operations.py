"""make operations: every fault at full length, the transcripts, and OPERATIONS.md with what came of both.

With --keep-faults the fault table stays as it was measured; the rest is written anew.
"""

import argparse
import os
import platform
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.progress import track

from service.settings import Settings
from tests.db.postgresql import PostgresServer
from tests.memory.experiments import (
    Finding,
    as_finding,
    killed_at_random,
    postgres_paused,
    postgres_stopped,
    spool_full,
    swapped_under_load,
    write_lock_held,
)
from tests.memory.rehearsal import filled
from tests.service.bundles import graph, random_layers, write_bundle

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_name("operations.template.md")
DOCUMENT = ROOT / "OPERATIONS.md"
SEED = 20_261_129
EXPERIMENTS = 8


def main() -> int:
    """Exit code 1 if anything acknowledged was lost; the document is written all the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory.operations")
    parser.add_argument("--keep-faults", action="store_true", help="do not inject any; leave the table as it is")
    if parser.parse_args().keep_faults:
        _write(*measured(DOCUMENT.read_text(encoding="utf-8")))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        findings = list(track(_findings(Path(folder)), "injecting faults", total=EXPERIMENTS))
    machine = f"{os.cpu_count()} shared cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    _write(_fault_table(findings), machine)
    return int(any(finding.lost or finding.doubled or finding.failed for finding in findings))


def _write(faults: str, machine: str) -> None:
    temporary = DOCUMENT.with_suffix(".md.tmp")
    temporary.write_text(document(faults, machine), encoding="utf-8")
    temporary.replace(DOCUMENT)


def document(faults: str, machine: str) -> str:
    """The text of OPERATIONS.md; its transcripts are carried out."""
    text = filled(TEMPLATE.read_text(encoding="utf-8"))
    # Not str.format: commands have braces of their own.
    for name, value in (("faults", faults), ("settings", settings_table()), ("machine", machine)):
        text = text.replace(f"{{{name}}}", value)
    return text


def measured(text: str) -> tuple[str, str]:
    """The fault table of a document, and the machine that it was measured with."""
    table = re.search(r"^\| fault \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    machine = re.search(r"Measured with (.+)\.$", text, re.MULTILINE)
    if table is None or machine is None:
        raise SystemExit(f"{DOCUMENT.name} has no fault table; run 'make operations'")
    return table[0], machine[1]


def settings_table() -> str:
    """Every setting of the service, from its declaration."""
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = _relative(field.default) if isinstance(field.default, Path) else field.default
        shown = "unset" if default is None else str(default).lower() if isinstance(default, bool) else default
        lines.append(f"| `MEMORYPOLICY_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines)


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_absolute() else path


def _fault_table(findings: list[Finding]) -> str:
    lines = ["| fault | load | acknowledged | failed | lost | doubled |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for row in findings:
        failed = "—" if row.failed is None else f"{row.failed:,}"
        lines.append(f"| {row.fault} | {row.load} | {row.acknowledged:,} | {failed} | {row.lost:,} | {row.doubled:,} |")
    return "\n".join(lines)


def _findings(folder: Path) -> Iterator[Finding]:
    yield killed_at_random(folder / "sqlite", seed=SEED, name="SQLite")
    postgres = PostgresServer(folder / "postgresql")
    try:
        yield killed_at_random(folder / "kills", url=postgres.url, seed=SEED, name="PostgreSQL")
    finally:
        postgres.end()
    yield postgres_stopped(folder / "outage", seconds=10.0)
    yield postgres_stopped(folder / "both", seconds=3.0, kill=True)
    yield postgres_paused(folder / "paused", seconds=5.0)
    yield write_lock_held(folder / "lock", seconds=5.0)
    yield spool_full(folder / "full")[0]
    bundles = [write_bundle(folder / f"b{seed}", model=graph(random_layers(seed))) for seed in range(3)]
    yield as_finding(swapped_under_load(folder / "swaps", bundles))


if __name__ == "__main__":
    sys.exit(main())
