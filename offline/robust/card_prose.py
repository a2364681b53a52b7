"""A card's prose: what the bundle is, what it is for, what limits it, how it is used and made again."""

from typing import Any

from offline.published import SOURCE
from offline.robust.variants import VARIANTS
from service.domain.candidate import CANDIDATES
from service.domain.features import FEATURE_NAMES
from service.domain.gpu import gpu_by_name
from service.domain.manifest import (
    CHANCES,
    ESTIMATOR_CHANCES,
    ESTIMATOR_QUANTILES,
    ESTIMATOR_RATIOS,
    ONNX_INPUT,
    ONNX_OUTPUT,
    QUANTITIES,
    Manifest,
)

_KNOWN = {
    "exact": "workloads known exactly: what was announced comes",
    "typical": "workloads known as well as announcements typically are",
    "rough": "workloads announced roughly, twice as far off as typical",
}

# Of a row, each quantity at three levels.
_NUMBERS = 3 * len(QUANTITIES)
_UNCERTAINTY = {
    "exact": "that exactly what was announced comes is an assumption, which few services can make",
    "typical": "uncertainty is assumed: log-normal factors, one standard deviation 1.4 for lengths, 1.8 for clients",
    "rough": "uncertainty is assumed: log-normal factors, one standard deviation 1.4² for lengths, 1.8² for clients",
}


def summary(manifest: Manifest) -> str:
    """What it is, in a paragraph, with its evidence class."""
    return (
        f"Ranks {len(CANDIDATES)} start-up configurations of vLLM {manifest.engine_version} and the engine's own "
        f"default on {manifest.gpu}, trained for {_KNOWN[manifest.confidence]}; says when to set no flags, and what "
        f"each configuration will show. **Evidence: {manifest.evidence}**; no GPU was involved: every figure holds as "
        "far as scheduler and step times do."
    )


def details(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """Model description and sources."""
    settings = manifest.training["settings"]
    start = VARIANTS[evaluation["variant"]].start
    going_on = "" if start is None else f", trained on from the weights of `{VARIANTS[start].bundle}`"
    registration = manifest.training["registration"]
    items = [
        f"**Model type:** a ranker, one multilayer perceptron of {_widths(settings['hidden'], 1)} over the features of "
        f"one configuration ({manifest.parameters:,} parameters){going_on}, and beside it an estimator of quantiles "
        "and chances",
        f"**Version:** `{manifest.version}`",
        f"**Trained for:** {manifest.gpu}, vLLM {manifest.engine_version}, confidence `{manifest.confidence}`",
        f"**SLO it was trained for:** p95 TTFT ≤ {manifest.slo.max_p95_ttft_ms:g} ms, p95 TPOT ≤ "
        f"{manifest.slo.max_p95_tpot_ms:g} ms, error rate ≤ {manifest.slo.max_error_rate:g}",
        "**License:** Apache-2.0",
    ]
    sources = [
        "the code that trained, tested and serves it: this repository",
        "the lists it was trained on: [data card](../../../bench_runner/list_samples/DATA_CARD.md)",
        f"registration and openings: `offline/registrations/robust/{registration}*`"
        if registration
        else "registration: none",
    ]
    return "### Model Description\n\n" + _list(items) + "\n\n### Model Sources\n\n" + _list(sources)


def uses(manifest: Manifest) -> str:
    """What it is for, and what it is not for."""
    direct = (
        f"Choosing `max_num_seqs`, `max_num_batched_tokens`, `gpu_memory_utilization` and `enable_prefix_caching` "
        f"before a vLLM {manifest.engine_version} server starts: one dense BF16 model on one {manifest.gpu}, a "
        "workload announced by prompt tokens, output cap, shared prefix ratio and concurrent clients, within the "
        "ranges under Training Data."
    )
    outside = [
        "another GPU, engine version or attention backend",
        "tensor or pipeline parallelism, mixture-of-experts models, quantised weights or KV cache, adapters",
        "workloads or models outside the trained ranges: the service says so and recommends nothing",
        "another SLO than the one that was trained for; the service judges it from the expected numbers",
        "sizing a fleet, or quoting the expected numbers as measurements",
    ]
    return (
        f"### Direct Use\n\n{direct}\n\n### Downstream Use\n\nThrough the service, its hook and its command line, "
        "which add what starts in memory, the user's own arguments and the error bands of the simulator.\n\n### "
        "Out-of-Scope Use\n\n" + _list(outside)
    )


def limits(manifest: Manifest) -> str:
    """What limits every figure, and what to do about it."""
    items = [
        f"the lists are {manifest.evidence}, not measured; kernel times are tables, host and front-end times "
        "assumptions",
        "windows are 3 to 8 s after a warm-up of 1.25 to 2.5 s, not the reference's 4 s and 15 s; on 167 dev lists "
        "95 % of the SLO verdicts are those of the reference's windows",
        "an answer that takes longer than about 10 s never completes in such a window, and a draw in which nothing "
        'completes violates the SLO: chances and ranking say little about long answers (the column "failed" of what '
        "breaks the SLO); the expected numbers are of draws in which something completes",
        "dev and the calibration split chose settings and rule, so their figures are biased",
        "of the test sets only T3 has models that no list of training, dev or calibration had",
        "workloads are synthetic or drawn after published traces; no production traffic was replayed",
        _UNCERTAINTY[manifest.confidence],
        f"one GPU type ({manifest.gpu}), one engine version ({manifest.engine_version}), dense BF16 models; no tensor "
        "parallelism, mixture of experts or quantisation",
        "freshly started servers only; nothing is known about long-running ones",
        "memory use and cache hit rates per policy are not evaluated",
        "training and test scenarios are weighted towards where the choice matters; rates are not those of a fleet",
    ]
    return (
        _list(items)
        + "\n\n### Recommendations\n\nTry a recommendation on one server beside the engine's default before a fleet "
        "follows it (`python -m service verify` does), and report outcomes."
    )


def getting_started(manifest: Manifest) -> str:
    """Through the service, and the graphs by themselves."""
    short = gpu_by_name(manifest.gpu).short_name
    return (
        "From a checkout, `make serve` once; then\n\n```console\n$ MEMORYPOLICY_BUNDLE_DIR=service/bundles/"
        f"{manifest.name} .venv/bin/python -m service recommend \\\n  --model Qwen/Qwen3-8B --gpu {short} "
        "--prompt-tokens 4000 --max-new-tokens 300 --shared-prefix-ratio 0.5 --concurrency 64\n```\n\nThe graphs "
        f"alone: `model.onnx` takes `{ONNX_INPUT}` [rows, {len(FEATURE_NAMES)}] float32, unnormalised, one row for "
        f"each configuration of one question and a last one for the engine's default, and answers `{ONNX_OUTPUT}` "
        "[rows, 1]; the features are " + ", ".join(f"`{name}`" for name in FEATURE_NAMES) + "."
    )


def procedure(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """Losses and settings."""
    ranker, estimator = manifest.training["settings"], manifest.training["estimator_settings"]
    counts = evaluation["calibration"]["lists"]
    shown = ("epochs", "batch_lists", "learning_rate", "weight_decay")
    return (
        f"Features are transformed (`{ranker['transform']}`) and normalised inside the graph. Ranker: loss "
        f"`{ranker['loss']}` on utilities (throughput as a share of the best where the SLO is met, "
        f"−{ranker['violation']:g} where not), so that differences of scores are differences of expected utility up to "
        f"the slope; seed {ranker['seed']}, "
        + ", ".join(f"{name} {ranker[name]:g}" for name in shown)
        + ". Estimator: pinball loss on quantiles of logarithms, of the numbers and of their ratios to the engine "
        "default's, and cross-entropy on chances, "
        + ", ".join(f"{name} {estimator[name]:g}" for name in shown)
        + f". Neither saw the {counts['calibration']:,} lists of the calibration split."
    )


def environment(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """What is known about cost, and what is not."""
    ranker, counts = manifest.training["settings"], evaluation["calibration"]["lists"]
    return (
        f"No GPU was used. Training passes {counts['trained']:,} lists of 16 rows {ranker['epochs']} times through "
        f"{manifest.parameters:,} parameters, on a CPU. Hours and energy were not metered, so no emission is estimated."
    )


def specification(manifest: Manifest) -> str:
    """Architecture, graph ends, thresholds, files."""
    abstention, estimator = manifest.abstention, manifest.training["estimator_settings"]
    ranker = manifest.training["settings"]
    rule = "none"
    if abstention is not None:
        rule = (
            f"margin {abstention.margin:g}, risk price {abstention.risk_price or 0:g}, fixed price "
            f"{abstention.fixed_price or 0:g}, threshold {abstention.threshold or 0:g}, near tie "
            f"{abstention.near_tie or 0:g}, low utilisation gain {abstention.low_utilisation_gain or 0:.4g}"
        )
    items = [
        f"`model.onnx`: {_widths(ranker['hidden'], 1)}, {manifest.parameters:,} parameters; `{ONNX_INPUT}` → "
        f"`{ONNX_OUTPUT}`, higher is better, {manifest.score_slope:.4f} of utility per unit",
        f"`estimator.onnx`: hidden layers {', '.join(map(str, estimator['hidden']))}; `{ONNX_INPUT}` → "
        f"`{ESTIMATOR_QUANTILES}` [rows, {_NUMBERS}], the logarithms of {', '.join(QUANTITIES)} at "
        f"{', '.join(f'{level:g}' for level in manifest.estimator.levels)}"
        f", `{ESTIMATOR_RATIOS}` [rows, {_NUMBERS}], the same of each ÷ what the engine's default shows in the same "
        f"draw, and `{ESTIMATOR_CHANCES}` [rows, {len(CHANCES)}]: {', '.join(CHANCES)}"
        if manifest.estimator
        else "no estimator",
        f"thresholds of the rule: {rule}",
        f"feature schema `{manifest.feature_schema}`, candidates `{manifest.candidates_fingerprint}`",
        "files by sha256: `manifest.json`; the service verifies every one before it serves",
    ]
    return (
        "### Model Architecture and Objective\n\n"
        + _list(items)
        + "\n\n### Compute Infrastructure\n\nTraining: PyTorch on a CPU. Serving: ONNX Runtime on a CPU, neither "
        "PyTorch nor vLLM.\n\n### Make it again\n\n`make train-full` simulates every set that is missing, trains, "
        "calibrates, evaluates what the registration allows and writes bundles and cards; it resumes where it was "
        "stopped. `make train-robust` trains on the committed lists. `python -m offline card` writes the cards and "
        "pictures of all bundles from their evaluations and the records of the openings."
    )


def citation(manifest: Manifest) -> str:
    """What to cite, and what this rests on."""
    return f"Cite this repository with the version `{manifest.version}`. It rests on\n\n" + _list(
        [
            f"the ranker whose candidates, features and SLO it keeps: {SOURCE}",
            "Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test: Calibrating Predictive Algorithms to "
            "Achieve Risk Control, 2021: how the price of risk is calibrated",
            "Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023: "
            "vLLM",
            "sources of lengths and traces, with their licences: the data card of the lists",
        ]
    )


def _widths(hidden: list[int] | tuple[int, ...], outputs: int) -> str:
    return " → ".join(str(width) for width in (len(FEATURE_NAMES), *hidden, outputs))


def _list(items: list[str]) -> str:
    return "\n".join(f"- {one}" for one in items)
