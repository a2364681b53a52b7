"""The published test table of FIXED and HEUR beside the simulator, opened once under a fit that was recorded before.

A fit record names everything that decides the comparison; the comparison is written to a file that is never written
again. Nobody can unsee the published numbers, but no setting is chosen by them: those of the fit come from the dev
table, those of the hypothesis from the test table are named in the fit record and reported as exploratory.
"""

import hashlib
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_runner.files import create_once, read_json
from bench_runner.plan import reference_plan
from bench_runner.published_cells import RULES, CellRunner, Rule, scenarios, table_metrics
from bench_runner.published_fit import FIT_SCHEMA_VERSION, assumed_values, settings_of, sources_sha256
from bench_runner.step_time import StepTables
from service.domain.candidate import FIXED_INDEX
from service.domain.errors import ArtefactError

OPENED_SCHEMA_VERSION = 1
TABLE_SOURCE = "the same, its test table"
TEST_TABLE: Mapping[str, float] = {
    "FIXED violation": 0.25,
    "FIXED failure": 0.0,
    "FIXED throughput_tps": 9483.0,
    "FIXED goodput_tps": 5343.0,
    "FIXED ttft_p95_s": 10.78,
    "FIXED tpot_p95_ms": 7.0,
    "HEUR violation": 0.25,
    "HEUR failure": 0.0,
    "HEUR throughput_tps": 8172.0,
    "HEUR goodput_tps": 4090.0,
    "HEUR ttft_p95_s": 13.11,
    "HEUR throughput_ratio": 0.765,
}


def read_fit(path: Path) -> dict[str, Any]:
    """A record of `published fit`; ArtefactError if it is none."""
    content = read_json(path)
    if content.get("schema_version") != FIT_SCHEMA_VERSION or set(content.get("rules", {})) != set(RULES):
        raise ArtefactError(f"{path} is no record of this program's `published fit`; fit again under another name")
    return content


def open_test(fit_path: Path, output: Path, *, tables: StepTables) -> dict[str, Any]:
    """Compares the test table under a fit record and writes the result, once; returns it.

    ArtefactError where it was opened before, or where the simulator is not the one that was fitted.
    """
    if output.exists():
        raise ArtefactError(
            f"{output}: the test table was compared under this name before, and that is done once; read that file, "
            "or record another fit and give another --output"
        )
    fit = read_fit(fit_path)
    if fit["sources_sha256"] != sources_sha256():
        raise ArtefactError(
            f"{fit_path} was fitted with sources {fit['sources_sha256'][:12]}, here they are "
            f"{sources_sha256()[:12]}; restore those, or fit again under another name"
        )
    content = {
        "schema_version": OPENED_SCHEMA_VERSION,
        "evidence": "simulated",
        "fit": fit_path.name,
        "fit_sha256": hashlib.sha256(fit_path.read_bytes()).hexdigest(),
        "table": dict(TEST_TABLE),
        "table_source": TABLE_SOURCE,
        **_compared(fit, tables=tables),
    }
    create_once(output, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return content


def read_opened(path: Path, fit_path: Path) -> dict[str, Any]:
    """The comparison; ArtefactError if it was made under another fit record, or under this one before a change."""
    content = read_json(path)
    digest = hashlib.sha256(fit_path.read_bytes()).hexdigest()
    if content.get("schema_version") != OPENED_SCHEMA_VERSION or content.get("fit_sha256") != digest:
        raise ArtefactError(
            f"{path} opened the fit {content.get('fit_sha256')}, {fit_path} is {digest}; restore the committed file"
        )
    return content


def _compared(fit: Mapping[str, Any], *, tables: StepTables) -> dict[str, Any]:
    assumed = metrics_on_test({}, tables=tables)
    rules: dict[str, Any] = {}
    for rule in RULES:
        record = fit["rules"][rule]
        kept = [metrics_on_test(values, tables=tables)[rule] for values in record["kept"]]
        rules[rule] = {
            "assumed": assumed[rule],
            "best": metrics_on_test(record["best"], tables=tables)[rule],
            "kept": {name: _spread([one[name] for one in kept]) for name in TEST_TABLE},
        }
    exploratory = {name: metrics_on_test(values, tables=tables) for name, values in fit["exploratory"].items()}
    return {"rules": rules, "exploratory": exploratory}


def metrics_on_test(values: Mapping[str, float], *, tables: StepTables) -> dict[Rule, dict[str, float | None]]:
    """The test table's numbers by rule; values: what differs from the assumed setting."""
    settings = settings_of({**assumed_values(), **values})
    runner = CellRunner(plan=reference_plan(), tables=tables, settings=settings)
    found = [(scenario, runner.outcomes(scenario, (FIXED_INDEX, scenario.heur))) for scenario in scenarios("test")]
    metrics = {rule: table_metrics([(scenario, by_rule[rule]) for scenario, by_rule in found]) for rule in RULES}
    return {rule: {name: _rounded(metrics[rule][name]) for name in TEST_TABLE} for rule in RULES}


def _spread(values: list[float | None]) -> list[float] | None:
    """(least, median, most) of the settings that give a number; None if none does."""
    known = [value for value in values if value is not None]
    return [min(known), statistics.median(known), max(known)] if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
