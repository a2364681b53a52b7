"""Stage 3: every policy on dev, the selection there, and, behind a registration, the one opening of the test split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline.comparison import Comparison, compare, finite
from offline.dataset import (
    ENGINE_DEFAULT_CHOICE,
    ENGINE_DEFAULT_CONFIG_ID,
    Development,
    LabelledSet,
    Questions,
    Sources,
)
from offline.gates import GATES_BASE, gate_definitions, judge
from offline.metrics import MEAN_METRICS, Picked, mean_of, pick, tail_without_failures_ms, ttft_tail_ms
from offline.policies import (
    ENGINE_DEFAULT,
    FIXED,
    HEUR,
    LIGHTGBM,
    MLP,
    ORACLE,
    POLICIES,
    SELECTABLE,
    Choices,
    engine_default_choices,
    fixed_choices,
    heuristic_choices,
    mlp_choices,
    oracle_choices,
    tree_choices,
)
from offline.ranker import Ranker
from offline.registration import State, analysis_sha256
from offline.settings import BootstrapSettings, Settings
from offline.train import best_on_dev
from offline.trees import TreePair, fit_trees
from service.domain.candidate import CANDIDATES

EVALUATION_SCHEMA_VERSION = 1
# Names of the test sets in evaluation.json: T1 is the reference's test split.
DEV_SET, TEST_SET = "dev", "T1"
_BASES = (FIXED, ENGINE_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The two trained policies."""

    ranker: Ranker
    trees: TreePair

    def sha256(self) -> dict[str, str]:
        """Digest of each, by policy."""
        return {MLP: self.ranker.weights_sha256(), LIGHTGBM: self.trees.sha256()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevResult:
    """Dev's table as in evaluation.json, and which of MLP and LightGBM it selects."""

    models: Models
    table: dict[str, Any]
    selected_policy: str


def evaluate_dev(data: Development, ranker: Ranker, settings: Settings) -> DevResult:
    """Trains the trees on train, tabulates every policy on dev and selects by (SLO violation rate, regret)."""
    outcomes = data.train.outcomes
    trees = fit_trees(
        data.train.questions.features,
        throughput_tps=outcomes.throughput_tps[:, :ENGINE_DEFAULT_CHOICE],
        slo_met=outcomes.slo_met[:, :ENGINE_DEFAULT_CHOICE],
        settings=settings.trees,
    )
    models = Models(ranker=ranker, trees=trees)
    table = evaluate_set(data.dev, choose(data.dev.questions, models=models), settings=settings.bootstrap)
    rows = [table["policies"][name] for name in SELECTABLE]
    selected = SELECTABLE[best_on_dev([(row["slo_violation_rate"], row["regret"]) for row in rows])]
    return DevResult(models=models, table=table, selected_policy=selected)


def choose(questions: Questions, *, models: Models) -> dict[str, Choices]:
    """The choices of every policy that needs no outcomes, by name."""
    return {
        FIXED: fixed_choices(questions),
        HEUR: heuristic_choices(questions),
        ENGINE_DEFAULT: engine_default_choices(questions),
        LIGHTGBM: tree_choices(questions, trees=models.trees),
        MLP: mlp_choices(questions, ranker=models.ranker),
    }


def evaluate_set(
    labelled: LabelledSet, choices: dict[str, Choices], *, settings: BootstrapSettings, gated: str | None = None
) -> dict[str, Any]:
    """One test set of evaluation.json: a row per policy, comparisons, picks per scenario, and the gates of `gated`."""
    choices = {**choices, ORACLE: oracle_choices(labelled.outcomes)}
    picked = {name: pick(labelled.outcomes, choices[name]) for name in POLICIES}
    rows = {name: policy_row(picked[name]) for name in POLICIES}
    comparisons: dict[str, Comparison] = {
        f"{name}-vs-{base}": compare(
            picked[name],
            picked[base],
            oracle=picked[ORACLE],
            coverage=float((choices[name] != ENGINE_DEFAULT_CHOICE).mean()),
            settings=settings,
        )
        for name in POLICIES
        for base in _BASES
        if name not in (base, ORACLE)
    }
    table = {
        "n": len(labelled.questions.scenario_ids),
        "policies": rows,
        "comparisons": {name: comparison.to_json() for name, comparison in comparisons.items()},
        "scenarios": _scenario_rows(labelled, choices, picked),
    }
    if gated is not None:
        verdicts = judge(comparisons[f"{gated}-vs-{GATES_BASE}"], base_values=rows[GATES_BASE])
        table["gates"] = {"policy": gated, "base": GATES_BASE, "verdicts": verdicts}
    return table


def policy_row(picked: Picked) -> dict[str, Any]:
    """A policy's metrics. ttft_p95_p95_ms is null where failures reach the tail, which makes it unbounded."""
    return {
        **{name: mean_of(metric(picked)) for name, metric in MEAN_METRICS.items()},
        "ttft_p95_p95_ms": finite(ttft_tail_ms(picked)),
        "ttft_p95_p95_ms_without_failures": tail_without_failures_ms(picked.ttft_p95_ms, picked.failed),
        "tpot_p95_p95_ms_without_failures": tail_without_failures_ms(picked.tpot_p95_ms, picked.failed),
        "n_failed": int(picked.failed.sum()),
        "n_no_feasible": int(np.isnan(picked.best_tps).sum()),
    }


def _scenario_rows(
    labelled: LabelledSet, choices: dict[str, Choices], picked: dict[str, Picked]
) -> list[dict[str, Any]]:
    config_ids = [*(candidate.config_id for candidate in CANDIDATES), ENGINE_DEFAULT_CONFIG_ID]
    return [
        {
            "scenario_id": scenario_id,
            "picks": {
                name: {
                    "config_id": config_ids[int(choices[name][row])],
                    "output_throughput_tps": float(picked[name].throughput_tps[row]),
                    "ttft_p95_ms": finite(float(picked[name].ttft_p95_ms[row])),
                    "slo_met": bool(picked[name].slo_met[row]),
                }
                for name in POLICIES
            },
        }
        for row, scenario_id in enumerate(labelled.questions.scenario_ids)
    ]


def present_state(sources: Sources, settings: Settings, *, selected_policy: str, root: Path) -> State:
    """What a registration made now would fix. root: the checkout whose code runs."""
    return State(
        cells_sha256=sources.cells_sha256,
        split_sha256=sources.split_sha256,
        features_sha256=sources.features_sha256,
        settings=settings.to_json(),
        analysis_sha256=analysis_sha256(root),
        gates=gate_definitions(),
        selected_policy=selected_policy,
    )


def evaluate_test(test: LabelledSet, result: DevResult, settings: Settings) -> dict[str, Any]:
    """The test split's table with the gates of the policy that dev selected."""
    choices = choose(test.questions, models=result.models)
    return evaluate_set(test, choices, settings=settings.bootstrap, gated=result.selected_policy)
