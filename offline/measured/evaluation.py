"""What measured training is worth: every list is judged by a ranker that saw no list of its model and workload.

Only the lists' own cells judge, so an evaluation has one evidence class whatever the ranker started from.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.bootstrap import mean_difference_interval, resamples
from offline.measured.lists import MeasuredLists
from offline.measured.start import Start
from offline.measured.training import Recipe
from offline.metrics import MEAN_METRICS, Picked, mean_of
from offline.settings import BootstrapSettings
from service.domain.candidate import CANDIDATES, FIXED_INDEX
from service.domain.gpu import GPUS

MOST_FOLDS = 5
TRAINED, STARTED, SINGLE, ORACLE = "TRAINED", "START", "SINGLE_BEST", "ORACLE"
FIXED, ENGINE_DEFAULT = "FIXED", "ENGINE_DEFAULT"
COMPARED = ("slo_violation_rate", "goodput_tps")


def folds_of(group: Iterable[str]) -> list[NDArray[np.bool_]]:
    """Up to five disjoint sets of lists ([lists] each) that together are all; a group is never in two of them."""
    named = np.array(list(group))
    groups = sorted(set(named.tolist()))
    count = min(MOST_FOLDS, len(groups))
    return [np.isin(named, groups[number::count]) for number in range(count)]


def evaluate(
    lists: MeasuredLists, recipe: Recipe, *, bootstrap: BootstrapSettings, folds: Iterable[NDArray[np.bool_]]
) -> dict[str, Any]:
    """Policies on held-out lists, with intervals against the best single configuration and against the start."""
    chosen = {TRAINED: np.zeros(len(lists.group), np.int64), SINGLE: np.zeros(len(lists.group), np.int64)}
    for held_out in folds:
        if not lists.teaches[~held_out].any():
            # Nothing to learn an order from: the first configuration, as ties go to the first.
            continue
        fitted = recipe.fit(lists, ~held_out)
        chosen[TRAINED][held_out] = fitted.score(lists.features[held_out]).argmax(axis=1)
        chosen[SINGLE][held_out] = int(_worth(lists)[~held_out].mean(axis=0).argmax())
    chosen.update(_without_training(lists, recipe.start))
    picked = {name: _pick(lists, choices) for name, choices in chosen.items()}
    draws = resamples(len(lists.group), bootstrap)
    bases = [name for name in (SINGLE, STARTED, FIXED, ENGINE_DEFAULT) if name in picked]
    return {
        "evidence": lists.provenance.evidence,
        "n": len(lists.group),
        "n_no_feasible": int((~lists.teaches).sum()),
        "groups": len(set(lists.group)),
        "policies": {
            name: {metric: mean_of(of(one)) for metric, of in MEAN_METRICS.items()} for name, one in picked.items()
        },
        "comparisons": {
            f"{TRAINED}-vs-{base}": _compared(picked[TRAINED], picked[base], draws, bootstrap) for base in bases
        },
    }


def _worth(lists: MeasuredLists) -> NDArray[np.float64]:
    """Utility, with the lists that teach nothing counting alike for all."""
    return np.where(lists.teaches[:, None], lists.utilities(), 0.0)


def _without_training(lists: MeasuredLists, start: Start | None) -> dict[str, NDArray[np.int64]]:
    chosen = {ORACLE: lists.utilities().argmax(axis=1)}
    if start is not None:
        chosen[STARTED] = start.scores(lists.features).argmax(axis=1)
    named = {FIXED: CANDIDATES[FIXED_INDEX].config_id}
    for gpu in GPUS:
        if gpu.name == lists.provenance.gpu:
            named[ENGINE_DEFAULT] = gpu.engine_default.config_id
    for name, config_id in named.items():
        if config_id in lists.config_ids:
            chosen[name] = np.full(len(lists.group), lists.config_ids.index(config_id))
    return chosen


def _pick(lists: MeasuredLists, choices: NDArray[np.int64]) -> Picked:
    rows = np.arange(len(choices))
    return Picked(
        throughput_tps=lists.throughput_tps[rows, choices],
        ttft_p95_ms=lists.ttft_p95_ms[rows, choices],
        tpot_p95_ms=lists.tpot_p95_ms[rows, choices],
        slo_met=lists.slo_met[rows, choices],
        failed=lists.failed[rows, choices],
        best_tps=lists.best_tps(),
    )


def _compared(
    picked: Picked, base: Picked, draws: NDArray[np.int64], bootstrap: BootstrapSettings
) -> dict[str, dict[str, Any]]:
    found = {}
    for metric in COMPARED:
        ours, theirs = MEAN_METRICS[metric](picked), MEAN_METRICS[metric](base)
        low, high = mean_difference_interval(ours, theirs, draws=draws, confidence=bootstrap.confidence)
        found[metric] = {"delta": float((ours - theirs).mean()), "ci": [low, high]}
    return found
