"""What measured training is worth: every list is judged by a ranker that saw no list of its model and workload.

Only the lists' own cells judge, so an evaluation has one evidence class whatever the ranker started from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.bootstrap import mean_difference_interval, resamples
from offline.measured.abstention import Rule
from offline.measured.held_out import HeldOutScores, default_column
from offline.measured.lists import MeasuredLists
from offline.measured.start import Start
from offline.metrics import MEAN_METRICS, Picked, mean_of
from offline.settings import BootstrapSettings
from service.domain.candidate import CANDIDATES, FIXED_INDEX

TRAINED, STARTED, SINGLE, ORACLE = "TRAINED", "START", "SINGLE_BEST", "ORACLE"
FIXED, ENGINE_DEFAULT = "FIXED", "ENGINE_DEFAULT"
# TRAINED behind the rule of abstention, each fold under the margin that the other folds chose: what a bundle does.
SERVED = "SERVED"
COMPARED = ("slo_violation_rate", "goodput_tps")


def evaluate(
    lists: MeasuredLists,
    held_out: HeldOutScores,
    *,
    start: Start | None,
    rule: Rule | None,
    bootstrap: BootstrapSettings,
) -> dict[str, Any]:
    """Policies on held-out lists, with intervals against the best single configuration and against the start.

    rule: where the engine's default was measured and one of the 15 was; SERVED is what it comes to.
    """
    chosen = {TRAINED: _highest(held_out.scores), SINGLE: held_out.single}
    if rule is not None:
        chosen[SERVED] = rule.served
    chosen.update(_without_training(lists, start))
    picked = {name: _pick(lists, choices) for name, choices in chosen.items()}
    draws = group_resamples(lists.group, bootstrap)
    pairs = [
        (ours, base)
        for ours in (TRAINED, SERVED)
        for base in (SINGLE, STARTED, FIXED, ENGINE_DEFAULT)
        if ours in picked and base in picked
    ]
    return {
        "evidence": lists.provenance.evidence,
        "n": len(lists.group),
        "n_no_feasible": int((~lists.teaches).sum()),
        "groups": len(set(lists.group)),
        "policies": {
            name: {metric: mean_of(of(one)) for metric, of in MEAN_METRICS.items()} for name, one in picked.items()
        },
        "comparisons": {
            f"{ours}-vs-{base}": _compared(picked[ours], picked[base], draws, bootstrap) for ours, base in pairs
        },
    }


def _highest(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """[lists]; the first where there was nothing to learn from, as ties go to the first."""
    return np.asarray(np.nan_to_num(scores, nan=-np.inf).argmax(axis=1), dtype=np.int64)


def _without_training(lists: MeasuredLists, start: Start | None) -> dict[str, NDArray[np.int64]]:
    chosen = {ORACLE: lists.utilities().argmax(axis=1)}
    if start is not None:
        chosen[STARTED] = start.scores(lists.features).argmax(axis=1)
    columns = {ENGINE_DEFAULT: default_column(lists)}
    fixed = CANDIDATES[FIXED_INDEX].config_id
    if fixed in lists.config_ids:
        columns[FIXED] = lists.config_ids.index(fixed)
    for name, column in columns.items():
        if column is not None:
            chosen[name] = np.full(len(lists.group), column)
    return chosen


def group_resamples(group: Sequence[str], settings: BootstrapSettings) -> NDArray[np.int64]:
    """[replicates, indices]: whole groups drawn with replacement, since concurrencies of one workload resemble each
    other. A shorter group is filled up with an index one behind the last list, whose value is to be NaN."""
    named = np.array(group)
    parts = [np.flatnonzero(named == name) for name in sorted(set(group))]
    members = np.full((len(parts), max(map(len, parts))), len(group), dtype=np.int64)
    for row, part in zip(members, parts, strict=True):
        row[: len(part)] = part
    drawn: NDArray[np.int64] = members[resamples(len(parts), settings)].reshape(settings.replicates, -1)
    return drawn


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
        low, high = mean_difference_interval(
            np.append(ours, np.nan), np.append(theirs, np.nan), draws=draws, confidence=bootstrap.confidence
        )
        found[metric] = {"delta": float((ours - theirs).mean()), "ci": [low, high]}
    return found
