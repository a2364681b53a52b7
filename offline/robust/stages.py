"""The stages with their files: each reads what the one before it wrote, and the lists."""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline.artefacts import canonical_json, read_json, sha256_bytes, sha256_file, sha256_json, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, read_bundle, seal
from offline.registration import Registration
from offline.robust.calibration import CALIBRATION_FILE, Calibrated, calibrate_variant
from offline.robust.card import render_card
from offline.robust.curves import scenario_rows
from offline.robust.estimator import EstimatorSettings
from offline.robust.evaluation import Answerer, evaluate, evaluate_oracles
from offline.robust.explanation import explain
from offline.robust.export import Origin, export_bundle
from offline.robust.lists import concatenated, read_lists
from offline.robust.models import (
    Progress,
    fit_pair,
    fit_rivals,
    load_pair,
    load_rivals,
    save_pair,
    save_rivals,
)
from offline.robust.network import FitSettings
from offline.robust.panel import Panel, panel_of
from offline.robust.protocol import BEYOND, ORACLE_SUFFIX, ROBUST, TEST_SETS, goals, judge
from offline.robust.register import (
    opened_path,
    present_state,
    read_openings,
    record_opening,
    refuse_second_opening,
    register,
    registered,
)
from offline.robust.split import group_of
from offline.robust.variants import H100, TYPICAL, VARIANTS, Variant
from service.domain.errors import ArtefactError

DRAWS, DRAWS_OF = 8, {"T6-exact": 2}
SETTINGS = FitSettings(loss="squared", epochs=30)
ESTIMATOR_SETTINGS = EstimatorSettings(jitter=0.1)
REFERENCE_GRAPH = Path("service/bundles/qwen3-b200-reference/model.onnx")
EARLIER_ABLATION = Path("offline/registrations/robust/robust-1-ablation.json")
EXPLAINED = ("T2", "T3", "T4", "T5", "T6-typical", "T6-2x", "T6-4x", "T6-exact", "T6-rough", "T7-h200", "T7-h100")
_EXPLANATION = "explanation.json"
_RESTORE = "restore the committed file"


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


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A result for a person: a line per entry."""
    for key, value in result.items():
        if isinstance(value, list):
            for one in value:
                yield f"{key}: {one}"
        else:
            yield f"{key}: {value}"


def train_stage(run: Run, names: Iterable[str], *, progress: Progress) -> dict[str, Any]:
    """Trains and stores the networks of the named variants, and with the typical one its rivals."""
    result: dict[str, Any] = {}
    for name in names:
        variant = VARIANTS[name]
        start = None if variant.start is None else load_pair(run.folder(variant.start))
        pair = fit_pair(
            run.lists, variant, ranking=SETTINGS, estimating=ESTIMATOR_SETTINGS, start=start, progress=progress
        )
        save_pair(pair, run.folder(name))
        # What was calibrated before was another pair.
        (run.folder(name) / CALIBRATION_FILE).unlink(missing_ok=True)
        result[name] = pair.sha256()
        if name == TYPICAL:
            save_rivals(fit_rivals(run.lists, variant, SETTINGS), run.work)
    return result


def calibrate_stage(run: Run, names: Iterable[str]) -> dict[str, Any]:
    """Calibrates the named variants; returns their rules."""
    result: dict[str, Any] = {}
    for name in names:
        variant = VARIANTS[name]
        # Going on from calibrated weights would make no difference: calibration does not read what it replaces.
        one = calibrate_variant(run.lists, variant, load_pair(run.folder(name)), SETTINGS)
        save_pair(one.pair, run.folder(name))
        one.save(run.folder(name))
        result[name] = {**asdict(one.rule), "slope": one.slope, "dev": one.record["dev"][ROBUST]}
    return result


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
    state, answerer = _state(run), _answerer(run)
    for name in only or _ready(run):
        refuse_second_opening(run.registration, name)
        tables = _tables(run, name, answerer)
        if not name.endswith(ORACLE_SUFFIX):
            tables[name]["scenarios_sha256"] = _write_scenarios(run, name, answerer)
        digest = sha256_file(run.lists / f"{name}.parquet")
        record_opening(registration, state, name, lists_sha256=digest, tables=tables)
    explain_stage(run)
    opened, verdicts = _verdicts(registration)
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
    path = run.work / _EXPLANATION
    shipped = run.bundles / VARIANTS[TYPICAL].bundle / EVALUATION_FILE
    found: dict[str, Any] = {}
    if shipped.exists():
        earlier = read_json(shipped, remedy=_RESTORE)
        # Of sets whose lists are not here, what the bundle says of them stays.
        if earlier.get("registration", {}).get("name") == run.registration:
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


def _verdicts(registration: Registration) -> tuple[list[str], list[dict[str, Any]]]:
    records = read_openings(registration, TEST_SETS)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    verdicts = []
    for goal in goals():
        if goal.test_set in tables:
            value, met = judge(goal, tables)
            verdicts.append({**asdict(goal), "value": value, "met": met})
    return sorted(records), verdicts


def _evaluation(run: Run, variant: Variant) -> dict[str, Any]:
    """evaluation.json of a variant: the tables of its own test sets, all goals about them, and its calibration."""
    registration = registered(run.registration)
    own = [name for name, of in TEST_SETS.items() if of == variant.name]
    records = read_openings(registration, own)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    explanation = read_json(run.work / _EXPLANATION, remedy="run `python -m offline.robust explain`")
    return {
        **_unregistered_evaluation(run, variant),
        "registration": {"name": registration.name, "sha256": registration.sha256},
        "opened": {name: record["lists_sha256"] for name, record in records.items()},
        "not_opened": [name for name in own if name not in records],
        "goals": [goal for goal in _verdicts(registration)[1] if goal["test_set"] in tables],
        "explanation": {name: one for name, one in explanation.items() if name in own},
        "test_sets": tables,
    }


def _unregistered_evaluation(run: Run, variant: Variant) -> dict[str, Any]:
    one = _calibrated(run, variant.name)
    ablation = read_json(EARLIER_ABLATION, remedy=_RESTORE) if variant.name == TYPICAL else None
    return {
        "schema_version": 2,
        "registration": None,
        "evidence": "simulated",
        "variant": variant.name,
        "calibration": {**one.record, "rule": asdict(one.rule), "slope": one.slope},
        "earlier_ablation": ablation,
        "opened": {},
        "not_opened": [name for name, of in TEST_SETS.items() if of == variant.name],
        "goals": [],
        "explanation": {},
        "test_sets": {},
    }


def export_stage(run: Run, names: Iterable[str], *, unregistered: bool) -> dict[str, Any]:
    """Writes bundles without their cards. unregistered: of networks that no registration fixes, without any test."""
    result: dict[str, Any] = {}
    for name in names:
        variant, one = VARIANTS[name], _calibrated(run, name)
        if not unregistered:
            _refuse_others(run, name, one)
        dev_lists = read_lists(run.lists / f"{variant.dev}.parquet")
        dev = panel_of(dev_lists[group_of(dev_lists) == ""], draws=variant.dev_draws)
        digests = {one: sha256_file(run.lists / f"{one}.parquet") for one in (*variant.train, variant.dev)}
        definition = read_lists(run.lists / f"{variant.train[0]}.parquet").definition
        evaluation = _unregistered_evaluation(run, variant) if unregistered else _evaluation(run, variant)
        origin = Origin(
            evaluation=evaluation,
            training={
                "lists_sha256": digests,
                "registration": None if unregistered else run.registration,
                "models": one.pair.sha256(),
                "estimator_settings": asdict(ESTIMATOR_SETTINGS),
            },
            lists_sha256=digests[variant.train[0]],
            definition=definition,
            error_bands=run.error_bands if run.error_bands.exists() else None,
        )
        folder = run.bundles / variant.bundle
        manifest, parity = export_bundle(folder, variant, one, dev=dev, settings=SETTINGS, origin=origin)
        result[name] = {"bundle": str(folder), "version": manifest.version, "parity": parity}
    return result


def _refuse_others(run: Run, name: str, one: Calibrated) -> None:
    was = registered(run.registration).content["settings"]["variants"][name]
    if was != one.fixed():
        raise ArtefactError(
            f"the {name} variant here is {sha256_json(one.fixed())}, registered is {sha256_json(was)}; the committed "
            "bundle stays as it is. To ship these weights, register them under a new name with fresh test seeds"
        )


def card_stage(run: Run, names: Iterable[str]) -> dict[str, Any]:
    """Writes cards from the bundles' own evaluations and seals the bundles again."""
    result = {}
    for name in names:
        folder = run.bundles / VARIANTS[name].bundle
        manifest = read_bundle(folder)
        evaluation = read_json(folder / EVALUATION_FILE, remedy="run `python -m offline.robust export`")
        write_atomically(folder / CARD_FILE, render_card(manifest, evaluation).encode())
        result[name] = sorted(seal(folder, manifest).files)
    return result


def _calibrated(run: Run, name: str) -> Calibrated:
    return Calibrated.load(run.folder(name), load_pair(run.folder(name)))


def _state(run: Run) -> Any:
    rivals = load_rivals(run.work)
    # The lists of the first registration were simulated under an earlier definition, which draws the same rows.
    definition = read_lists(run.lists / f"{VARIANTS[H100].dev}.parquet").definition
    return present_state(
        run.lists,
        variants={name: _calibrated(run, name) for name in VARIANTS},
        rivals={"LightGBM": rivals.trees.sha256(), "single_best": rivals.single_best},
        settings=(SETTINGS, ESTIMATOR_SETTINGS),
        definition=definition,
        root=run.root,
    )


def _answerer(run: Run) -> Answerer:
    return Answerer(
        variants={name: _calibrated(run, name) for name in VARIANTS},
        rivals=load_rivals(run.work),
        reference=REFERENCE_GRAPH.read_bytes(),
        settings=SETTINGS,
    )
