"""The stages with their files: each reads what the one before it wrote, and the cells, which it verifies again."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offline.artefacts import canonical_json, read_json, sha256_json, write_atomically
from offline.card import render_card
from offline.dataset import CellFiles, Development, load_development, load_test
from offline.evaluate import (
    DEV_SET,
    EVALUATION_SCHEMA_VERSION,
    TEST_SET,
    DevResult,
    evaluate_dev,
    evaluate_test,
    present_state,
)
from offline.export import CARD_FILE, EVALUATION_FILE, export_bundle, read_bundle, seal
from offline.plots import draw_plots
from offline.policies import MLP
from offline.ranker import Ranker
from offline.registration import (
    Registration,
    State,
    analysis_sha256,
    openings,
    read_opening,
    read_registration,
    record_opening,
    refuse_second_opening,
    registration_path,
    verify,
    write_registration,
)
from offline.settings import GridPoint, Settings
from offline.train import train
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES
from service.domain.manifest import Manifest

_WEIGHTS_FILE, _TRAINING_FILE = "ranker.npz", "training.json"
_TRAIN_AGAIN = "run `python -m offline train` again"
_EVALUATE_AGAIN = "run `python -m offline evaluate` again"

Progress = Callable[[tuple[GridPoint, ...]], Iterable[GridPoint]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run reads and writes, and its settings. root: the checkout whose code runs."""

    files: CellFiles
    work: Path
    bundle: Path
    registrations: Path
    registration: str
    root: Path
    settings: Settings
    feature_names: Sequence[str] = FEATURE_NAMES


def dataset_stage(run: Run) -> Development:
    """Verified data; LeakageError or ArtefactError before anything is trained or tested."""
    return load_development(run.files, feature_names=run.feature_names)


def train_stage(run: Run, *, progress: Progress = iter) -> dict[str, Any]:
    """Trains, writes weights and training record to the work folder, and returns the record."""
    data = dataset_stage(run)
    trained = train(data, run.settings.training, progress=progress)
    record = {
        "settings": run.settings.to_json(),
        "grid": [result.to_json() for result in trained.results],
        "chosen": trained.chosen,
        "chosen_point": asdict(trained.results[trained.chosen].point),
        "weights_sha256": trained.ranker.weights_sha256(),
        "provenance": asdict(data.sources.provenance),
        "cells_sha256": data.sources.cells_sha256,
        "plan_sha256": data.sources.plan_sha256,
        "split_sha256": data.sources.split_sha256,
        "analysis_sha256": analysis_sha256(run.root),
    }
    write_atomically(run.work / _WEIGHTS_FILE, trained.ranker.to_bytes())
    write_atomically(run.work / _TRAINING_FILE, canonical_json(record))
    return record


def evaluate_stage(run: Run, *, open_test: bool = False) -> dict[str, Any]:
    """Writes and returns evaluation.json: dev always, the test split from its one opening if there was or is one."""
    # A refusal below must not leave an older evaluation that export would take for this one.
    (run.work / EVALUATION_FILE).unlink(missing_ok=True)
    data = dataset_stage(run)
    ranker, _ = _trained(run, data)
    result = evaluate_dev(data, ranker, run.settings)
    test_sets = {DEV_SET: result.table}
    registration = _resolve_test(run, data, result, test_sets, open_test=open_test)
    evaluation = {
        "schema_version": EVALUATION_SCHEMA_VERSION,
        "registration": registration,
        "openings": list(openings(run.registrations)),
        "evidence": data.sources.provenance.evidence,
        "models": result.models.sha256(),
        "selected_policy": result.selected_policy,
        "test_sets": test_sets,
    }
    write_atomically(run.work / EVALUATION_FILE, canonical_json(evaluation))
    return evaluation


def register_stage(run: Run) -> Registration:
    """Registers the present cells, split, settings, analysis code, gates and dev's selection under the run's name."""
    data = dataset_stage(run)
    ranker, _ = _trained(run, data)
    result = evaluate_dev(data, ranker, run.settings)
    return write_registration(run.registrations, run.registration, _state(run, data, result))


def export_stage(run: Run) -> tuple[Manifest, float]:
    """Writes the bundle without its card; returns manifest and parity."""
    data = dataset_stage(run)
    ranker, training = _trained(run, data)
    evaluation = read_json(run.work / EVALUATION_FILE, remedy=_EVALUATE_AGAIN)
    if evaluation.get("models", {}).get(MLP) != ranker.weights_sha256():
        raise ArtefactError(f"evaluation.json is of other weights than {run.work / _WEIGHTS_FILE}; {_EVALUATE_AGAIN}")
    training = {**training, "selected_policy": evaluation["selected_policy"]}
    return export_bundle(run.bundle, ranker=ranker, data=data, evaluation=evaluation, training=training)


def card_stage(run: Run) -> Manifest:
    """Writes card and plots from the bundle's own evaluation and seals the bundle again."""
    manifest = read_bundle(run.bundle)
    evaluation = read_json(run.bundle / EVALUATION_FILE, remedy=_EVALUATE_AGAIN)
    plots = draw_plots(evaluation)
    for name, content in plots.items():
        write_atomically(run.bundle / name, content)
    card = render_card(manifest, evaluation, plots=tuple(plots))
    write_atomically(run.bundle / CARD_FILE, card.encode())
    return seal(run.bundle, manifest)


def _trained(run: Run, data: Development) -> tuple[Ranker, dict[str, Any]]:
    """Weights and record of the last training, refused if cells, settings or code are no longer those it used."""
    record = read_json(run.work / _TRAINING_FILE, remedy=_TRAIN_AGAIN)
    try:
        ranker = Ranker.from_bytes((run.work / _WEIGHTS_FILE).read_bytes())
    except OSError as error:
        raise ArtefactError(f"{run.work / _WEIGHTS_FILE}: {error.strerror}; {_TRAIN_AGAIN}") from error
    now = {
        "weights": (record.get("weights_sha256"), ranker.weights_sha256()),
        "settings": (sha256_json(record.get("settings")), sha256_json(run.settings.to_json())),
        "cells": (sha256_json(record.get("cells_sha256")), sha256_json(data.sources.cells_sha256)),
        "analysis code": (record.get("analysis_sha256"), analysis_sha256(run.root)),
    }
    for what, (trained, present) in now.items():
        if trained != present:
            raise ArtefactError(f"trained with {what} of sha256 {trained}, now {present}; {_TRAIN_AGAIN}")
    return ranker, record


def _state(run: Run, data: Development, result: DevResult) -> State:
    return present_state(data.sources, run.settings, selected_policy=result.selected_policy, root=run.root)


def _resolve_test(
    run: Run, data: Development, result: DevResult, test_sets: dict[str, Any], *, open_test: bool
) -> dict[str, Any] | None:
    """Adds the test split's table if it may be shown, and returns evaluation.json's `registration`."""
    registration = read_registration(run.registrations, run.registration)
    if registration is None:
        if open_test:
            raise ArtefactError(
                f"{registration_path(run.registrations, run.registration)} does not exist, so the test split stays "
                f"closed; register first: `python -m offline register --registration {run.registration}`"
            )
        return None
    record = read_opening(run.registrations, registration)
    if open_test:
        refuse_second_opening(run.registrations, run.registration)
        permit = verify(registration, _state(run, data, result))
        table = evaluate_test(load_test(run.files, permit=permit), result, run.settings)
        record = record_opening(run.registrations, permit, models=result.models.sha256(), test_set=table)
    elif record is not None:
        verify(registration, _state(run, data, result))
        _refuse_other_models(registration.name, record["models"], result.models.sha256())
    if record is not None:
        test_sets[TEST_SET] = record["test_set"]
    return {
        "name": registration.name,
        "sha256": registration.sha256,
        "opened": record is not None,
        "results_sha256": None if record is None else record["results_sha256"],
    }


def _refuse_other_models(name: str, evaluated: dict[str, str], trained: dict[str, str]) -> None:
    for policy, digest in trained.items():
        if evaluated.get(policy) != digest:
            raise ArtefactError(
                f"{policy} trained here has sha256 {digest}, the test split was opened with {evaluated.get(policy)}: "
                f"this machine computes other last bits. The evaluation of registration {name!r} stays that of the "
                "committed bundle, which is left as it is; to ship these weights, register them under a new name"
            )
