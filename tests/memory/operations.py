"""make operations: every fault at full length, and OPERATIONS.md with what came of it."""

import os
import platform
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
from tests.service.bundles import graph, random_layers, write_bundle

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_name("operations.template.md")
DOCUMENT = ROOT / "OPERATIONS.md"
SEED = 20_261_129
EXPERIMENTS = 8


def main() -> int:
    """Exit code 1 if anything acknowledged was lost; the document is written all the same."""
    with tempfile.TemporaryDirectory() as folder:
        findings = list(track(_findings(Path(folder)), "injecting faults", total=EXPERIMENTS))
    DOCUMENT.write_text(document(findings), encoding="utf-8")
    return int(any(finding.lost or finding.doubled or finding.failed for finding in findings))


def document(findings: list[Finding]) -> str:
    """The text of OPERATIONS.md."""
    machine = f"{os.cpu_count()} shared cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return TEMPLATE.read_text(encoding="utf-8").format(
        faults=_fault_table(findings), settings=settings_table(), machine=machine
    )


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
