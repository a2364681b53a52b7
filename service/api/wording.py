"""The sentences of an answer: built from its facts, decided nowhere here."""

from collections.abc import Iterator, Mapping

from service.api.context_warnings import context_warnings
from service.api.counted import counted
from service.api.expected_words import default_words, promise, why_not
from service.api.launch import arguments
from service.api.remedy import Remedy
from service.api.start_terms import CHUNKED_PREFILL, StartTerms
from service.domain.candidate import CANDIDATES
from service.domain.capacity import CUDA_GRAPHS_GIB
from service.domain.gpu import ENGINE_VERSION
from service.domain.manifest import Manifest
from service.recommend import Query, Recommendation
from service.support import OutOfRange

LEFT_OUT = "The command leaves out what is already fixed"
# vLLM accepts 1.0 and then often fails to start: the driver and other processes hold part of the device.
TIGHT_UTILIZATION = 0.99


def reason(answer: Recommendation) -> str | None:
    """The enumerated reason; where nothing would start it also names the GiB needed and available."""
    if answer.shortfall is None:
        return answer.reason
    needed, available = answer.shortfall.needed_gib, answer.shortfall.available_gib
    return f"{answer.reason}: {needed:.1f} GiB needed, {available:.1f} GiB available"


def summary(
    query: Query, answer: Recommendation, *, manifest: Manifest, errors: Mapping[str, float] | None = None
) -> str:
    """One sentence that a person can read without the rest of the answer. errors: of the estimator, by quantity."""
    model = query.scenario.model.name or "this model"
    where = f"{model} on {query.gpu.name}"
    if answer.reason == "kv_cache_too_small" and answer.shortfall is not None:
        tokens = answer.demand.context_tokens
        weights, overhead = ("", "") if query.gpu.cache_only else ("weights, ", " and overhead")
        which = "No configuration that agrees with what is fixed" if query.fixed else "No configuration"
        nearest = "vLLM's default with what is fixed" if _all_contradict(answer) else "the nearest"
        return (
            f"{which} can start {where}: {nearest}, {answer.shortfall.config_id}, needs "
            f"{answer.shortfall.needed_gib:.1f} GiB for {weights}one request of {tokens:,} tokens{overhead}, "
            f"and may use {answer.shortfall.available_gib:.1f} GiB."
        )
    if answer.reason == "too_few_batched_tokens" and query.chunked_prefill:
        start = query.kept
        return (
            f"Nothing can start {where} with what is fixed: vLLM refuses max_num_batched_tokens "
            f"{start.max_num_batched_tokens:,} below max_num_seqs {start.max_num_seqs:,}."
        )
    if answer.reason == "too_few_batched_tokens":
        return (
            f"No configuration can start {where}: without chunked prefill vLLM refuses a token budget below the "
            f"context of {answer.demand.context_tokens:,} tokens, and the largest here is "
            f"{max(candidate.max_num_batched_tokens for candidate in CANDIDATES):,}."
        )
    if answer.reason == "no_candidate_matches_fixed":
        fixed = ", ".join(f"{name} {value}" for name, value in query.fixed.items())
        return (
            f"Set nothing further for {where}: none of the {len(CANDIDATES)} configurations agrees with "
            f"what is already fixed ({fixed})."
        )
    if answer.reason == "only_engine_default_starts":
        which = "vLLM's defaults with what is fixed" if query.fixed else "vLLM's defaults"
        return (
            f"Set nothing further for {where}: none of the {len(CANDIDATES)} configurations would start, and {which} "
            f"({query.kept.config_id}) would."
        )
    if answer.reason == "out_of_support":
        outside = "; ".join(_outside(entry) for entry in answer.out_of_range)
        return f"Leave vLLM's defaults for {where}: {outside}, so the ranking has no evidence here."
    top = CANDIDATES[answer.ranked[0].candidate_index]
    cause = why_not(query, answer, manifest, errors)
    if cause is not None:
        leave = "Leave vLLM's defaults" if query.as_trained else f"Keep {default_words(query)},"
        return (
            f"{leave} for {where} with {_load(query)}: the best of {_ranked(answer)} configurations, "
            f"{top.config_id}, {cause}, judging by {manifest.evidence} runs."
        )
    return (
        f"Of {_ranked(answer)} configurations {top.config_id} ranks first for {where} with {_load(query)}"
        f"{promise(query, answer, errors)}, judging by {manifest.evidence} runs."
    )


def _ranked(answer: Recommendation) -> int:
    """Configurations that something was learnt about."""
    return sum(row.exclusion is None or row.exclusion.reason != "not_learnt" for row in answer.ranked)


def _load(query: Query) -> str:
    """Clients and lengths, in words."""
    ends, load = query.load_range, query.scenario.workload
    if ends is None:
        return f"{counted(load.concurrency, 'client')} of {load.prompt_tokens:,} + {load.max_new_tokens:,} tokens"
    clients, prompt, new = map(_between, (ends.concurrency, ends.prompt_tokens, ends.max_new_tokens))
    return f"{clients} clients of {prompt} + {new} tokens"


def _between(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def warnings(query: Query, answer: Recommendation, terms: StartTerms, way_out: Remedy | None) -> Iterator[str]:
    """What a careful reader should know before acting on the answer. terms: as the question stated them.

    way_out: where memory is lacking.
    """
    model = query.scenario.model
    yield from model.warnings
    if answer.decision == "none_feasible":
        yield from _ways_out(query, answer, way_out)
    elif model.max_model_len is None and not terms.context_is_automatic:
        yield (
            f"The model's own context is unknown: start-up was checked for one request of {query.request_tokens:,} "
            f"tokens. vLLM reserves its full context; where that does not fit, add "
            f"--max-model-len={query.request_tokens}."
        )
    yield from context_warnings(query, answer)
    if query.gpu.cache_only:
        yield (
            "On a CPU gpu_memory_gib is what the KV cache alone is given (VLLM_CPU_KVCACHE_SPACE); weights lie "
            "beside it, and gpu_memory_utilization has no effect."
        )
    if terms.outside:
        names = ", ".join(entry.feature.removeprefix("extra_args.") for entry in terms.outside)
        yield f"The memory is that of a server without what extra_args change about it ({names})."
    if answer.decision == "keep_engine_default" and not answer.kept_capacity.full_length_request_fits:
        yield (
            f"vLLM's defaults would not start here either: they need {answer.kept_capacity.needed_gib:.1f} GiB and "
            f"may use {answer.kept_capacity.available_gib:.1f}; `ranked` says which configurations would."
        )
    yield from _about_fixed(query, terms)
    if query.engine_version != ENGINE_VERSION and (answer.flags or terms.context_to_set):
        yield f"The arguments are spelled as vLLM {ENGINE_VERSION} knows them."
    yield from _about_version(query, answer)
    if answer.demand.layout.state_bytes:
        yield "The state of recurrent layers is counted as it is; vLLM pads it, so that fewer requests may fit."


def _about_fixed(query: Query, terms: StartTerms) -> Iterator[str]:
    fixed = query.fixed
    words = arguments({name: value for name, value in fixed.items() if name not in terms.in_words})
    if not query.chunked_prefill and CHUNKED_PREFILL not in terms.in_words:
        words.append("--no-enable-chunked-prefill")
    if words:
        yield f"{LEFT_OUT}; keep {' '.join(words)}."
    if fixed.get("gpu_memory_utilization", 0) >= TIGHT_UTILIZATION:
        yield "gpu_memory_utilization this high leaves nothing for the driver and other processes: vLLM may not start."
    tokens, seqs = fixed.get("max_num_batched_tokens"), fixed.get("max_num_seqs")
    if tokens is not None and seqs is not None and tokens < seqs:
        yield f"vLLM does not start with max_num_batched_tokens {tokens:,} below max_num_seqs {seqs:,}."


def _about_version(query: Query, answer: Recommendation) -> Iterator[str]:
    version, rule = query.engine_version, answer.demand.rule
    if version == ENGINE_VERSION:
        return
    if not rule.known:
        yield f"engine_default and the memory rule are those of vLLM {ENGINE_VERSION}; {version} may differ in both."
        return
    yield f"engine_default is that of vLLM {ENGINE_VERSION}; {version} may differ."
    if not rule.graphs_inside:
        yield (
            f"vLLM {version} does not charge CUDA graphs to gpu_memory_utilization: about {CUDA_GRAPHS_GIB:g} GiB come "
            "on top of it (from 0.21 on they are inside)."
        )


def _ways_out(query: Query, answer: Recommendation, way_out: Remedy | None) -> Iterator[str]:
    model = query.scenario.model
    if way_out is None and query.chunked_prefill:
        yield "Lower max_num_seqs, or raise max_num_batched_tokens to it."
        return
    if way_out is None:
        most = max(candidate.max_num_batched_tokens for candidate in CANDIDATES)
        shorter = f", or set --max-model-len={most} or less" if query.request_tokens <= most else ""
        yield f"Leave chunked prefill on{shorter}."
        return
    if way_out.max_model_len is not None:
        which = f"{way_out.configurations} of {len(CANDIDATES)} configurations"
        if _all_contradict(answer):
            which = "what is fixed"
        yield (
            f"vLLM reserves the model's own context of {model.max_model_len:,} tokens; with "
            f"--max-model-len={query.request_tokens} (prompt + output) {which} would start, and the longest with "
            f"which it does is {way_out.max_model_len:,}."
        )
    if way_out.weight_bits is not None:
        yield (
            f"With weights quantised to {way_out.weight_bits} bits it would start, with a context of up to "
            f"{way_out.weight_bits_max_model_len:,} tokens."
        )
    if way_out.gpus:
        yield f"By memory alone it would fit on {', '.join(way_out.gpus)}."
    # On a CPU there is room for what its cache is given, and no word about GPUs helps.
    if not query.gpu.cache_only:
        yield "Several GPUs can share a model by tensor parallelism; configurations for that are not ranked here."


def _all_contradict(answer: Recommendation) -> bool:
    return all(row.exclusion is not None and row.exclusion.reason == "contradicts_fixed" for row in answer.ranked)


def _outside(entry: OutOfRange) -> str:
    if entry.low is None or entry.high is None or isinstance(entry.value, str):
        if entry.trained_for is None:
            return f"{entry.feature} is set to {_number(entry.value)}, trained for none"
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
