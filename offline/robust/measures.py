"""What choices cost, scenario by scenario, and differences between policies with intervals.

A scenario's value is the mean over its draws, and the bootstrap draws whole clusters of scenarios (model × announced
workload, or models), because draws of one scenario are not independent of one another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.comparison import finite
from offline.metrics import percentile
from offline.robust.choices import Choices
from offline.robust.estimator import GOODPUT_SLACK
from offline.robust.lists import DEFAULT_ROW, Floats, Lists
from offline.robust.panel import Panel
from offline.robust.targets import utilities

CONFIDENCE = 0.95
TAIL_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """Outcomes of one policy's choices, [scenarios, draws] each. servable: some configuration meets the SLO."""

    choices: Choices
    throughput_tps: Floats
    ttft_p95_ms: Floats
    met: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    best_tps: Floats
    servable: NDArray[np.bool_]


def pick(panel: Panel, choices: Choices) -> Picked:
    """The outcomes under one choice per scenario. best_tps: of the 15 candidates that meet the SLO, NaN if none."""
    rows = np.arange(len(panel))
    judged = panel.judged
    candidates = np.where(judged.met, judged.throughput_tps, -np.inf)[:, :, :DEFAULT_ROW].max(axis=2)
    return Picked(
        choices=choices,
        throughput_tps=judged.throughput_tps[rows, :, choices],
        ttft_p95_ms=judged.ttft_p95_ms[rows, :, choices],
        met=judged.met[rows, :, choices],
        failed=judged.failed[rows, :, choices],
        best_tps=np.where(np.isfinite(candidates), candidates, np.nan),
        servable=np.asarray(judged.met.any(axis=2), dtype=np.bool_),
    )


def per_scenario(picked: Picked) -> dict[str, Floats]:
    """[scenarios] values of each mean metric; NaN where a metric leaves a scenario out."""
    goodput = np.where(picked.met, picked.throughput_tps, 0.0)
    with np.errstate(invalid="ignore"):
        regret = 1 - picked.throughput_tps / picked.best_tps
        slo_regret = 1 - goodput / picked.best_tps
    return {
        "slo_violation_rate": (~picked.met).mean(axis=1),
        "failure_rate": picked.failed.mean(axis=1),
        "output_throughput_tps": picked.throughput_tps.mean(axis=1),
        "goodput_tps": goodput.mean(axis=1),
        "regret": _mean_defined(regret),
        "slo_regret": _mean_defined(slo_regret),
    }


def _mean_defined(values: Floats) -> Floats:
    defined = ~np.isnan(values)
    count = defined.sum(axis=1)
    total = np.where(defined, values, 0.0).sum(axis=1)
    return np.asarray(np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0), dtype=np.float64)


def policy_row(picked: Picked) -> dict[str, Any]:
    """A policy's line of evaluation.json. The tail is over draws that some configuration serves; failures are +inf."""
    values = per_scenario(picked)
    return {
        **{name: _nanmean(column) for name, column in values.items()},
        "ttft_p95_p95_ms": finite(float(percentile(picked.ttft_p95_ms[picked.servable], TAIL_SHARE)))
        if picked.servable.any()
        else None,
        "n_no_feasible": int(np.isnan(picked.best_tps).sum()),
        "coverage": float((picked.choices != DEFAULT_ROW).mean()),
    }


def _nanmean(values: Floats) -> float | None:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """[replicates, scenarios] weights: how often each scenario was drawn with its cluster."""

    weights: Floats

    @classmethod
    def of(cls, clusters: NDArray[Any], *, replicates: int, seed: int) -> "Resampling":
        """Clusters drawn with replacement, as many as there are."""
        _, member = np.unique(clusters, return_inverse=True)
        count = int(member.max()) + 1
        generator = np.random.default_rng(seed)
        drawn = generator.multinomial(count, np.full(count, 1 / count), size=replicates)
        return cls(weights=drawn[:, member].astype(np.float64))

    def means(self, values: Floats) -> Floats:
        """[replicates] weighted means of [scenarios] values; NaN scenarios are left out."""
        defined = ~np.isnan(values)
        total = self.weights[:, defined] @ values[defined]
        return np.asarray(total / np.maximum(self.weights[:, defined].sum(axis=1), 1e-12))


def interval(replicates: Floats) -> list[float | None]:
    """The percentile interval; undefined replicates do not count."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return [None, None]
    tail = (1 - CONFIDENCE) / 2
    return [finite(float(percentile(defined, share))) for share in (tail, 1 - tail)]


def compare(picked: Picked, base: Picked, resampling: Resampling) -> dict[str, Any]:
    """policy − base for each mean metric, policy ÷ base for the tail, and the rates that need both."""
    ours, theirs = per_scenario(picked), per_scenario(base)
    result: dict[str, Any] = {}
    for name, column in ours.items():
        difference = column - theirs[name]
        result[name] = {"delta": _nanmean(difference), "ci": interval(resampling.means(difference))}
    unsafe = (base.met & ~picked.met).mean(axis=1)
    repaired = (~base.met & picked.met).mean(axis=1)
    worse = worse_draws(picked, base).mean(axis=1)
    result["ttft_tail_ratio"] = _tail_ratio(picked, base, resampling)
    result["unsafe_rate"] = {"value": float(unsafe.mean()), "upper95": _upper(resampling.means(unsafe))}
    result["worse_rate"] = {"value": float(worse.mean()), "upper95": _upper(resampling.means(worse))}
    result["repaired_rate"] = {"value": float(repaired.mean())}
    result["coverage"] = float((picked.choices != DEFAULT_ROW).mean())
    return result


def risk_of(picked: Picked, base: Picked, supported: NDArray[np.bool_], resampling: Resampling) -> dict[str, Any]:
    """Share of the draws that went worse than the base: with flags set, of all draws; with any answer, in support."""
    worse = worse_draws(picked, base).mean(axis=1)
    shares = {
        "where set": np.where(picked.choices != DEFAULT_ROW, worse, 0.0),
        "in support": np.where(supported, worse, np.nan),
    }
    return {
        name: {"value": _nanmean(share), "upper95": None if np.isnan(share).all() else _upper(resampling.means(share))}
        for name, share in shares.items()
    }


def worse_draws(picked: Picked, base: Picked) -> NDArray[np.bool_]:
    """[scenarios, draws] whether a draw went worse: its SLO newly violated, or goodput more than the slack below."""
    kept = picked.met & (picked.throughput_tps >= (1 - GOODPUT_SLACK) * base.throughput_tps)
    return np.asarray(base.met & ~kept, dtype=np.bool_)


def judged(panel: Panel, chosen: Choices) -> dict[str, float]:
    """Mean utility (a violation costs 1) and differences from the engine's default, without intervals."""
    utility = utilities(panel.judged, violation=1.0)
    ours, base = pick(panel, chosen), pick(panel, np.full(len(panel), DEFAULT_ROW, dtype=np.int64))
    mine, theirs = per_scenario(ours), per_scenario(base)
    return {
        "utility": float(utility[np.arange(len(panel)), :, chosen].mean()),
        "violations_vs_default": float((mine["slo_violation_rate"] - theirs["slo_violation_rate"]).mean()),
        "goodput_vs_default_tps": float((mine["goodput_tps"] - theirs["goodput_tps"]).mean()),
        "worse_rate": float(worse_draws(ours, base).mean()),
        "coverage": float((chosen != DEFAULT_ROW).mean()),
    }


def _upper(replicates: Floats) -> float:
    return float(percentile(replicates, 0.95))


def _tail_ratio(picked: Picked, base: Picked, resampling: Resampling) -> dict[str, Any]:
    """Weighted 95th percentiles of p95 TTFT over servable draws, ours ÷ base's."""
    servable = picked.servable | base.servable
    if not servable.any():
        return {"value": None, "ci": [None, None]}
    scenario = np.repeat(np.arange(len(servable)), servable.sum(axis=1))
    ours, theirs = (_Tail.of(one.ttft_p95_ms[servable], scenario) for one in (picked, base))
    once = np.ones(len(servable))
    value = _ratio(ours.at(once), theirs.at(once))
    replicates = np.array([_ratio(ours.at(row), theirs.at(row)) for row in resampling.weights])
    return {"value": finite(value), "ci": interval(replicates)}


def _ratio(ours: float, theirs: float) -> float:
    if np.isinf(ours) and np.isinf(theirs):
        return 1.0
    return ours / theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """Latencies in ascending order, with the scenario of each."""

    latency_ms: Floats
    scenario: NDArray[np.int64]

    @classmethod
    def of(cls, latency_ms: Floats, scenario: NDArray[np.int64]) -> "_Tail":
        order = np.argsort(latency_ms, kind="stable")
        return cls(latency_ms=latency_ms[order], scenario=scenario[order])

    def at(self, weights: Floats) -> float:
        """The weighted percentile: the first latency at which 95 % of the weight has been passed."""
        passed = np.cumsum(weights[self.scenario])
        return float(self.latency_ms[int(np.searchsorted(passed, TAIL_SHARE * passed[-1]))])


def captured(picked: Picked, base: Picked, oracle: Picked, resampling: Resampling) -> dict[str, Any]:
    """What of the oracle's gain over base the policy has: goodput, and reduction of violations; None if no gain."""
    ours, theirs, best = (per_scenario(one) for one in (picked, base, oracle))
    result: dict[str, Any] = {}
    for name, sign in (("goodput_tps", 1.0), ("slo_violation_rate", -1.0)):
        gain, room = sign * (ours[name] - theirs[name]), sign * (best[name] - theirs[name])
        share = resampling.means(gain) / np.where(resampling.means(room) > 0, resampling.means(room), np.nan)
        total = float(room.mean())
        result[name] = {
            "value": float(gain.mean()) / total if total > 0 else None,
            "ci": interval(share),
            "gain": sign * float(gain.mean()),
            "oracle_gain": sign * total,
        }
    return result


def clusters_of(scenarios: Lists) -> NDArray[Any]:
    """Model × announced workload; scenarios of a sweep that differ in the swept ratio alone are one cluster."""
    parts = (scenarios.columns[n].astype(str) for n in ("model", "prompt_tokens", "max_new_tokens", "concurrency"))
    return np.array(["|".join(row) for row in zip(*parts, strict=True)])


def tabulate(panel: Panel, choices: Mapping[str, Choices]) -> dict[str, dict[str, Any]]:
    """A line per policy."""
    return {name: policy_row(pick(panel, one)) for name, one in choices.items()}
