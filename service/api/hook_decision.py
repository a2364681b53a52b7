"""The decision about one endpoint, the same for every door: what to set of what the user left open. Knows no HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.api.answer import answer
from service.api.caller import Mode
from service.api.launch import arguments
from service.api.model_catalogue import ModelCatalogue
from service.api.problem import RefusedError
from service.api.query import ReadQuery, read_query
from service.api.request_schemas import NUMBER_KEYS
from service.api.secret import holds_secret
from service.api.skip import HookReason, SkipError
from service.api.user_arguments import Precedence, UserArguments, read_user_arguments
from service.domain.candidate import INDEX_BY_CONFIG_ID
from service.domain.errors import InvalidInputError
from service.exclusion import EngineArgs
from service.policies import Policies
from service.recommend import ENGINE_ARGUMENTS, recommend

# A device that reports less is a slice of it, and no slice was learnt from.
LEAST_MEMORY_SHARE = 0.9
_SKIPS: dict[str, HookReason] = {
    "out_of_support": "out_of_support",
    "no_better_than_engine_default": "no_better_than_engine_default",
    "not_safe_enough": "not_safe_enough",
    "engine_default_meets_slo": "engine_default_meets_slo",
    "no_candidate_matches_fixed": "no_candidate_matches_fixed",
    "only_engine_default_starts": "only_engine_default_starts",
    "kv_cache_too_small": "none_feasible",
    "too_few_batched_tokens": "none_feasible",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An endpoint that is about to be created, from whichever door. None: nobody has said it.

    words: the user's command line; config and catalog: settings by key, of the user and of the operator; further:
    options of a front end around vLLM. positional_model: what the platform puts before the words, None where the words
    may name the model. workload: of one replica.
    """

    mode: Mode = "apply"
    project: str | None = None
    endpoint: str | None = None
    words: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    catalog: Mapping[str, Any] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    model: str | None = None
    positional_model: str | None = None
    model_arch: Mapping[str, Any] | None = None
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    engine_version: str | None = None
    workload: Mapping[str, Any] | None = None
    gpu_shared: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDecision:
    """flags: what to set, {} for a skip. read, content: the question and its answer where there was a ranking."""

    reason: HookReason | None
    message: str
    arguments: UserArguments = field(default_factory=UserArguments)
    flags: EngineArgs = field(default_factory=dict)
    preferred: EngineArgs = field(default_factory=dict)
    chosen: EngineArgs = field(default_factory=dict)
    selected_rank: int | None = None
    read: ReadQuery | None = None
    content: dict[str, Any] | None = None

    @property
    def cli_args(self) -> list[str]:
        """The flags as arguments of `vllm serve`, one word each."""
        return arguments(self.flags)


def skipped(error: SkipError, arguments: UserArguments | None = None) -> HookDecision:
    """The decision to change nothing."""
    text = str(error)
    message = f"{text[:1].upper()}{text[1:]}."
    return HookDecision(reason=error.reason, message=message, arguments=arguments or UserArguments())


def decide(
    asked: Asked,
    policies: Policies,
    *,
    recommendation_id: str,
    precedence: Precedence = "user",
    models: ModelCatalogue | None = None,
) -> HookDecision:
    """Ranks under what is pinned, and fills only what is open. The same question gives the same decision."""
    try:
        arguments = read_user_arguments(
            asked.words,
            config=asked.config,
            catalog=asked.catalog,
            precedence=precedence,
            further=asked.further,
            model=asked.positional_model,
        )
    except SkipError as error:
        return skipped(error)
    try:
        if len(arguments.pinned) == len(ENGINE_ARGUMENTS):
            raise SkipError("all_pinned", "all that could be set is set already")
        read = _read(asked, arguments, policies, models)
    except SkipError as error:
        return skipped(error, arguments)
    content = answer(read, recommendation_id=recommendation_id)
    if content["decision"] != "recommended":
        # The wording adds the GiB to the reason of a model that does not fit.
        reason = _SKIPS[content["reason"].partition(":")[0]]
        return HookDecision(reason=reason, message=content["summary"], arguments=arguments, read=read, content=content)
    chosen = content["ranked"][0]
    preferred, selected_rank = _unpinned(read, chosen["config_id"]) if arguments.pinned else ({}, 1)
    return HookDecision(
        reason=None,
        message=content["summary"],
        arguments=arguments,
        flags=content["set"],
        preferred=preferred,
        chosen=chosen["engine_args"],
        selected_rank=selected_rank,
        read=read,
        content=content,
    )


def _unpinned(read: ReadQuery, config_id: str) -> tuple[EngineArgs, int]:
    """With nothing pinned: what would be set, and the rank of this configuration."""
    found = recommend(replace(read.query, fixed={}), read.policy)
    index = INDEX_BY_CONFIG_ID[config_id]
    return found.flags or {}, next(row.rank for row in found.ranked if row.candidate_index == index)


def _read(asked: Asked, arguments: UserArguments, policies: Policies, models: ModelCatalogue | None) -> ReadQuery:
    """The question of POST /v1/recommend that this endpoint asks; SkipError where a part of it is unknown."""
    if asked.gpu is None:
        raise SkipError("unknown_gpu", "nobody says which GPU it will run on")
    if asked.engine_version is None:
        raise SkipError("unknown_engine_version", "nobody says which vLLM it will run")
    if asked.workload is None:
        raise SkipError("no_workload", "nobody says which load it will get")
    body = {
        "model": _model_part(asked),
        "gpu": asked.gpu,
        "gpu_shared": asked.gpu_shared,
        "engine_version": asked.engine_version.partition("+")[0],
        "workload": dict(asked.workload),
        "fixed": dict(arguments.pinned),
        "max_model_len": arguments.max_model_len,
    }
    try:
        read = read_query(body, policies=policies, default_gpu=None, models=models)
        return _as_it_will_run(read, asked, arguments)
    except RefusedError as error:
        raise _skip(error) from None
    except InvalidInputError:
        raise SkipError("workload_exceeds_context", "prompt and answer are longer than max_model_len") from None


def _model_part(asked: Asked) -> dict[str, Any]:
    if asked.model_arch is not None:
        if "same_architecture_as" in asked.model_arch:
            return dict(asked.model_arch)
        numbers = {key: asked.model_arch[key] for key in NUMBER_KEYS if key in asked.model_arch}
        return numbers if len(numbers) == len(NUMBER_KEYS) else {"config": dict(asked.model_arch)}
    if not asked.model:
        raise SkipError("unknown_model", "the request names no model")
    return {"name": asked.model[:200]}


def _as_it_will_run(read: ReadQuery, asked: Asked, arguments: UserArguments) -> ReadQuery:
    """With the context and the memory of this endpoint; InvalidInputError where the load does not fit the context."""
    query = read.query
    model, gpu = query.scenario.model, query.gpu
    if model.name is None and asked.model and len(asked.model) <= 200 and not holds_secret(asked.model):
        model = replace(model, name=asked.model)
    if arguments.context_is_automatic:
        model = replace(model, max_model_len=None)
    if asked.gpu_memory_gib is not None:
        if asked.gpu_memory_gib < LEAST_MEMORY_SHARE * gpu.memory_gib:
            raise SkipError("out_of_support", f"less memory than a whole {gpu.name} has")
        gpu = replace(gpu, memory_gib=min(gpu.memory_gib, asked.gpu_memory_gib))
    scenario = replace(query.scenario, model=model)
    return replace(read, query=replace(query, scenario=scenario, gpu=gpu))


def _skip(error: RefusedError) -> SkipError:
    """By the place of the question that is refused. Values are not repeated."""
    path = error.details[0].path if error.details else "$"
    if path.startswith("$.gpu"):
        return SkipError("unknown_gpu", "this GPU is not one of those that are known")
    if path.startswith("$.engine_version"):
        return SkipError("unknown_engine_version", "the engine's version cannot be read")
    if path.startswith("$.workload"):
        if error.message.startswith("$.workload.prompt_tokens") and "context" in error.message:
            return SkipError("workload_exceeds_context", "prompt and answer are longer than the model's context")
        return SkipError("no_workload", "the load cannot be used")
    if path.startswith("$.fixed"):
        return SkipError("unparsable_args", "an argument is set to something that cannot be used")
    if error.error == "unknown_name":
        return SkipError("unknown_model", "the model is not in the catalogue; model_arch may describe it")
    return SkipError("unsupported_model", "the model's config cannot be sized; POST /v1/models:inspect says why")
