"""The stages with their files: each reads what the one before it wrote, and the lists."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offline.artefacts import read_json, sha256_file, sha256_json
from offline.robust.calibration import CALIBRATION_FILE, Calibrated, calibrate_variant
from offline.robust.cards import write_card
from offline.robust.export import Origin, export_bundle
from offline.robust.lists import read_lists
from offline.robust.models import Progress, fit_pair, fit_rivals, load_pair, save_pair, save_rivals
from offline.robust.opening import (
    ESTIMATOR_SETTINGS,
    EXPLANATION,
    RESTORE,
    SETTINGS,
    Run,
    calibrated_of,
    state_of,
    verdicts_of,
)
from offline.robust.panel import panel_of
from offline.robust.protocol import ROBUST, TEST_SETS
from offline.robust.register import read_openings, register, registered
from offline.robust.split import group_of
from offline.robust.variants import TYPICAL, VARIANTS, Variant
from service.domain.errors import ArtefactError

EARLIER_ABLATION = Path("offline/registrations/robust/robust-1-ablation.json")


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
    registration = register(run.registration, state_of(run))
    return {"name": registration.name, "sha256": registration.sha256}


def _evaluation(run: Run, variant: Variant) -> dict[str, Any]:
    """evaluation.json of a variant: the tables of its own test sets, all goals about them, and its calibration."""
    registration = registered(run.registration)
    own = [name for name, of in TEST_SETS.items() if of == variant.name]
    records = read_openings(registration, own)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    explanation = read_json(run.work / EXPLANATION, remedy="run `python -m offline.robust explain`")
    return {
        **_unregistered_evaluation(run, variant),
        "registration": {"name": registration.name, "sha256": registration.sha256},
        "opened": {name: record["lists_sha256"] for name, record in records.items()},
        "not_opened": [name for name in own if name not in records],
        "goals": [goal for goal in verdicts_of(registration)[1] if goal["test_set"] in tables],
        "explanation": {name: one for name, one in explanation.items() if name in own},
        "test_sets": tables,
    }


def _unregistered_evaluation(run: Run, variant: Variant) -> dict[str, Any]:
    one = calibrated_of(run, variant.name)
    ablation = read_json(EARLIER_ABLATION, remedy=RESTORE) if variant.name == TYPICAL else None
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
        variant, one = VARIANTS[name], calibrated_of(run, name)
        if not unregistered:
            _refuse_others(run, name, one)
        dev_lists = read_lists(run.lists / f"{variant.dev}.parquet")
        dev = panel_of(dev_lists[group_of(dev_lists) == ""], draws=variant.dev_draws)
        digests = {one: sha256_file(run.lists / f"{one}.parquet") for one in (*variant.train, variant.dev)}
        definition = read_lists(run.lists / f"{variant.train[-1]}.parquet").definition
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
    """Writes cards and their pictures from the bundles' own evaluations and seals the bundles again."""
    return {name: sorted(write_card(run.bundles / VARIANTS[name].bundle).files) for name in names}
