"""The sentences and the command of an answer: built from its facts, decided nowhere here."""

from collections.abc import Iterator
from dataclasses import replace

from service.domain.candidate import CANDIDATES, cli_arg
from service.domain.gpu import ENGINE_VERSION
from service.domain.manifest import Manifest
from service.domain.memory import start_up_feasibility, start_up_tokens
from service.recommend import OutOfRange, Query, Recommendation

LEFT_OUT = "The command leaves out what is already fixed"
# vLLM accepts 1.0 and then often fails to start: the driver and other processes hold part of the device.
TIGHT_UTILIZATION = 0.99


def command(query: Query, answer: Recommendation) -> str | None:
    """`vllm serve` with the flags to set; MODEL stands for a model that came without a name."""
    if answer.flags is None:
        return None
    name = query.scenario.model.name or "MODEL"
    return " ".join(["vllm", "serve", name, *(cli_arg(key, value) for key, value in answer.flags.items())])


def reason(answer: Recommendation) -> str | None:
    """The enumerated reason; where nothing would start it also names the GiB needed and available."""
    if answer.shortfall is None:
        return answer.reason
    needed, available = answer.shortfall.needed_gib, answer.shortfall.available_gib
    return f"{answer.reason}: {needed:.1f} GiB needed, {available:.1f} GiB available"


def summary(query: Query, answer: Recommendation, *, manifest: Manifest) -> str:
    """One sentence that a person can read without the rest of the answer."""
    model, load = query.scenario.model.name or "this model", query.scenario.workload
    where = f"{model} on {query.gpu.name}"
    if answer.reason == "kv_cache_too_small" and answer.shortfall is not None:
        tokens = start_up_tokens(query.scenario.model, load)
        which = "No configuration that agrees with what is fixed" if query.fixed else "No configuration"
        return (
            f"{which} can start {where}: the nearest, {answer.shortfall.config_id}, needs "
            f"{answer.shortfall.needed_gib:.1f} GiB for weights, one request of {tokens:,} tokens and overhead, "
            f"and may use {answer.shortfall.available_gib:.1f} GiB."
        )
    if answer.reason == "no_candidate_matches_fixed":
        fixed = ", ".join(f"{name} {value}" for name, value in query.fixed.items())
        return (
            f"Set nothing further for {where}: none of the {len(CANDIDATES)} configurations agrees with "
            f"what is already fixed ({fixed})."
        )
    if answer.reason == "out_of_support":
        outside = "; ".join(_outside(entry) for entry in answer.out_of_range)
        return f"Leave vLLM's defaults for {where}: {outside}, so the ranking has no evidence here."
    top = CANDIDATES[answer.ranked[0].candidate_index]
    if answer.reason == "no_better_than_engine_default":
        return (
            f"Leave vLLM's defaults for {where} with {load.concurrency:,} clients of {load.prompt_tokens:,} + "
            f"{load.max_new_tokens:,} tokens: the best of {len(CANDIDATES)} configurations, {top.config_id}, promises "
            f"no clear gain, judging by {manifest.evidence} runs."
        )
    return (
        f"Of {len(CANDIDATES)} configurations {top.config_id} ranks first for {where} with {load.concurrency:,} "
        f"clients of {load.prompt_tokens:,} + {load.max_new_tokens:,} tokens, judging by {manifest.evidence} runs."
    )


def warnings(query: Query, answer: Recommendation) -> Iterator[str]:
    """What a careful reader should know before acting on the answer."""
    model, load = query.scenario.model, query.scenario.workload
    yield from model.warnings
    if answer.decision == "none_feasible":
        yield from _ways_out(query)
    elif model.max_model_len is None:
        yield (
            f"The model's own context is unknown: start-up was checked for one request of {load.sequence_tokens:,} "
            f"tokens. vLLM reserves its full context; where that does not fit, add "
            f"--max-model-len={load.sequence_tokens}."
        )
    if query.fixed:
        args = " ".join(cli_arg(name, value) for name, value in query.fixed.items())
        yield f"{LEFT_OUT}; keep {args}."
    if query.fixed.get("gpu_memory_utilization", 0) >= TIGHT_UTILIZATION:
        yield "gpu_memory_utilization this high leaves nothing for the driver and other processes: vLLM may not start."
    if query.engine_version != ENGINE_VERSION:
        yield (
            f"engine_default and the memory rule are those of vLLM {ENGINE_VERSION}; "
            f"{query.engine_version} may differ in both."
        )


def _ways_out(query: Query) -> Iterator[str]:
    model, load = query.scenario.model, query.scenario.workload
    if model.max_model_len is not None:
        shorter = replace(model, max_model_len=load.sequence_tokens)
        fits = [
            c for c in CANDIDATES if start_up_feasibility(shorter, load, c, memory_gib=query.gpu.memory_gib).feasible
        ]
        if fits:
            yield (
                f"vLLM reserves the model's own context of {model.max_model_len:,} tokens; with "
                f"--max-model-len={load.sequence_tokens} (prompt + output) {len(fits)} of {len(CANDIDATES)} "
                "configurations would start."
            )
    default = query.gpu.engine_default
    if start_up_feasibility(model, load, default, memory_gib=query.gpu.memory_gib).feasible:
        yield f"vLLM's own default ({default.gpu_memory_utilization:g} of the memory) would start."


def _outside(entry: OutOfRange) -> str:
    if entry.low is None or entry.high is None or isinstance(entry.value, str):
        return f"{entry.feature} is {_number(entry.value)}, trained for {_number(entry.trained_for)}"
    name, low, value, high = entry.feature, entry.low, entry.value, entry.high
    if name.startswith("log2_"):
        name, low, value, high = name.removeprefix("log2_"), 2**low, 2**value, 2**high
    trained = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
    return f"{name} {_number(value)} lies outside the trained {trained}"


def _number(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{round(value):,}" if abs(value - round(value)) < 1e-9 * max(1, abs(value)) else f"{value:.4g}"
