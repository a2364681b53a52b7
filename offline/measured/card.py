"""The card of a measured bundle: what was measured, what the rule was judged on, and what nobody knows."""

from typing import Any

from offline.measured.abstention import MOST_RISK, WORSE_BELOW
from offline.robust.card_table import markdown_table
from service.domain.manifest import NEVER_MARGIN, PROMISED_RISK, HeldOut, Manifest

_SOURCE = {
    "measured": "a real vLLM on that GPU",
    "measured-cpu": "a real vLLM on a CPU; none of it holds for a GPU",
    "simulated": "a simulator; no server ran",
}
_METRICS = {
    "slo_violation_rate": "SLO violated",
    "failure_rate": "failed",
    "output_throughput_tps": "tokens/s",
    "goodput_tps": "goodput, tokens/s",
    "slo_regret": "slo_regret",
}
_POLICIES = {
    "SERVED": "what this bundle does: TRAINED behind the rule, each fold under the margin of the others",
    "TRAINED": "always the highest score",
    "START": "the bundle that training went on from",
    "SINGLE_BEST": "one configuration for all, the best of the other folds",
    "FIXED": "candidate 0",
    "ENGINE_DEFAULT": "no flags",
    "ORACLE": "the best of what was measured in each scenario",
}


def render_card(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """Markdown. ValueError if the manifest does not say what its rule was judged on."""
    if manifest.held_out is None or manifest.abstention is None:
        raise ValueError(f"{manifest.name} has no rule of abstention, or none that was judged on held-out lists")
    rule = evaluation["abstention"]
    parts = [
        f"# {manifest.name}, evidence: {manifest.evidence}",
        _first(manifest, manifest.held_out),
        _data(manifest),
        _evaluation(evaluation),
        _rule(rule),
        _unknown(manifest),
        "## Make it again\n\n`python -m offline train --cells CELLS --plan PLAN --bundle FOLDER`"
        + ("" if manifest.started_from is None else " with `--fine-tune` of the bundle named above")
        + f": the cells have sha256 `{manifest.cells_sha256}`, the plan `{manifest.plan_sha256}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _first(manifest: Manifest, judged: HeldOut) -> str:
    never = manifest.abstention is not None and manifest.abstention.margin >= NEVER_MARGIN
    if never:
        does = "It sets no flag, whatever it is asked: too few held-out workloads show that its advice is any good."
    else:
        does = (
            f"In the {judged.advised} held-out workloads in which it would have set flags, the share in which that did "
            f"worse than the engine's default is below {judged.worse_upper95:.0%} (95 % bound)."
        )
    promise = (
        ""
        if judged.worse_upper95 <= PROMISED_RISK
        else f" **That advice does worse in at most {PROMISED_RISK:.0%} of cases is not claimed.**"
    )
    return f"{does}{promise} Every answer names the evidence, {manifest.evidence}."


def _data(manifest: Manifest) -> str:
    record = manifest.training
    memory = "" if manifest.gpu_memory_gib is None else f" with {manifest.gpu_memory_gib:g} GiB"
    if manifest.gpu == "CPU":
        memory += " of KV cache"
    started = record["started_from"]
    began = (
        "Trained from random weights."
        if started is None
        else f"Training went on from `{started['name']}` {started['version']}, which learnt from "
        f"**{manifest.started_from}** runs: the weights rest on both, the evaluation below on the measured ones alone."
    )
    ranges = [[name, f"{low:g}", f"{high:g}"] for name, (low, high) in manifest.training_range.items()]
    slo = manifest.slo
    return (
        f"## What it learnt from\n\n{record['lists']} scenarios by {_SOURCE[manifest.evidence]}; "
        f"{record['lists_that_teach']} of them have a configuration that meets the SLO and taught an order. Device "
        f"{manifest.gpu}{memory}, vLLM {manifest.engine_version}. {began}\n\n"
        f"SLO: p95 TTFT ≤ {slo.max_p95_ttft_ms:g} ms, p95 TPOT ≤ {slo.max_p95_tpot_ms:g} ms, error rate ≤ "
        f"{slo.max_error_rate:g}. Configurations: {', '.join(f'`{one}`' for one in manifest.configurations or ())}; no "
        "other is recommended. Outside of these ranges, or for another device, memory, engine version or SLO, it sets "
        f"no flags:\n\n{markdown_table(['feature', 'least', 'most'], ranges)}"
    )


def _evaluation(evaluation: dict[str, Any]) -> str:
    sets = evaluation["test_sets"]
    if not sets:
        return "## Evaluation\n\nNone: all scenarios are of one model and workload, so none could be held out."
    ((name, found),) = sets.items()
    rows = [
        [policy, *(_number(row[metric]) for metric in _METRICS), _POLICIES[policy]]
        for policy, row in sorted(found["policies"].items(), key=lambda one: list(_POLICIES).index(one[0]))
    ]
    compared = [
        [pair, metric, f"{one['delta']:+.4g}", f"{one['ci'][0]:+.4g} to {one['ci'][1]:+.4g}"]
        for pair, metrics in found["comparisons"].items()
        for metric, one in metrics.items()
    ]
    return (
        f"## Evaluation: {name}, {found['n']} scenarios of {found['groups']} workloads, {found['evidence']}\n\n"
        "Each scenario is judged by a ranker that saw none of its model and workload, by its own cells alone. In "
        f"{found['n_no_feasible']} no configuration meets the SLO. No settings were chosen on them. The noise of a "
        "measurement is in every figure.\n\n"
        f"{markdown_table(['policy', *_METRICS.values(), 'what it is'], rows)}\n\nDifferences with "
        "95 % intervals of a paired bootstrap over workloads:\n\n"
        f"{markdown_table(['policies', 'metric', 'difference', 'interval'], compared)}"
    )


def _rule(rule: dict[str, Any]) -> str:
    margin = "none would do: no flags are ever set" if rule["margin"] >= NEVER_MARGIN else f"{rule['margin']:.4g}"
    return (
        f"## When it sets no flags\n\nMargin: {margin}. Flags are set where the best score exceeds that of the "
        "engine's default by more than the margin, the largest such gain at which a held-out choice was worse (goodput "
        f"more than {1 - WORSE_BELOW:.0%} below the default's, an SLO newly violated included). Judged with each fold "
        f"under the margin of the other folds: {rule['scenarios']} scenarios of {rule['groups']} workloads, flags in "
        f"{rule['advised']} workloads, worse in {rule['worse']}; the 95 % upper bound of that share is "
        f"{rule['worse_upper95']:.1%}. At {MOST_RISK:.0%} or more no flags are set at all. To bound it by "
        f"{PROMISED_RISK:.0%} takes 299 such workloads with none worse; "
        + ("they are there." if rule["promises_one_percent"] else "this bundle does not claim it.")
    )


def _unknown(manifest: Manifest) -> str:
    lines = [
        "no expected numbers and no chances: there is no estimator, `expected` is null in every answer",
        "how the ranking does between and beyond the measured scenarios: a range is not a proof of what lies within it",
        "how it bears an announced workload that is not the true one: each scenario was measured as announced",
        "the SLO that it is judged by is that of training; under another one it sets no flags",
        "how much of a difference is noise: the cells do not say how far repetitions of one differ",
    ]
    if manifest.evidence == "measured-cpu":
        lines.insert(0, "anything about a GPU")
    return "## What is not known\n\n" + "\n".join(f"- {line}" for line in lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
