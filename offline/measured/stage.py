"""`python -m offline train --plan …`: cells of any plan in, weights with a record and an evaluation out."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.artefacts import canonical_json, sha256_bytes, write_atomically
from offline.measured.abstention import MOST_RISK, Rule, choose_rule, never
from offline.measured.bundle import Made, servable_default, write_bundle
from offline.measured.disagreement import disagreement
from offline.measured.evaluation import evaluate
from offline.measured.held_out import columns_of_the_15, default_column, folds_of, score_held_out
from offline.measured.lists import MeasuredLists, read_lists
from offline.measured.start import Start
from offline.measured.training import Recipe
from offline.settings import BootstrapSettings, TrainingSettings
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES
from service.domain.leakage import check_feature_names
from service.domain.manifest import NEVER_MARGIN, PROMISED_RISK

MODEL, RECORD = "measured.onnx", "measured.json"
SCHEMA_VERSION = 1

Folds = Iterable[NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """cells, plan: what was measured. fine_tune: the bundle to start from. simulated: cells to compare with.
    bundle: the folder of a bundle to write, beside the weights and the record."""

    cells: Path
    plan: Path
    work: Path
    settings: TrainingSettings
    fine_tune: Path | None = None
    simulated: Path | None = None
    bundle: Path | None = None


def train_on_measured(
    request: Request, *, progress: Callable[[list[NDArray[np.bool_]]], Folds] = iter
) -> dict[str, Any]:
    """Trains on all lists, judges the recipe on held-out ones, and writes measured.onnx, its record and the bundle."""
    check_feature_names(FEATURE_NAMES)
    lists = read_lists(request.cells, request.plan)
    start = None if request.fine_tune is None else Start.read(request.fine_tune)
    if start is not None and start.manifest.evidence == lists.provenance.evidence:
        raise ArtefactError(
            f"{request.fine_tune} was itself trained on {lists.provenance.evidence} cells, which may be among those "
            "that judge here; leave --fine-tune out, or start from a bundle of another evidence class"
        )
    if request.bundle is not None:
        servable_default(lists, request.bundle)
    recipe = Recipe.of(request.settings, start)
    held_out, rule = _judged(lists, recipe, progress)
    fitted = recipe.fit(lists, np.ones(len(lists.group), np.bool_))
    used = {"fine_tuned": start is not None, "point": asdict(recipe.point), **asdict(recipe.settings)}
    record = {
        "schema_version": SCHEMA_VERSION,
        "model": {"file": MODEL, "sha256": sha256_bytes(fitted.graph), "train_loss": fitted.loss},
        "trained_on": _trained_on(lists, start),
        "recipe": used,
        "held_out": held_out,
        "bundle": None,
        "disagreement": None if request.simulated is None else disagreement(request.cells, request.simulated),
    }
    if request.bundle is not None and rule is not None:
        made = Made(lists=lists, fitted=fitted, start=start, rule=rule, evaluation=held_out, recipe=used)
        record["bundle"] = _written(request.bundle, made)
    write_atomically(request.work / MODEL, fitted.graph)
    write_atomically(request.work / RECORD, canonical_json(record))
    return record


def _judged(
    lists: MeasuredLists, recipe: Recipe, progress: Callable[[list[NDArray[np.bool_]]], Folds]
) -> tuple[dict[str, Any] | None, Rule | None]:
    """The evaluation, None where nothing can be held out; and the rule, None where the service could follow none."""
    default, others = default_column(lists), columns_of_the_15(lists)
    if default is not None:
        others[default] = False
    folds = folds_of(lists.group)
    ruled = default if others.any() else None
    if len(folds) < 2:
        return None, None if ruled is None else never(lists, default=ruled)
    scores = score_held_out(lists, recipe, progress(folds))
    rule = None if ruled is None else choose_rule(lists, scores, default=ruled)
    return evaluate(lists, scores, start=recipe.start, rule=rule, bootstrap=BootstrapSettings()), rule


def _written(folder: Path, made: Made) -> dict[str, Any]:
    manifest, parity = write_bundle(folder, made)
    judged = manifest.held_out
    return {
        "folder": str(folder),
        "version": manifest.version,
        "evidence": manifest.evidence,
        "parity": parity,
        "margin": made.rule.margin,
        "sets_flags": made.rule.margin < NEVER_MARGIN,
        "held_out": None if judged is None else asdict(judged),
    }


def _trained_on(lists: MeasuredLists, start: Start | None) -> dict[str, Any]:
    manifest = None if start is None else start.manifest
    return {
        "provenance": asdict(lists.provenance),
        "plan_sha256": lists.plan_sha256,
        "cells_sha256": lists.cells_sha256,
        "lists": len(lists.group),
        "lists_that_teach": int(lists.teaches.sum()),
        "configurations": list(lists.config_ids),
        "started_from": None
        if manifest is None
        else {"name": manifest.name, "version": manifest.version, "evidence": manifest.evidence},
    }


def sentences(record: dict[str, Any]) -> list[str]:
    """The record for a terminal."""
    about = record["trained_on"]
    evidence, started = about["provenance"]["evidence"], about["started_from"]
    began = "anew" if started is None else f"on from {started['name']} ({started['evidence']})"
    lines = [
        f"trained {began}: {about['lists_that_teach']} of {about['lists']} {evidence} lists teach an order, "
        f"{len(about['configurations'])} configurations each; weights sha256 {record['model']['sha256']}"
    ]
    held_out = record["held_out"]
    if held_out is None:
        lines.append("not evaluated: all lists are of one model and workload, so none can be held out")
    else:
        lines.append(f"held out by model and workload, {held_out['n']} lists, judged by {held_out['evidence']} cells:")
        for name, row in held_out["policies"].items():
            regret = "–" if row["slo_regret"] is None else f"{row['slo_regret']:.3f}"
            lines.append(
                f"  {name}: violation {row['slo_violation_rate']:.3f}, goodput {row['goodput_tps']:.4g} tok/s, "
                f"slo_regret {regret}"
            )
        for name, compared in held_out["comparisons"].items():
            one = compared["goodput_tps"]
            lines.append(f"  {name}: goodput {one['delta']:+.4g} [{one['ci'][0]:.4g}, {one['ci'][1]:.4g}] tok/s")
    return [*lines, *_disagreement_sentences(record["disagreement"]), *_bundle_sentences(record["bundle"])]


def _bundle_sentences(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["no bundle written; --bundle FOLDER writes one that the service loads"]
    judged = found["held_out"]
    lines = [f"bundle {found['folder']}: {found['version']}, parity with torch {found['parity']:.1e}"]
    if not found["sets_flags"]:
        lines.append(
            f"  it never sets flags: of {judged['advised']} held-out workloads in which it would have, the share that "
            f"does worse is bounded by {judged['worse_upper95']:.0%} only; from {MOST_RISK:.0%} on none are set"
        )
    elif judged["worse_upper95"] > PROMISED_RISK:
        lines.append(
            f"  it sets flags where the gain in score exceeds {found['margin']:.4g}; that it does worse than the "
            f"engine's default in fewer than {judged['worse_upper95']:.0%} of workloads is all that "
            f"{judged['advised']} held-out ones show, and every answer with flags says so"
        )
    return lines


def _disagreement_sentences(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    choices = found["choices"]
    lines = [
        f"{found['with']['evidence']} against {found['compared']['evidence']}, {found['shared']} shared cells: "
        f"SLO verdicts alike in {found['slo_verdicts_alike']}, best configuration alike in {choices['alike']} of "
        f"{choices['scenarios']} scenarios"
    ]
    for metric, error in found["relative_error"].items():
        if error["n"]:
            lines.append(
                f"  {metric}: median {error['median']:+.1%}, p5 to p95 {error['p5']:+.1%} to {error['p95']:+.1%}, "
                f"{error['n']} cells"
            )
    return lines
