"""A ranker of measured cells as a bundle that the service loads: it recommends only what was measured, where it was."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline.artefacts import canonical_json, sha256_bytes, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, PLOT_SUFFIX, seal
from offline.measured.abstention import Rule
from offline.measured.card import render_card
from offline.measured.held_out import columns_of_the_15, default_column
from offline.measured.lists import MeasuredLists
from offline.measured.start import Start
from offline.measured.training import Fitted
from offline.onnx_graph import check_parity, run_graph
from service.domain.candidate import candidates_fingerprint
from service.domain.errors import ArtefactError, UnknownNameError
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, feature_schema_hash
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.manifest import MANIFEST_FILE, MODEL_FILE, RANKER_PARAMETERS, Abstention, HeldOut, Manifest

HELD_OUT_SET = "held-out"
_MEMORY_TOLERANCE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was trained and judged. evaluation: of the held-out lists, None where none could be held out."""

    lists: MeasuredLists
    fitted: Fitted
    start: Start | None
    rule: Rule
    evaluation: dict[str, Any] | None
    recipe: dict[str, Any]


def servable_default(lists: MeasuredLists, folder: Path) -> int:
    """The column of the engine's default; ArtefactError where the service could make nothing of a bundle.

    Asked before anything is trained.
    """
    gpu = lists.provenance.gpu
    try:
        device = gpu_by_name(gpu)
    except UnknownNameError as error:
        raise ArtefactError(f"no bundle of cells of {gpu!r}: the service does not know its memory; {error}") from error
    if device.name != gpu:
        raise ArtefactError(f"no bundle of cells of {gpu!r}: the service calls it {device.name!r}; merge them so")
    default = default_column(lists)
    if default is None:
        raise ArtefactError(
            f"no bundle: the engine's default on {gpu}, {device.engine_default.config_id}, was not measured, so "
            "nothing tells when to set no flags; plan with `--config engine-default` beside the others"
        )
    others = columns_of_the_15(lists)
    others[default] = False
    if not others.any():
        raise ArtefactError(
            "no bundle: beside the engine's default the cells hold none of the 15 configurations that the service "
            "recommends; plan with some of them"
        )
    foreign = sorted(one.name for one in folder.iterdir() if not _is_ours(one)) if folder.is_dir() else []
    if foreign:
        raise ArtefactError(f"{folder} holds {foreign[0]}, which is no file of such a bundle; give another folder")
    return default


def write_bundle(folder: Path, made: Made) -> tuple[Manifest, float]:
    """Graph, evaluation, card and manifest, the manifest last; and how far the graph is from the network."""
    lists, fitted = made.lists, made.fitted
    parity = check_parity(fitted.score(lists.features), run_graph(fitted.graph, lists.features))
    evaluation = _evaluation(made)
    manifest = _manifest(folder.name, made)
    folder.mkdir(parents=True, exist_ok=True)
    # Without its manifest a bundle that is half of one and half of another is none.
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    for stale in folder.glob(f"*{PLOT_SUFFIX}"):
        stale.unlink()
    write_atomically(folder / MODEL_FILE, fitted.graph)
    write_atomically(folder / EVALUATION_FILE, canonical_json(evaluation))
    write_atomically(folder / CARD_FILE, render_card(manifest, evaluation).encode())
    return seal(folder, manifest), parity


def _is_ours(path: Path) -> bool:
    names = {MODEL_FILE, MANIFEST_FILE, EVALUATION_FILE, CARD_FILE}
    return path.is_file() and (path.name in names or path.name.startswith("."))


def _evaluation(made: Made) -> dict[str, Any]:
    lists, rule = made.lists, made.rule
    held_out = made.evaluation
    return {
        "schema_version": 1,
        "registration": None,
        "evidence": lists.provenance.evidence,
        "test_sets": {} if held_out is None else {HELD_OUT_SET: held_out},
        "abstention": {
            "margin": rule.margin,
            "scenarios": rule.scenarios,
            "groups": rule.groups,
            "advised": rule.advised,
            "worse": rule.worse,
            "worse_upper95": rule.upper95,
            "promises_one_percent": rule.promises,
        },
    }


def _manifest(name: str, made: Made) -> Manifest:
    lists, rule, started = made.lists, made.rule, None if made.start is None else made.start.manifest
    provenance, device = lists.provenance, gpu_by_name(lists.provenance.gpu)
    digest = sha256_bytes(made.fitted.graph)
    return Manifest(
        name=name,
        version=f"{provenance.evidence}-{digest[:12]}",
        files={MODEL_FILE: digest},
        feature_schema=feature_schema_hash(),
        candidates_fingerprint=candidates_fingerprint(),
        parameters=RANKER_PARAMETERS,
        training_range=_training_range(lists),
        evidence=provenance.evidence,
        gpu=device.name,
        engine_version=provenance.engine_version,
        slo=lists.slo,
        cells_sha256=lists.cells_sha256,
        plan_sha256=lists.plan_sha256,
        training={
            "provenance": asdict(provenance),
            "lists": len(lists.group),
            "lists_that_teach": int(lists.teaches.sum()),
            "recipe": made.recipe,
            "started_from": None if started is None else {"name": started.name, "version": started.version},
        },
        abstention=Abstention(margin=rule.margin),
        engine_default=device.engine_default,
        # Softmax of scores is fitted to softmax of utility ÷ temperature.
        score_slope=float(made.recipe["temperature"]),
        configurations=lists.config_ids,
        gpu_memory_gib=_own_memory(device, lists.memory_gib),
        started_from=None if started is None else started.evidence,
        held_out=HeldOut(
            scenarios=rule.scenarios, groups=rule.groups, advised=rule.advised, worse_upper95=rule.upper95
        ),
    )


def _training_range(lists: MeasuredLists) -> dict[str, tuple[float, float]]:
    """Of the lists that taught an order; a start's own range says nothing of what was measured."""
    state = lists.features[lists.teaches, 0, :NUM_STATE_FEATURES].astype(np.float64)
    return {
        name: (float(column.min()), float(column.max()))
        for name, column in zip(FEATURE_NAMES[:NUM_STATE_FEATURES], state.T, strict=True)
    }


def _own_memory(device: Gpu, memory_gib: float) -> float | None:
    """What the plan says of the device, where its name says something else, or nothing."""
    if not device.cache_only and abs(memory_gib - device.memory_gib) <= _MEMORY_TOLERANCE * device.memory_gib:
        return None
    return memory_gib
