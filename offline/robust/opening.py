"""Opens test sets under a registration, each once, and tells which goals are met."""

import gzip
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline.artefacts import canonical_json, read_json, sha256_bytes, sha256_file, write_atomically
from offline.export import EVALUATION_FILE
from offline.registration import Registration
from offline.robust.calibration import Calibrated
from offline.robust.curves import scenario_rows
from offline.robust.estimator import EstimatorSettings
from offline.robust.evaluation import Answerer, evaluate, evaluate_oracles
from offline.robust.explanation import explain
from offline.robust.lists import concatenated, read_lists
from offline.robust.models import load_pair, load_rivals
from offline.robust.network import FitSettings
from offline.robust.panel import Panel, panel_of
from offline.robust.protocol import BEYOND, ORACLE_SUFFIX, TEST_SETS, goals, judge
from offline.robust.register import (
    opened_path,
    present_state,
    read_openings,
    record_opening,
    refuse_second_opening,
    registered,
)
from offline.robust.variants import TYPICAL, VARIANTS

DRAWS, DRAWS_OF = 8, {"T6-exact": 2}
SETTINGS = FitSettings(loss="squared", epochs=30)
ESTIMATOR_SETTINGS = EstimatorSettings(jitter=0.1)
REFERENCE_GRAPH = Path("service/bundles/qwen3-b200-reference/model.onnx")
EXPLAINED = ("T2", "T3", "T4", "T5", "T6-typical", "T6-2x", "T6-4x", "T6-exact", "T6-rough", "T7-h200", "T7-h100")
EXPLANATION = "explanation.json"
RESTORE = "restore the committed file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run reads and writes. bundles: the folder of all bundles; root: the checkout whose code runs."""

    lists: Path
    work: Path
    bundles: Path
    registration: str
    root: Path
    error_bands: Path

    def folder(self, variant: str) -> Path:
        """Intermediate files of a variant."""
        return self.work / variant


def evaluate_stage(run: Run, only: tuple[str, ...]) -> dict[str, Any]:
    """Opens each set that is simulated and not yet opened, or the named ones; returns the goals' verdicts so far."""
    registration = registered(run.registration)
    state, answerer = state_of(run), _answerer(run)
    for name in only or _ready(run):
        refuse_second_opening(run.registration, name)
        tables = _tables(run, name, answerer)
        if not name.endswith(ORACLE_SUFFIX):
            tables[name]["scenarios_sha256"] = _write_scenarios(run, name, answerer)
        digest = sha256_file(run.lists / f"{name}.parquet")
        record_opening(registration, state, name, lists_sha256=digest, tables=tables)
    explain_stage(run)
    opened, verdicts = verdicts_of(registration)
    return {"opened": opened, "goals": verdicts}


def _panel(run: Run, name: str) -> Panel:
    return panel_of(read_lists(run.lists / f"{name}.parquet"), draws=DRAWS_OF.get(name, DRAWS))


def _tables(run: Run, name: str, answerer: Answerer) -> dict[str, Any]:
    """The tables of a test set; T2 has one for what lies beyond the hull, apart."""
    variant = TEST_SETS[name]
    base = name.removesuffix(ORACLE_SUFFIX)
    if base != name:
        lists = concatenated([read_lists(run.lists / f"{one}.parquet") for one in (base, name)])
        whole = panel_of(lists, draws=DRAWS)
        within, _ = _beyond_apart(base, whole)
        return {name: evaluate_oracles(within, answerer, variant)}
    within, beyond = _beyond_apart(name, _panel(run, name))
    tables = {name: evaluate(within, answerer, variant)}
    return tables if beyond is None else {**tables, BEYOND: evaluate(beyond, answerer, variant)}


def _beyond_apart(name: str, whole: Panel) -> tuple[Panel, Panel | None]:
    if name != "T2":
        return whole, None
    beyond = np.char.startswith(whole.scenarios.stratum, "beyond")
    return whole.part(np.flatnonzero(~beyond)), whole.part(np.flatnonzero(beyond))


def scenarios_path(name: str, test_set: str) -> Path:
    """Where the outcome of every scenario of an opened set lies, for reports."""
    return opened_path(name, test_set).with_suffix("").with_suffix(".scenarios.json.gz")


def _write_scenarios(run: Run, name: str, answerer: Answerer) -> str:
    whole = _panel(run, name)
    one = answerer.variants[TEST_SETS[name]]
    question = one.question(whole.scenarios)
    content = canonical_json(scenario_rows(whole, question.choices(one.rule), question, SETTINGS))
    compressed = gzip.compress(content, mtime=0)
    write_atomically(scenarios_path(run.registration, name), compressed)
    return sha256_bytes(compressed)


def explain_stage(run: Run) -> dict[str, Any]:
    """What broke the SLO in each set that was opened and whose lists are here, for the card."""
    path = run.work / EXPLANATION
    shipped = run.bundles / VARIANTS[TYPICAL].bundle / EVALUATION_FILE
    found: dict[str, Any] = {}
    if shipped.exists():
        earlier = read_json(shipped, remedy=RESTORE)
        # Of sets whose lists are not here, what the bundle says of them stays.
        if (earlier["registration"] or {}).get("name") == run.registration:
            found = dict(earlier.get("explanation", {}))
    answerer = _answerer(run)
    for name in read_openings(registered(run.registration), EXPLAINED):
        if (run.lists / f"{name}.parquet").exists():
            whole = _panel(run, name)
            found[name] = explain(whole, answerer.choices(whole, TEST_SETS[name]))
    write_atomically(path, canonical_json(found))
    return found


def _ready(run: Run) -> tuple[str, ...]:
    def there(name: str) -> bool:
        # An oracle's draws belong to the scenarios of the set itself.
        return all((run.lists / f"{one}.parquet").exists() for one in (name, name.removesuffix(ORACLE_SUFFIX)))

    return tuple(name for name in TEST_SETS if there(name) and not opened_path(run.registration, name).exists())


def verdicts_of(registration: Registration) -> tuple[list[str], list[dict[str, Any]]]:
    """The sets that were opened, and the verdict on every goal about them."""
    records = read_openings(registration, TEST_SETS)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    verdicts = []
    for goal in goals():
        if goal.test_set in tables:
            value, met = judge(goal, tables)
            verdicts.append({**asdict(goal), "value": value, "met": met})
    return sorted(records), verdicts


def calibrated_of(run: Run, name: str) -> Calibrated:
    """A variant as it was trained and calibrated; ArtefactError if it was not."""
    return Calibrated.load(run.folder(name), load_pair(run.folder(name)))


def state_of(run: Run) -> Any:
    """What a registration made now would fix."""
    rivals = load_rivals(run.work)
    # Lists of earlier registrations were simulated under earlier definitions, which draw the same rows.
    definition = read_lists(run.lists / f"{VARIANTS[TYPICAL].train[-1]}.parquet").definition
    return present_state(
        run.lists,
        variants={name: calibrated_of(run, name) for name in VARIANTS},
        rivals={"LightGBM": rivals.trees.sha256(), "single_best": rivals.single_best},
        settings=(SETTINGS, ESTIMATOR_SETTINGS),
        definition=definition,
        root=run.root,
    )


def _answerer(run: Run) -> Answerer:
    return Answerer(
        variants={name: calibrated_of(run, name) for name in VARIANTS},
        rivals=load_rivals(run.work),
        reference=REFERENCE_GRAPH.read_bytes(),
        settings=SETTINGS,
    )
