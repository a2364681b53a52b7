"""Tables of a set: every policy's line, the variant as it is served against both bases, what of the oracle's gain it
has, and how good its estimator is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.onnx_graph import run_graph
from offline.robust import choices as choose
from offline.robust import protocol as names
from offline.robust.calibration import Calibrated
from offline.robust.choices import Choices
from offline.robust.curves import coverage_and_risk, map_of, reliabilities, where_it_matters
from offline.robust.forecast import forecast_errors
from offline.robust.lists import DEFAULT_ROW, configurations
from offline.robust.measures import (
    Picked,
    Resampling,
    captured,
    clusters_of,
    compare,
    interval,
    per_scenario,
    pick,
    risk_of,
    tabulate,
)
from offline.robust.models import Rivals
from offline.robust.network import FitSettings
from offline.robust.panel import Panel
from offline.robust.rule import Question, in_support
from offline.robust.variants import EXACT, TYPICAL
from service.domain.errors import ArtefactError
from service.domain.gpu import B200
from service.domain.slo import REFERENCE_SLO

REPLICATES, BOOTSTRAP_SEED = 2000, 7
WORST = 10
# Tail ratios cost the most; comparisons of the table's other policies do without their intervals.
COMPARED = (names.SINGLE_BEST, names.LIGHTGBM, names.REFERENCE, names.NOMINAL, names.WITH_TYPICAL, names.ALWAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """Answers the scenarios of a set. variants: by name; reference: the reference bundle's graph."""

    variants: dict[str, Calibrated]
    rivals: Rivals
    reference: bytes
    settings: FitSettings

    def choices(self, panel: Panel, variant: str) -> dict[str, Choices]:
        """By policy, in table order; oracles not among them. Rivals were trained for typical workloads on the B200."""
        lists = panel.scenarios
        one = self.variants[variant]
        question = one.question(lists)
        found = {
            names.FIXED: choose.fixed(lists),
            names.ENGINE_DEFAULT: choose.engine_default(lists),
            names.HEUR: choose.heuristic(lists),
        }
        if variant == TYPICAL:
            features = lists.features()
            reference = run_graph(self.reference, np.ascontiguousarray(features[:, :DEFAULT_ROW]))
            nominal = self.variants[EXACT].pair.ranker.score(features)
            found |= {
                names.SINGLE_BEST: choose.single(lists, self.rivals.single_best),
                names.LIGHTGBM: choose.trees(lists, self.rivals.trees),
                names.REFERENCE: choose.highest_candidate(lists, reference),
                names.NOMINAL: choose.with_abstention(lists, nominal, margin=0.0),
            }
        elif lists.gpu == B200:
            typical = self.variants[TYPICAL]
            found[names.WITH_TYPICAL] = typical.question(lists).choices(typical.rule)
        return {
            **found,
            names.ALWAYS: choose.with_abstention(lists, question.scores, margin=0.0),
            names.ROBUST: question.choices(one.rule),
        }


def evaluate(panel: Panel, answerer: Answerer, variant: str) -> dict[str, Any]:
    """The whole table of a set."""
    chosen = answerer.choices(panel, variant)
    picked = {name: pick(panel, one) for name, one in chosen.items()}
    resampling = Resampling.of(clusters_of(panel.scenarios), replicates=REPLICATES, seed=BOOTSTRAP_SEED)
    one = answerer.variants[variant]
    supported = in_support(panel.scenarios, one.support)
    table: dict[str, Any] = {
        "n": len(panel),
        "draws": panel.draws,
        "gpu": panel.scenarios.gpu.name,
        "in_support": float(supported.mean()),
        "policies": tabulate(panel, chosen),
        "comparisons": {
            f"{names.ROBUST}-vs-{base}": compare(picked[names.ROBUST], picked[base], resampling) for base in names.BASES
        },
        "risk": {base: risk_of(picked[names.ROBUST], picked[base], supported, resampling) for base in names.BASES},
        "by_stratum": _by_stratum(panel, picked),
        "chosen": _chosen(chosen[names.ROBUST]),
        "worst": _worst(panel, picked),
        "where_it_matters": where_it_matters(panel, panel.judged, chosen[names.ROBUST], supported, answerer.settings),
        "map": map_of(panel, chosen[names.ROBUST], answerer.settings),
    }
    for name in COMPARED:
        if name in picked:
            table["comparisons"][f"{name}-vs-{names.ENGINE_DEFAULT}"] = compare_means(
                picked[name], picked[names.ENGINE_DEFAULT], resampling
            )
    if len(np.unique(panel.scenarios.model)) < 20:
        by_model = Resampling.of(panel.scenarios.model, replicates=REPLICATES, seed=BOOTSTRAP_SEED)
        table["by_model_clusters"] = {
            base: compare_means(picked[names.ROBUST], picked[base], by_model) for base in names.BASES
        }
    return {**table, **_estimator(panel, one, supported, answerer.settings)}


def _estimator(panel: Panel, one: Calibrated, supported: NDArray[np.bool_], settings: FitSettings) -> dict[str, Any]:
    """Of the scenarios in support: reliability, forecast errors, and the curve of coverage against risk."""
    rows = np.flatnonzero(supported)
    if not len(rows):
        return {}
    part = panel.part(rows)
    predicted = one.pair.estimator.predict(part.scenarios.features())
    question: Question = one.question(part.scenarios)
    return {
        "reliability": reliabilities(predicted, part.judged),
        "forecast": forecast_errors(predicted, part.judged),
        "coverage_risk": coverage_and_risk(part, question, one.rule, settings),
    }


def compare_means(picked: Picked, base: Picked, resampling: Resampling) -> dict[str, Any]:
    """Violations and goodput alone, policy − base with intervals, and how often flags were set."""
    ours, theirs = per_scenario(picked), per_scenario(base)
    found: dict[str, Any] = {
        name: {
            "delta": float((ours[name] - theirs[name]).mean()),
            "ci": interval(resampling.means(ours[name] - theirs[name])),
        }
        for name in ("slo_violation_rate", "goodput_tps")
    }
    return {**found, "coverage": float((picked.choices != DEFAULT_ROW).mean())}


def evaluate_oracles(panel: Panel, answerer: Answerer, variant: str) -> dict[str, Any]:
    """Oracles and the captured shares, on the scenarios that have draws for an oracle to choose by."""
    if panel.further is None or panel.nominal is None:
        raise ArtefactError("no draws for oracles to choose by; simulate the set whose name ends in -oracle")
    part = panel.part(panel.with_oracle)
    chosen = answerer.choices(part, variant)
    chosen[names.ORACLE_NOMINAL] = choose.oracle(panel.nominal.reshape(len(part), 1), answerer.settings)
    chosen[names.ORACLE_ROBUST] = choose.oracle(panel.further, answerer.settings)
    picked = {name: pick(part, one) for name, one in chosen.items()}
    base, best = picked[names.ENGINE_DEFAULT], picked[names.ORACLE_ROBUST]
    resampling = Resampling.of(clusters_of(part.scenarios), replicates=REPLICATES, seed=BOOTSTRAP_SEED)
    comparisons = {}
    for name in (*COMPARED, names.ROBUST, names.ORACLE_NOMINAL, names.ORACLE_ROBUST):
        if name not in picked:
            continue
        one = compare_means(picked[name], base, resampling)
        one["captured"] = captured(picked[name], base, best, resampling)
        one["oracle_gain_captured"] = one["captured"]["goodput_tps"]["value"]
        comparisons[f"{name}-vs-{names.ENGINE_DEFAULT}"] = one
    supported = in_support(part.scenarios, answerer.variants[variant].support)
    return {
        "n": len(part),
        "draws": part.draws,
        "in_support": float(supported.mean()),
        "policies": tabulate(part, chosen),
        "comparisons": comparisons,
        "where_it_matters": where_it_matters(part, panel.further, chosen[names.ROBUST], supported, answerer.settings),
    }


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
    ids = [one.config_id for one in configurations()[:DEFAULT_ROW]] + ["none: engine default"]
    return {ids[int(value)]: int(count) for value, count in zip(values, counts, strict=True)}


def _worst(panel: Panel, picked: dict[str, Picked]) -> list[dict[str, Any]]:
    """The scenarios in which the served answer loses most against the engine's default: violations, then goodput."""
    ours, base = per_scenario(picked[names.ROBUST]), per_scenario(picked[names.ENGINE_DEFAULT])
    more = ours["slo_violation_rate"] - base["slo_violation_rate"]
    lost = base["goodput_tps"] - ours["goodput_tps"]
    share = lost / np.maximum(base["goodput_tps"], 1.0)
    order = np.lexsort((-share, -more))[:WORST]
    columns = panel.scenarios.columns
    every = configurations(panel.scenarios.gpu)
    return [
        {
            "scenario": int(panel.scenarios.scenario[row]),
            "model": str(panel.scenarios.model[row]),
            **{
                name: columns[name][row].item()
                for name in ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
            },
            "chosen": every[int(picked[names.ROBUST].choices[row])].config_id,
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
    ttft = int((panel.judged.ttft_p95_ms[row, draws, choice] > REFERENCE_SLO.max_p95_ttft_ms).sum()) - failed
    tpot = int((panel.judged.tpot_p95_ms[row, draws, choice] > REFERENCE_SLO.max_p95_tpot_ms).sum()) - failed
    parts = [(failed, "nothing started or completed"), (ttft, "p95 TTFT over 3 s"), (tpot, "p95 TPOT over 60 ms")]
    text = ", ".join(f"{what} in {count}" for count, what in parts if count > 0)
    return f"of {panel.draws} draws the default kept the SLO in {int(base.met[row].sum())}: {text}"
