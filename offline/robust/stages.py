"""The stages with their files: each reads what the one before it wrote, and the lists."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from offline.artefacts import canonical_json, read_json, sha256_file, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, read_bundle, seal
from offline.robust import choices as choose
from offline.robust.ablation import dev_row, judged, variants
from offline.robust.card import render_card
from offline.robust.evaluation import Answerer, evaluate, evaluate_oracles
from offline.robust.explanation import explain
from offline.robust.export import export_bundle
from offline.robust.lists import concatenated, read_lists
from offline.robust.models import (
    LARGE,
    ROBUST,
    Progress,
    load_models,
    network_bytes,
    network_sha256,
    read_train,
    save_models,
    train_large,
    train_models,
)
from offline.robust.network import FitSettings
from offline.robust.panel import Panel, panel_of
from offline.robust.protocol import BEYOND, ORACLE_SUFFIX, TEST_SETS, goals, judge
from offline.robust.register import (
    opened_path,
    present_state,
    read_openings,
    record_opening,
    refuse_second_opening,
    register,
    registered,
)
from offline.robust.sweep import evaluate_sweep
from service.domain.errors import ArtefactError

DEV_DRAWS = 8
SWEEP = "prefix-sweep"
DRAWS = {SWEEP: 4}
SETTINGS = FitSettings()
MARGINS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0)
# Of margins whose mean utility on calibration is within this of the best, the largest: fewer flags for the same gain.
MARGIN_TOLERANCE = 0.0005
REFERENCE_GRAPH = Path("service/bundles/qwen3-b200-reference/model.onnx")
_TRAINING, _MARGIN, _ABLATION = "training.json", "margin.json", "ablation.json"
_EXPLANATION = "explanation.json"
_RESTORE = "restore the committed file"
EXPLAINED = ("T2", "T3", "T4", "T5", "T6-2x", "T6-4x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run reads and writes. root: the checkout whose code runs."""

    lists: Path
    work: Path
    bundle: Path
    registration: str
    root: Path


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A result for a person: a line per entry."""
    for key, value in result.items():
        if isinstance(value, list):
            for one in value:
                yield f"{key}: {one}"
        else:
            yield f"{key}: {value}"


def panel(run: Run, name: str) -> Panel:
    """A set with its draws."""
    return panel_of(read_lists(run.lists / f"{name}.parquet"), draws=DRAWS.get(name, DEV_DRAWS))


def ablate_stage(run: Run, *, progress: Progress) -> dict[str, Any]:
    """Every variant on dev, beside the policies that need no training."""
    dev = panel(run, "dev")
    rows = [
        {"variant": name, **judged(dev, one)}
        for name, one in {
            "ENGINE_DEFAULT": choose.engine_default(dev.scenarios),
            "FIXED": choose.fixed(dev.scenarios),
            "HEUR": choose.heuristic(dev.scenarios),
        }.items()
    ]
    done = read_json(run.work / _ABLATION, remedy="delete it") if (run.work / _ABLATION).exists() else {"rows": rows}
    finished = {row["variant"] for row in done["rows"]}
    for variant in variants(run.lists):
        if variant.name in finished:
            continue
        for _ in progress(variant.name, 1):
            done["rows"].append(dev_row(dev, variant))
        # Written after each row: a stopped ablation goes on where it was.
        write_atomically(run.work / _ABLATION, canonical_json(done))
    return done


def large_stage(run: Run, *, progress: Progress) -> dict[str, Any]:
    """Trains and stores the upper reference."""
    network = train_large(run.lists, SETTINGS, progress=progress)
    write_atomically(run.work / f"{LARGE}.npz", network_bytes(network))
    return {"model": LARGE, "parameters": network.parameters, "sha256": network_sha256(network)}


def train_stage(run: Run, *, progress: Progress) -> dict[str, Any]:
    """Trains and stores everything that is compared."""
    models = train_models(run.lists, SETTINGS, progress=progress)
    save_models(models, run.work)
    record = {"settings": asdict(SETTINGS), "models": models.sha256(), "single_best": models.single_best}
    write_atomically(run.work / _TRAINING, canonical_json(record))
    return record


def margin_stage(run: Run) -> dict[str, Any]:
    """Margins on calibration, and the one that is chosen."""
    calibration = panel(run, "calibration")
    scores = load_models(run.work).networks[ROBUST].score(calibration.scenarios.features())
    rows = [
        {"margin": margin, **judged(calibration, choose.with_abstention(calibration.scenarios, scores, margin=margin))}
        for margin in MARGINS
    ]
    best = max(row["utility"] for row in rows)
    chosen = max(row["margin"] for row in rows if row["utility"] >= best - MARGIN_TOLERANCE)
    record = {"rows": rows, "margin": chosen}
    write_atomically(run.work / _MARGIN, canonical_json(record))
    return record


def register_stage(run: Run) -> dict[str, Any]:
    """Registers the present state; commit the file before any test list is simulated."""
    for name in TEST_SETS:
        if (run.lists / f"{name}.parquet").exists():
            raise ArtefactError(f"{name} is simulated already; register first, with fresh test seeds")
    registration = register(run.registration, _state(run))
    return {"name": registration.name, "sha256": registration.sha256}


def evaluate_stage(run: Run, only: tuple[str, ...]) -> dict[str, Any]:
    """Opens each set that is simulated and not yet opened, or the named ones; returns the goals' verdicts so far."""
    registration = registered(run.registration)
    for name in only or _ready(run):
        refuse_second_opening(run.registration, name)
        state, answerer = _state(run), _answerer(run)
        tables = _tables(run, name, answerer)
        digest = sha256_file(run.lists / f"{name}.parquet")
        record_opening(registration, state, name, lists_sha256=digest, tables=tables)
    explain_stage(run)
    evaluation = _evaluation(run)
    return {"opened": sorted(evaluation["opened"]), "goals": evaluation["goals"]}


def _tables(run: Run, name: str, answerer: Answerer) -> dict[str, Any]:
    """The tables of a test set; T2 and its further draws have one for what lies beyond the hull, apart."""
    if name == SWEEP:
        return {name: evaluate_sweep(panel(run, name), answerer.models, SETTINGS, margin=answerer.margin)}
    base = name.removesuffix(ORACLE_SUFFIX)
    lists = read_lists(run.lists / f"{base}.parquet")
    judge_set: Callable[[Panel, Answerer], dict[str, Any]] = evaluate
    if base != name:
        lists = concatenated([lists, read_lists(run.lists / f"{name}.parquet")])
        judge_set = evaluate_oracles
    whole = panel_of(lists, draws=DEV_DRAWS)
    if base != "T2":
        return {name: judge_set(whole, answerer)}
    beyond = np.char.startswith(whole.scenarios.stratum, "beyond")
    return {
        name: judge_set(whole.part(np.flatnonzero(~beyond)), answerer),
        name.replace("T2", BEYOND): judge_set(whole.part(np.flatnonzero(beyond)), answerer),
    }


def explain_stage(run: Run) -> dict[str, Any]:
    """What broke the SLO in each set that was opened and whose lists are here, for the card."""
    shipped = run.bundle / EVALUATION_FILE
    # Of sets whose lists are not here, what the bundle says of them stays.
    found = dict(read_json(shipped, remedy=_RESTORE).get("explanation", {})) if shipped.exists() else {}
    for name in read_openings(registered(run.registration), EXPLAINED):
        if (run.lists / f"{name}.parquet").exists():
            whole = panel(run, name)
            found[name] = explain(whole, _answerer(run).choices(whole))
    write_atomically(run.work / _EXPLANATION, canonical_json(found))
    return found


def _ready(run: Run) -> tuple[str, ...]:
    return tuple(
        name
        for name in TEST_SETS
        if (run.lists / f"{name}.parquet").exists() and not opened_path(run.registration, name).exists()
    )


def _evaluation(run: Run) -> dict[str, Any]:
    registration = registered(run.registration)
    records = read_openings(registration, TEST_SETS)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    verdicts = []
    for goal in goals():
        if goal.test_set in tables:
            value, met = judge(goal, tables)
            verdicts.append({**asdict(goal), "value": value, "met": met})
    return {
        "schema_version": 1,
        "registration": {"name": registration.name, "sha256": registration.sha256},
        "evidence": "simulated",
        "opened": {name: record["lists_sha256"] for name, record in records.items()},
        "not_opened": [name for name in TEST_SETS if name not in records],
        "goals": verdicts,
        "ablation": read_json(run.work / _ABLATION, remedy="run `python -m offline.robust ablate`")["rows"],
        "margins": read_json(run.work / _MARGIN, remedy="run `python -m offline.robust margin`"),
        "explanation": read_json(run.work / _EXPLANATION, remedy="run `python -m offline.robust explain`"),
        "test_sets": tables,
    }


def export_stage(run: Run) -> dict[str, Any]:
    """Writes the bundle without its card."""
    evaluation = _evaluation(run)
    write_atomically(run.work / EVALUATION_FILE, canonical_json(evaluation))
    state = _state(run)
    was = registered(run.registration).content["settings"]["models"][ROBUST]
    if state.settings["models"][ROBUST] != was:
        raise ArtefactError(
            f"{ROBUST} trained here has sha256 {state.settings['models'][ROBUST]}, registered is {was}; the committed "
            "bundle stays as it is. To ship these weights, register them under a new name with fresh test seeds"
        )
    manifest, parity = export_bundle(
        run.bundle,
        load_models(run.work).networks[ROBUST],
        train=read_train(run.lists),
        checked_on=read_lists(run.lists / "dev.parquet"),
        margin=_margin(run),
        evaluation=evaluation,
        training={
            "lists_sha256": state.cells_sha256,
            "definition_sha256": state.split_sha256,
            "registration": run.registration,
            "models": state.settings["models"],
        },
        settings=SETTINGS,
        definition=state.split_sha256,
        lists_sha256=state.cells_sha256["train-base"],
    )
    return {"bundle": str(run.bundle), "version": manifest.version, "parity": f"{parity:.1e}"}


def card_stage(run: Run) -> dict[str, Any]:
    """Writes the card from the bundle's own evaluation and seals the bundle again."""
    manifest = read_bundle(run.bundle)
    evaluation = read_json(run.bundle / EVALUATION_FILE, remedy="run `python -m offline.robust export`")
    write_atomically(run.bundle / CARD_FILE, render_card(manifest, evaluation).encode())
    sealed = seal(run.bundle, manifest)
    return {"bundle": str(run.bundle), "files": sorted(sealed.files)}


def _margin(run: Run) -> float:
    return float(read_json(run.work / _MARGIN, remedy="run `python -m offline.robust margin`")["margin"])


def _definition(run: Run) -> str:
    """The sha256 of the definition of all sets, as the simulator stamped it on the training lists."""
    metadata = pq.read_schema(run.lists / "train-base.parquet").metadata or {}
    return str(metadata[b"definition_sha256"].decode())


def _state(run: Run) -> Any:
    return present_state(
        run.lists,
        models=load_models(run.work),
        settings=SETTINGS,
        margin=_margin(run),
        definition=_definition(run),
        root=run.root,
    )


def _answerer(run: Run) -> Answerer:
    return Answerer(
        models=load_models(run.work),
        reference=REFERENCE_GRAPH.read_bytes(),
        settings=SETTINGS,
        margin=_margin(run),
    )
