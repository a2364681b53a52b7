"""What a report draws: coverage against risk, reliability, a map of the best configuration, regret by scenario."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.robust.choices import Choices
from offline.robust.estimator import Predicted, happened, reliability
from offline.robust.lists import DEFAULT_ROW, Floats, Outcomes, configurations
from offline.robust.measures import pick, worse_draws
from offline.robust.network import FitSettings, utilities_of
from offline.robust.panel import Panel
from offline.robust.rule import Question, Rule
from service.domain.manifest import CHANCES

# A choice matters where the best expected utility exceeds the engine default's by more than this.
MATTERS_ABOVE = 0.05
CURVE_PRICES = (60.0, 30.0, 20.0, 15.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0, 1.0, 0.5, 0.0)
PROMPT_EDGES = (16, 128, 512, 2048, 8192, 32_769)
CONCURRENCY_EDGES = (1, 4, 16, 64, 256, 1025)


def expected_gain(panel: Panel, outcomes: Outcomes, settings: FitSettings) -> tuple[NDArray[np.int64], Floats]:
    """[n] the configuration of most expected utility among those that start, and its gain over the engine default's."""
    mean = utilities_of(outcomes, settings).mean(axis=1)
    best = np.where(panel.scenarios.starts, mean, -np.inf).argmax(axis=1)
    return best, np.asarray(mean[np.arange(len(panel)), best] - mean[:, DEFAULT_ROW])


def where_it_matters(
    panel: Panel, outcomes: Outcomes, chosen: Choices, supported: NDArray[np.bool_], settings: FitSettings
) -> dict[str, Any]:
    """How many scenarios in support those are, and in what share of them flags are set."""
    matters = (expected_gain(panel, outcomes, settings)[1] > MATTERS_ABOVE) & supported
    count = int(matters.sum())
    return {"n": count, "coverage": float((chosen[matters] != DEFAULT_ROW).mean()) if count else None}


def reliabilities(predicted: Predicted, outcomes: Outcomes) -> dict[str, Any]:
    """Of each chance, over all draws and the configurations that it is about.

    predicted: [n, 16, …], outcomes: [n, draws, 16].
    """
    draws = outcomes.met.shape[1]
    repeated = np.repeat(predicted.chances[:, None], draws, axis=1)
    return {
        name: reliability(repeated[..., rows, k], came[..., rows])
        for k, (name, (came, rows)) in enumerate(zip(CHANCES, happened(outcomes), strict=True))
    }


def coverage_and_risk(panel: Panel, question: Question, rule: Rule, settings: FitSettings) -> list[dict[str, float]]:
    """One point for each price of risk, the rule's own among them."""
    base = pick(panel, np.full(len(panel), DEFAULT_ROW, dtype=np.int64))
    matters = expected_gain(panel, panel.judged, settings)[1] > MATTERS_ABOVE
    points = []
    for price in sorted({*CURVE_PRICES, rule.risk_price}, reverse=True):
        chosen = question.choices(replace(rule, risk_price=price))
        ours = pick(panel, chosen)
        points.append(
            {
                "risk_price": price,
                "coverage": float((chosen != DEFAULT_ROW).mean()),
                "coverage_where_it_matters": float((chosen[matters] != DEFAULT_ROW).mean()) if matters.any() else 0.0,
                "worse_rate": float(worse_draws(ours, base).mean()),
                "violations_vs_default": float((~ours.met).mean() - (~base.met).mean()),
            }
        )
    return points


def map_of(panel: Panel, chosen: Choices, settings: FitSettings) -> list[dict[str, Any]]:
    """Prompt × concurrency: the configuration that is best most often, what it gains, and how often flags are set."""
    best, gain = expected_gain(panel, panel.judged, settings)
    prompt, clients = (panel.scenarios.columns[name] for name in ("prompt_tokens", "concurrency"))
    row, column = (np.digitize(v, e) - 1 for v, e in ((prompt, PROMPT_EDGES), (clients, CONCURRENCY_EDGES)))
    every = configurations(panel.scenarios.gpu)
    cells = []
    for i in range(len(PROMPT_EDGES) - 1):
        for j in range(len(CONCURRENCY_EDGES) - 1):
            inside = (row == i) & (column == j)
            if not inside.any():
                continue
            counts = np.bincount(best[inside], minlength=DEFAULT_ROW + 1)
            winner = int(counts.argmax())
            cells.append(
                {
                    "prompt_tokens": [PROMPT_EDGES[i], PROMPT_EDGES[i + 1] - 1],
                    "concurrency": [CONCURRENCY_EDGES[j], CONCURRENCY_EDGES[j + 1] - 1],
                    "n": int(inside.sum()),
                    "best": "none: engine default" if winner == DEFAULT_ROW else every[winner].config_id,
                    "best_share": float(counts[winner] / inside.sum()),
                    "gain": float(gain[inside].mean()),
                    "flags_set": float((chosen[inside] != DEFAULT_ROW).mean()),
                }
            )
    return cells


def scenario_rows(panel: Panel, chosen: Choices, question: Question, settings: FitSettings) -> dict[str, list[Any]]:
    """Column by column, for every scenario: what was announced, what was chosen, and what came of it."""
    base, ours = (pick(panel, one) for one in (np.full(len(panel), DEFAULT_ROW, dtype=np.int64), chosen))
    utility = utilities_of(panel.judged, settings).mean(axis=1)
    rows = np.arange(len(panel))
    best, gain = expected_gain(panel, panel.judged, settings)
    columns: dict[str, list[Any]] = {
        name: panel.scenarios.columns[name].tolist()
        for name in ("scenario", "model", "prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
    }
    chance = np.where(chosen == DEFAULT_ROW, 1.0, question.chances[rows, np.minimum(chosen, DEFAULT_ROW - 1)])
    measured = {
        "gain_of_the_best": gain,
        "gain_of_the_choice": utility[rows, chosen] - utility[:, DEFAULT_ROW],
        "chance_not_worse": chance,
        "worse_rate": worse_draws(ours, base).mean(axis=1),
        "violations": (~ours.met).mean(axis=1),
        "violations_default": (~base.met).mean(axis=1),
        "goodput_tps": np.where(ours.met, ours.throughput_tps, 0.0).mean(axis=1),
        "goodput_default_tps": np.where(base.met, base.throughput_tps, 0.0).mean(axis=1),
    }
    return {
        **columns,
        "supported": question.supported.tolist(),
        "best": best.tolist(),
        "chosen": chosen.tolist(),
        **{name: [float(f"{value:.5g}") for value in values] for name, values in measured.items()},
    }
