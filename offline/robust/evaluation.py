"""Tables of a set: every policy's line, the robust ranker against both bases, and what of the oracle's gain it has."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offline.onnx_graph import run_graph
from offline.robust import choices as choose
from offline.robust import protocol as names
from offline.robust.choices import Choices
from offline.robust.lists import CONFIGURATIONS, DEFAULT_ROW
from offline.robust.measures import (
    Picked,
    Resampling,
    captured,
    clusters_of,
    compare,
    interval,
    per_scenario,
    pick,
    tabulate,
)
from offline.robust.models import LARGE, NOMINAL, ROBUST, Models
from offline.robust.network import FitSettings
from offline.robust.panel import Panel
from service.domain.errors import ArtefactError

REPLICATES, BOOTSTRAP_SEED = 2000, 7
WORST = 10
# Tail ratios cost the most; comparisons of the table's other policies do without their intervals.
COMPARED = (names.SINGLE_BEST, names.LIGHTGBM, names.REFERENCE, names.NOMINAL, names.LARGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """Answers the scenarios of any set with every policy. reference: the reference bundle's graph."""

    models: Models
    reference: bytes
    settings: FitSettings
    margin: float

    def choices(self, panel: Panel) -> dict[str, Choices]:
        """By policy, in table order; oracles not among them."""
        lists = panel.scenarios
        features = lists.features()
        networks = {name: self.models.networks[name].score(features) for name in (ROBUST, NOMINAL, LARGE)}
        reference = run_graph(self.reference, np.ascontiguousarray(features[:, :DEFAULT_ROW]))
        return {
            names.FIXED: choose.fixed(lists),
            names.ENGINE_DEFAULT: choose.engine_default(lists),
            names.HEUR: choose.heuristic(lists),
            names.SINGLE_BEST: choose.single(lists, self.models.single_best),
            names.LIGHTGBM: choose.trees(lists, self.models.trees),
            names.REFERENCE: choose.highest_candidate(lists, reference),
            names.NOMINAL: choose.with_abstention(lists, networks[names.NOMINAL], margin=0.0),
            names.ROBUST: choose.with_abstention(lists, networks[names.ROBUST], margin=self.margin),
            names.LARGE: choose.with_abstention(lists, networks[names.LARGE], margin=self.margin),
        }


def evaluate(panel: Panel, answerer: Answerer) -> dict[str, Any]:
    """The whole table of a set."""
    chosen = answerer.choices(panel)
    picked = {name: pick(panel, one) for name, one in chosen.items()}
    clusters = clusters_of(panel.scenarios)
    resampling = Resampling.of(clusters, replicates=REPLICATES, seed=BOOTSTRAP_SEED)
    table: dict[str, Any] = {
        "n": len(panel),
        "draws": panel.draws,
        "policies": tabulate(panel, chosen),
        "comparisons": {
            f"{names.ROBUST}-vs-{base}": compare(picked[names.ROBUST], picked[base], resampling) for base in names.BASES
        },
        "by_stratum": _by_stratum(panel, picked),
        "chosen": _chosen(chosen[names.ROBUST]),
        "worst": _worst(panel, picked),
    }
    for name in COMPARED:
        table["comparisons"][f"{name}-vs-{names.ENGINE_DEFAULT}"] = _means_only(
            picked[name], picked[names.ENGINE_DEFAULT], resampling
        )
    if len(np.unique(panel.scenarios.model)) < 20:
        by_model = Resampling.of(panel.scenarios.model, replicates=REPLICATES, seed=BOOTSTRAP_SEED)
        table["by_model_clusters"] = {
            base: _means_only(picked[names.ROBUST], picked[base], by_model) for base in names.BASES
        }
    return table


def _means_only(picked: Picked, base: Picked, resampling: Resampling) -> dict[str, Any]:
    full = compare_means(picked, base, resampling)
    full["coverage"] = float((picked.choices != DEFAULT_ROW).mean())
    return full


def compare_means(picked: Picked, base: Picked, resampling: Resampling) -> dict[str, Any]:
    """Violations and goodput alone, policy − base with intervals."""
    ours, theirs = per_scenario(picked), per_scenario(base)
    return {
        name: {
            "delta": float((ours[name] - theirs[name]).mean()),
            "ci": interval(resampling.means(ours[name] - theirs[name])),
        }
        for name in ("slo_violation_rate", "goodput_tps")
    }


def evaluate_oracles(panel: Panel, answerer: Answerer) -> dict[str, Any]:
    """Oracles and the captured shares, on the scenarios that have draws for an oracle to choose by."""
    if panel.further is None or panel.nominal is None:
        raise ArtefactError("no draws for oracles to choose by; simulate the set whose name ends in -oracle")
    part, rows = panel.part(panel.with_oracle), panel.with_oracle
    chosen = answerer.choices(part)
    chosen[names.ORACLE_NOMINAL] = choose.oracle(panel.nominal[rows].reshape(len(part), 1), answerer.settings)
    chosen[names.ORACLE_ROBUST] = choose.oracle(panel.further, answerer.settings)
    picked = {name: pick(part, one) for name, one in chosen.items()}
    base, best = picked[names.ENGINE_DEFAULT], picked[names.ORACLE_ROBUST]
    resampling = Resampling.of(clusters_of(part.scenarios), replicates=REPLICATES, seed=BOOTSTRAP_SEED)
    comparisons = {}
    for name in (names.ROBUST, *COMPARED, names.ORACLE_NOMINAL, names.ORACLE_ROBUST):
        one = _means_only(picked[name], base, resampling)
        one["captured"] = captured(picked[name], base, best, resampling)
        one["oracle_gain_captured"] = one["captured"]["goodput_tps"]["value"]
        comparisons[f"{name}-vs-{names.ENGINE_DEFAULT}"] = one
    return {"n": len(part), "draws": part.draws, "policies": tabulate(part, chosen), "comparisons": comparisons}


def _by_stratum(panel: Panel, picked: dict[str, Picked]) -> dict[str, Any]:
    """The differences from both bases in each stratum, without intervals."""
    result: dict[str, Any] = {}
    for stratum in sorted(set(panel.scenarios.stratum.tolist())):
        rows = panel.scenarios.stratum == stratum
        ours = per_scenario(picked[names.ROBUST])
        result[stratum] = {"n": int(rows.sum())}
        for base in names.BASES:
            theirs = per_scenario(picked[base])
            result[stratum][base] = {
                name: float((ours[name] - theirs[name])[rows].mean()) for name in ("slo_violation_rate", "goodput_tps")
            }
    return result


def _chosen(chosen: Choices) -> dict[str, int]:
    """How often each configuration was chosen."""
    values, counts = np.unique(chosen, return_counts=True)
    ids = [one.config_id for one in CONFIGURATIONS[:DEFAULT_ROW]] + ["none: engine default"]
    return {ids[int(value)]: int(count) for value, count in zip(values, counts, strict=True)}


def _worst(panel: Panel, picked: dict[str, Picked]) -> list[dict[str, Any]]:
    """The scenarios in which the robust ranker loses most against the engine's default: violations, then goodput."""
    ours, base = per_scenario(picked[names.ROBUST]), per_scenario(picked[names.ENGINE_DEFAULT])
    more = ours["slo_violation_rate"] - base["slo_violation_rate"]
    lost = base["goodput_tps"] - ours["goodput_tps"]
    share = lost / np.maximum(base["goodput_tps"], 1.0)
    order = np.lexsort((-share, -more))[:WORST]
    columns = panel.scenarios.columns
    return [
        {
            "scenario": int(panel.scenarios.scenario[row]),
            "model": str(panel.scenarios.model[row]),
            **{
                name: columns[name][row].item()
                for name in ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
            },
            "chosen": CONFIGURATIONS[int(picked[names.ROBUST].choices[row])].config_id,
            "violations": [float(ours["slo_violation_rate"][row]), float(base["slo_violation_rate"][row])],
            "goodput_tps": [float(ours["goodput_tps"][row]), float(base["goodput_tps"][row])],
            "reason": _reason(panel, picked, int(row)),
        }
        for row in order
    ]


def _reason(panel: Panel, picked: dict[str, Picked], row: int) -> str:
    """Which limit of the SLO the choice broke where the default kept it, read off the draws."""
    ours, base = picked[names.ROBUST], picked[names.ENGINE_DEFAULT]
    broken = base.met[row] & ~ours.met[row]
    if not broken.any():
        return "no violation added; throughput lost"
    draws = np.arange(panel.draws)[broken]
    choice = int(ours.choices[row])
    failed = int(panel.judged.failed[row, draws, choice].sum())
    ttft = int((panel.judged.ttft_p95_ms[row, draws, choice] > 3000).sum()) - failed
    tpot = int((panel.judged.tpot_p95_ms[row, draws, choice] > 60).sum()) - failed
    parts = [(failed, "nothing started or completed"), (ttft, "p95 TTFT over 3 s"), (tpot, "p95 TPOT over 60 ms")]
    text = ", ".join(f"{what} in {count}" for count, what in parts if count > 0)
    return f"of {panel.draws} draws the default kept the SLO in {int(base.met[row].sum())}: {text}"
