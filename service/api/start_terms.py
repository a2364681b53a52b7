"""What a question says about how the server will be started: arguments that are set already, and its context."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from service.api.problem import Detail, RefusedError
from service.api.request_schemas import ModelByName, ModelLike, ModelPart, RecommendRequest
from service.api.skip import SkipError
from service.api.user_arguments import ForeignArgument, UserArguments, read_user_arguments, words_of
from service.domain.scenario import ModelArch
from service.engine_args import AUTOMATIC
from service.exclusion import EngineArgs
from service.support import OutOfRange

# What the servers that were learnt from ran with; named where a user shows that it is not a matter of course.
LEARNT_WITH: Mapping[str, str | int | bool] = {
    "tensor_parallel_size": 1,
    "dtype": "bfloat16",
    "quantization": "none",
    "kv_cache_dtype": "auto",
    "enable_chunked_prefill": True,
    "enforce_eager": False,
    "async_scheduling": True,
    "speculative_config": "none",
}
CHUNKED_PREFILL = "enable_chunked_prefill"
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTerms:
    """fixed: what is set of a candidate's four arguments. max_model_len: the context that is set, None if none is.

    words: the user's own arguments; in_words: the names of what they set. outside: what of it nothing was learnt from.
    """

    fixed: EngineArgs = field(default_factory=dict)
    chunked_prefill: bool = True
    max_model_len: int | None = None
    context_is_automatic: bool = False
    words: tuple[str, ...] = ()
    in_words: frozenset[str] = frozenset()
    outside: tuple[OutOfRange, ...] = ()
    assumed: Mapping[str, str | int | bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def applied_to(self, model: ModelArch) -> ModelArch:
        """The model with the context that it will be started with; None where the engine finds one that fits."""
        if self.max_model_len is None and not self.context_is_automatic:
            return model
        return replace(model, max_model_len=self.max_model_len)

    def warnings_for(self, model: ModelArch) -> tuple[str, ...]:
        """What to know of these terms with this model, which still has its own context."""
        own = model.max_model_len
        if self.max_model_len is None or own is None or self.max_model_len <= own:
            return self.warnings
        longer = (
            f"max_model_len {self.max_model_len:,} is more than the {own:,} tokens of the model's own context: vLLM "
            "refuses that unless the model's config.json allows for it."
        )
        return (*self.warnings, longer)

    @property
    def context_to_set(self) -> int | None:
        """The context that a command has to carry beside the user's own arguments."""
        return None if "max_model_len" in self.in_words else self.max_model_len

    @property
    def sized_in_words(self) -> EngineArgs:
        """What the user's own arguments set of what the memory was computed with."""
        sized = {name: value for name, value in self.fixed.items() if name in self.in_words}
        if "max_model_len" in self.in_words:
            sized["max_model_len"] = AUTOMATIC if self.max_model_len is None else self.max_model_len
        return sized


NO_TERMS = StartTerms()


def start_terms(request: RecommendRequest) -> StartTerms:
    """RefusedError where vLLM would refuse the arguments, or where two places disagree about one."""
    if request.fixed is None and request.max_model_len is None and request.extra_args is None:
        return NO_TERMS
    fixed = request.fixed.model_dump(exclude_none=True) if request.fixed else {}
    chunked_prefill: bool = fixed.pop(CHUNKED_PREFILL, True)
    if request.extra_args is None:
        return StartTerms(fixed=fixed, chunked_prefill=chunked_prefill, max_model_len=request.max_model_len)
    try:
        words = words_of(request.extra_args)
        found = read_user_arguments(
            words,
            config={**fixed, "max_model_len": request.max_model_len},
            catalog={},
            model=_name(request.model),
            foreign="report",
        )
    except SkipError as error:
        # The text stays with the caller: it may hold a secret.
        detail = Detail(path="$.extra_args", message=f"{error}; correct the arguments or leave them out")
        raise RefusedError("invalid_request", f"{detail.path}: {detail.message}", details=[detail]) from None
    return StartTerms(
        fixed=found.pinned,
        chunked_prefill=found.given.get(CHUNKED_PREFILL, chunked_prefill),
        max_model_len=found.max_model_len,
        context_is_automatic=found.context_is_automatic,
        words=tuple(words),
        in_words=frozenset(found.given),
        outside=tuple(_outside(argument) for argument in found.foreign),
        assumed=_assumed(found) if words else {},
        warnings=found.warnings,
    )


def _name(model: ModelPart) -> str | None:
    """As the command has it; None where it has a placeholder."""
    return model.name if isinstance(model, ModelByName | ModelLike) else None


def _outside(argument: ForeignArgument) -> OutOfRange:
    value = argument.value if isinstance(argument.value, int | float) else str(argument.value)[:_LONGEST_VALUE]
    return OutOfRange(feature=f"extra_args.{argument.name}", value=value, trained_for=argument.learnt)


def _assumed(found: UserArguments) -> dict[str, str | int | bool]:
    """What the ranking takes for granted, except where the user says the same."""
    return {f"extra_args.{name}": learnt for name, learnt in LEARNT_WITH.items() if found.given.get(name) != learnt}
