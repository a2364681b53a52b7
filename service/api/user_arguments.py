"""What the user and the operator's catalogue have set already, from wherever it stands."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.api.argument_effects import FOREIGN, PARALLEL, SAME_QUESTION, WORTH_A_WARNING
from service.api.request_schemas import MOST_TEXT
from service.api.secret import arguments_hold_secret, holds_secret
from service.api.skip import SkipError
from service.engine_args import AUTOMATIC, ConfigFileError, UnparsableArgsError, read_args, size, split_words
from service.recommend import ENGINE_ARGUMENTS

Source = Literal["user_set", "catalog_set"]
Precedence = Literal["user", "catalog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignArgument:
    """An argument that makes it another question than the one that was learnt. learnt: None where it must be unset."""

    name: str
    value: object
    learnt: str | int | float | bool | None
    refusal: SkipError


@dataclass(frozen=True, slots=True, kw_only=True)
class UserArguments:
    """pinned: those of a candidate's four arguments that are set; sources: by whom. max_model_len: None if open.

    given: all that the command line sets. foreign: what makes it another question, where that is reported.
    """

    pinned: dict[str, int | float | bool] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    max_model_len: int | None = None
    context_is_automatic: bool = False
    warnings: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    foreign: tuple[ForeignArgument, ...] = ()


def words_of(extra_args: object) -> list[str]:
    """The words of `extra_args`; SkipError unless vLLM's command line could hold them."""
    if extra_args is None:
        return []
    if not isinstance(extra_args, str) or len(extra_args) > MOST_TEXT:
        raise SkipError("unparsable_args", f"extra_args is no text of up to {MOST_TEXT:,} characters")
    try:
        words = split_words(extra_args)
    except UnparsableArgsError as error:
        raise SkipError("unparsable_args", str(error)) from None
    return words


def read_user_arguments(
    words: Sequence[str],
    *,
    config: Mapping[str, Any],
    catalog: Mapping[str, Any],
    precedence: Precedence = "user",
    further: tuple[str, ...] = (),
    model: str | None = None,
    foreign: Literal["skip", "report"] = "skip",
) -> UserArguments:
    """words: the command line's; config: workload_config; catalog: vllm_config of the operator's entry. SkipError.

    model: that of the question, None where another one may be started. foreign: what becomes of an argument that makes
    it another question.
    """
    if arguments_hold_secret(words) or any(isinstance(v, str) and holds_secret(v) for v in config.values()):
        raise SkipError("secret_in_args", "an argument looks like a secret, which an answer would have to repeat")
    given, by_config = _given(words, further), _by_argument(config)
    _refuse_conflict(given, by_config)
    user = {**by_config, **given}
    _refuse_another_model(user.get("model"), model)
    operator = {**_by_argument(catalog), **_given(words_of(catalog.get("extra_args")), ())}
    merged = {**operator, **user} if precedence == "user" else {**user, **operator}
    reported = []
    for argument in _another_question(merged):
        if foreign == "skip":
            raise argument.refusal
        reported.append(argument)
    from_user = user.keys() if precedence == "user" else user.keys() - operator.keys()
    pinned = {name: _typed(name, merged[name]) for name in ENGINE_ARGUMENTS if name in merged}
    context = _whole("max_model_len", merged["max_model_len"]) if "max_model_len" in merged else None
    return UserArguments(
        pinned=pinned,
        sources={name: "user_set" if name in from_user else "catalog_set" for name in pinned},
        max_model_len=None if context == AUTOMATIC else context,
        context_is_automatic=context == AUTOMATIC,
        warnings=tuple(
            text for name, (same, text) in WORTH_A_WARNING.items() if name in merged and merged[name] is not same
        ),
        given=given,
        foreign=tuple(reported),
    )


def _given(words: Sequence[str], further: tuple[str, ...]) -> dict[str, Any]:
    try:
        return read_args(words, further=further)
    except ConfigFileError as error:
        raise SkipError("user_config_file", str(error)) from None
    except UnparsableArgsError as error:
        raise SkipError("unparsable_args", str(error)) from None


def _by_argument(config: Mapping[str, Any]) -> dict[str, Any]:
    """Present and not null, by vLLM's names: Metis says tensor_parallel, not tensor_parallel_size."""
    by_alias = {alias: name for name, alias in PARALLEL.items()}
    plain = {str(key).replace("-", "_"): value for key, value in config.items() if value is not None}
    return {by_alias.get(name, name): value for name, value in plain.items() if name != "extra_args"}


def _refuse_conflict(given: Mapping[str, Any], by_config: Mapping[str, Any]) -> None:
    for name in (*ENGINE_ARGUMENTS, "max_model_len"):
        if name in given and name in by_config and _typed(name, given[name]) != _typed(name, by_config[name]):
            raise SkipError("conflicting_args", f"{name} has two values, one in extra_args and one outside it")


def _refuse_another_model(set_to: object, model: str | None) -> None:
    if model is None or set_to is None or str(set_to).strip().casefold() == model.strip().casefold():
        return
    raise SkipError("conflicting_args", "model is set to another one than the question is about")


def _another_question(merged: Mapping[str, Any]) -> Iterator[ForeignArgument]:
    for name in PARALLEL:
        if name in merged and (number := _whole(name, merged[name])) != 1:
            refusal = SkipError("not_one_gpu", f"{name} is not 1, and only servers on one GPU were learnt from")
            yield ForeignArgument(name=name, value=number, learnt=1, refusal=refusal)
    for name in sorted(FOREIGN & merged.keys()):
        same = SAME_QUESTION.get(name, ())
        # vLLM reads an empty word and `None` as not set.
        if merged[name] not in ("", "None", *same):
            refusal = SkipError("unsupported_args", f"{name} is set, and no server with it was learnt from")
            yield ForeignArgument(name=name, value=merged[name], learnt=next(iter(same), None), refusal=refusal)


def _typed(name: str, value: object) -> int | float | bool:
    if name == "enable_prefix_caching":
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise _unusable(name)
        return value
    return _number(name, value) if name == "gpu_memory_utilization" else _whole(name, value)


def _whole(name: str, value: object) -> int:
    if isinstance(value, str):
        try:
            value = AUTOMATIC if name == "max_model_len" and value.strip().lower() == "auto" else size(value)
        except (ValueError, OverflowError):
            raise _unusable(name) from None
    least = AUTOMATIC if name == "max_model_len" else 1
    if isinstance(value, bool) or not isinstance(value, int) or value == 0 or not least <= value <= 100_000_000:
        raise _unusable(name)
    return value


def _number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= 1:
        raise _unusable(name)
    return number


def _unusable(name: str) -> SkipError:
    return SkipError("unparsable_args", f"{name} is set to something that vLLM would refuse")
