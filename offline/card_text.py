"""The card's prose: where the numbers come from, what limits them, and how to make them again."""

from typing import Any

from offline.policies import FIXED, ORACLE
from offline.published import SOURCE
from service.domain.manifest import Manifest
from service.domain.reference import REFERENCE_WORKLOADS, TEST_MODELS

_EVIDENCE = {
    "simulated": "No GPU was involved: every figure is from a simulation on a virtual clock and holds as far as its "
    "scheduler and step times do.",
    "measured": "Every figure was measured on a real server on that GPU.",
    "measured-cpu": "Every figure was measured on a real server on a CPU with a small model; none holds for a GPU.",
}


def provenance(manifest: Manifest) -> str:
    """What the cells are and which files they came in."""
    record = manifest.training
    source, cells, plans = record["provenance"], record["cells_sha256"], record["plan_sha256"]
    return (
        f"## Evidence: {manifest.evidence}\n\n{_EVIDENCE[manifest.evidence]} GPU {manifest.gpu}, engine vLLM "
        f"{manifest.engine_version}, scheduler: {source['scheduler']}, step times: {source['step_times']}.\n\n"
        f"SLO: p95 TTFT ≤ {manifest.slo.max_p95_ttft_ms:g} ms, p95 TPOT ≤ {manifest.slo.max_p95_tpot_ms:g} ms, error "
        f"rate ≤ {manifest.slo.max_error_rate:g}.\n\n"
        + "\n".join(
            f"- {name} cells: sha256 `{cells[name]}`, plan `{plans[name]}`" for name in ("reference", "engine_default")
        )
        + f"\n- version `{manifest.version}`, feature schema `{manifest.feature_schema}`"
    )


def room(test_set: dict[str, Any], manifest: Manifest) -> str:
    """The published explanations of a missing gain, asked of our numbers."""
    goodput = {name: test_set["policies"][name]["goodput_tps"] for name in (FIXED, ORACLE)}
    gain = goodput[ORACLE] - goodput[FIXED]
    share = "" if goodput[FIXED] == 0 else f" ({gain / goodput[FIXED]:.1%} of {FIXED}'s)"
    low, high = manifest.training_range["shared_prefix_ratio"]
    beyond = [w for w in REFERENCE_WORKLOADS if w.split == "test" and not low <= w.shared_prefix_ratio <= high]
    names = ", ".join(f"{workload.name} ({workload.shared_prefix_ratio:g})" for workload in beyond)
    return (
        "The published card explained its missing gain by little room and guessed that a prefix ratio beyond the "
        f"trained ones mattered. Here the oracle's goodput exceeds {FIXED}'s by {gain:,.0f} tokens/s{share}. Trained "
        f"prefix ratios span {low:g} to {high:g}; test workloads outside: {names or 'none'}. Whether that costs "
        "anything is not tested here."
    )


def limits(manifest: Manifest) -> str:
    """The limits that the reference stated and that hold here, and those of the evidence class."""
    lines = [
        "dev selected the grid point and the policy, so dev figures are biased",
        f"the test's models ({', '.join(TEST_MODELS)}) were in training; only its workloads are new",
        "workloads are synthetic: fixed lengths, a closed loop, a designed shared prefix; no production traffic",
        f"one GPU type ({manifest.gpu}), one engine version ({manifest.engine_version}), dense BF16 models of one "
        "family; no tensor parallelism, mixture of experts or quantisation",
        "every cell is a freshly started server with a short warm-up; nothing is known about long-running ones",
        "memory use and cache hit rates per policy are not evaluated",
        "dev and test hold 16 scenarios each: intervals are wide, and one scenario moves a rate by 0.0625",
        "scenarios of the test workloads with the other models are retired: an earlier, invalid version of the "
        "reference had seen them, so they take no part in training, selection or evaluation",
    ]
    if manifest.evidence != "measured":
        lines.insert(0, f"the cells are {manifest.evidence}, not measured on {manifest.gpu}; the published ones were")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def reproduction(evaluation: dict[str, Any]) -> str:
    """How to make the bundle again, and where the published numbers come from."""
    registration = evaluation["registration"]
    kept = (
        "The test split stays closed while it does."
        if registration is None or not registration["opened"]
        else "Test figures are read from the record of the one opening; the split is not read again."
    )
    return (
        "## Make it again\n\n`make train` rewrites model, evaluation, plots and this card from the committed cells, "
        f"bit for bit on one machine. {kept} Published figures: {SOURCE}."
    )
