"""`workload` as its owner says it -> the four numbers that are ranked by, or ranges of them; contradictions refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from service.api.problem import Detail, RefusedError
from service.api.workload_part import PRESETS, WorkloadPart
from service.domain.errors import shorten
from service.domain.reference import NamedWorkload
from service.domain.scenario import MAX_TOKENS, Workload
from service.load_range import LoadRange

Span = tuple[float, float]
# Of the announced limit, what requests generate in the traffic that was trained on, on average: two in five times all
# of it, else between a third and nine tenths, or the mean of a real trace against its 95th percentile.
SHARE_OF_LIMIT = 0.7
# Where what is announced is exact, every request generates all of it.
EXACT_SHARE = 1.0
# What stands for a number of clients until a rate has become one.
_UNSETTLED: Span = (1, 1)
LONG_PREFIX = "the prefix in common is longer than a prompt"
_FOUR = frozenset({"prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency"})
_NEEDED = {
    "prompt_tokens": "this field is required, or a preset",
    "max_new_tokens": "this field is required, or output_tokens, max_output_tokens or a preset",
    "shared_prefix_ratio": "this field is required, or shared_prefix_tokens or a preset",
    "concurrency": "this field is required, or requests_per_second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLoad:
    """workload: the middle of load_range where there is one. longest: the largest request, where it is another one.

    assumed: what was filled in, by path. rate_per_s: of one replica, where the clients still have to be found by it;
    output_tokens: the mean that a request generates, where it was given; share: what it is of the limit otherwise.
    """

    workload: Workload
    load_range: LoadRange | None = None
    longest: Workload | None = None
    assumed: Mapping[str, str | float] = field(default_factory=dict)
    rate_per_s: Span | None = None
    output_tokens: Span | None = None
    share: float = SHARE_OF_LIMIT

    @property
    def mean_output_tokens(self) -> float:
        """What a request generates on average, in the middle of a range."""
        if self.output_tokens is None:
            return self.workload.max_new_tokens * self.share
        return math.sqrt(self.output_tokens[0] * self.output_tokens[1])

    def with_clients(self, clients: tuple[int, int]) -> "ReadLoad":
        """The same with the clients that the rate comes to."""
        ends = self.load_range
        if ends is None and clients[0] == clients[1]:
            return replace(self, workload=replace(self.workload, concurrency=clients[0]))
        if ends is None:
            ends = _unmoving(self.workload)
        ends = replace(ends, concurrency=clients)
        return replace(self, workload=ends.middle, load_range=ends)


def read_workload(part: WorkloadPart) -> ReadLoad:
    """RefusedError names what is missing, and of a contradiction both places."""
    prompt, new, ratio, clients = part.prompt_tokens, part.max_new_tokens, part.shared_prefix_ratio, part.concurrency
    # Nearly every program sends these four and nothing else.
    if (
        part.model_fields_set - {"confidence"} == _FOUR
        and isinstance(prompt, int)
        and isinstance(new, int)
        and isinstance(ratio, int | float)
        and isinstance(clients, int)
    ):
        load = Workload(prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=ratio, concurrency=clients)
        return ReadLoad(workload=load, share=_share(part.confidence))
    return _Words.of(part).read()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """spans: what was given, by name, as [low, high]. share: of the limit that requests generate on average."""

    spans: Mapping[str, Span]
    preset: NamedWorkload | None
    replicas: int
    share: float
    assumed: dict[str, str | float]

    @classmethod
    def of(cls, part: WorkloadPart) -> "_Words":
        given = part.announced()
        name, replicas, confidence = (given.pop(key, None) for key in ("preset", "replicas", "confidence"))
        spans = {}
        for key, value in given.items():
            spans[key] = (value[0], value[1]) if isinstance(value, list) else (value, value)
            if spans[key][0] > spans[key][1]:
                _refuse({f"{key}[0]": value[0], f"{key}[1]": value[1]}, "the range is reversed; give [low, high]")
        return cls(
            spans=spans,
            preset=PRESETS.get(name),
            replicas=replicas or 1,
            share=_share(confidence),
            assumed={},
        )

    def read(self) -> ReadLoad:
        self._refuse_contradictions()
        prompt = self._prompt()
        new = self._limit()
        prefix_tokens, ratio = self._prefix(prompt)
        clients, rate = self._clients()
        if prompt is None or new is None or ratio is None or (clients is None and rate is None):
            self._refuse_missing(prompt, new, ratio, clients or rate)
        ends = LoadRange(
            prompt_tokens=_whole(prompt),
            max_new_tokens=_whole(new),
            shared_prefix_ratio=ratio,
            concurrency=_whole(clients or _UNSETTLED),
            prefix_tokens=prefix_tokens,
        )
        middle = ends.middle
        longest = self._longest(middle, ends)
        return ReadLoad(
            workload=middle,
            load_range=ends if _moves(ends) else None,
            longest=None if longest.sequence_tokens == middle.sequence_tokens else longest,
            assumed=self.assumed,
            rate_per_s=rate,
            output_tokens=self.spans.get("output_tokens"),
            share=self.share,
        )

    def _refuse_contradictions(self) -> None:
        spans = self.spans
        for one, other in (("concurrency", "requests_per_second"), ("shared_prefix_ratio", "shared_prefix_tokens")):
            if one in spans and other in spans:
                self._refuse(one, other, "both say the same; leave one of them out")
        for less, more, why in (
            ("output_tokens", "max_new_tokens", "the mean output is above the limit"),
            ("output_tokens", "max_output_tokens", "the mean output is above the longest"),
            ("max_new_tokens", "max_output_tokens", "the limit is above the longest output"),
            ("shared_prefix_tokens", "prompt_tokens", LONG_PREFIX),
        ):
            # A prefix is part of every prompt, so the shortest has to hold it.
            least = 0 if less == "shared_prefix_tokens" else 1
            if less in spans and more in spans and spans[less][1] > spans[more][least]:
                self._refuse(less, more, f"{why}; change one of them")
        output, limit = (spans.get(name, (0, 0)) for name in ("output_tokens", "max_new_tokens"))
        # One mean may stand for all limits of a range; of two ranges the lower ends belong together.
        if output[0] < output[1] and limit[0] < limit[1] and output[0] > limit[0]:
            self._refuse(
                "output_tokens", "max_new_tokens", "at the lower ends the mean output is above the limit; change one"
            )
        if self.preset is not None:
            self._refuse_another_shape(self.preset)
            self._refuse_long_prefix(self.preset)

    def _refuse_long_prefix(self, preset: NamedWorkload) -> None:
        prefix = self.spans.get("shared_prefix_tokens")
        if prefix is not None and "prompt_tokens" not in self.spans and prefix[1] > preset.prompt_tokens:
            why = f"{LONG_PREFIX}, which has {preset.prompt_tokens:,} tokens there; change one of them"
            _refuse({"preset": preset.name, "shared_prefix_tokens": _given(prefix)}, why)

    def _refuse(self, one: str, other: str, why: str) -> NoReturn:
        _refuse({one: _given(self.spans[one]), other: _given(self.spans[other])}, why)

    def _refuse_another_shape(self, preset: NamedWorkload) -> None:
        shared = round(preset.prompt_tokens * preset.shared_prefix_ratio)
        holds: dict[str, tuple[float, Callable[[Span], bool]]] = {
            "prompt_tokens": (preset.prompt_tokens, lambda span: span[0] <= preset.prompt_tokens <= span[1]),
            "max_new_tokens": (preset.max_new_tokens, lambda span: span[0] <= preset.max_new_tokens <= span[1]),
            "output_tokens": (preset.max_new_tokens, lambda span: span[0] <= preset.max_new_tokens <= span[1]),
            "max_output_tokens": (preset.max_new_tokens, lambda span: preset.max_new_tokens <= span[1]),
            "shared_prefix_ratio": (
                preset.shared_prefix_ratio,
                lambda span: span[0] <= preset.shared_prefix_ratio <= span[1],
            ),
            "shared_prefix_tokens": (shared, lambda span: span[0] <= shared <= span[1]),
        }
        for name, (own, agrees) in holds.items():
            if name in self.spans and not agrees(self.spans[name]):
                _refuse(
                    {"preset": preset.name, name: _given(self.spans[name])},
                    f"{preset.name} has {own:g} there; leave one of them out",
                )

    def _prompt(self) -> Span | None:
        if "prompt_tokens" in self.spans or self.preset is None:
            return self.spans.get("prompt_tokens")
        return self._assume("prompt_tokens", (self.preset.prompt_tokens,) * 2)

    def _limit(self) -> Span | None:
        if "max_new_tokens" in self.spans:
            return self.spans["max_new_tokens"]
        if self.preset is not None:
            return self._assume("max_new_tokens", (self.preset.max_new_tokens,) * 2)
        most = self.spans.get("max_output_tokens", (MAX_TOKENS, MAX_TOKENS))[1]
        if "output_tokens" in self.spans:
            low, high = (min(math.ceil(tokens / self.share), most) for tokens in self.spans["output_tokens"])
            return self._assume("max_new_tokens", (low, high))
        if "max_output_tokens" in self.spans:
            return self._assume("max_new_tokens", (most, most))
        return None

    def _prefix(self, prompt: Span | None) -> tuple[tuple[int, int] | None, Span | None]:
        """In tokens, where the share that they are depends on the point of a range; and as a ratio."""
        if "shared_prefix_ratio" in self.spans:
            return None, self.spans["shared_prefix_ratio"]
        if "shared_prefix_tokens" in self.spans and prompt is not None:
            tokens = self.spans["shared_prefix_tokens"]
            ratio = self._assume("shared_prefix_ratio", (tokens[0] / prompt[1], tokens[1] / prompt[0]))
            return (None if prompt[0] == prompt[1] else _whole(tokens)), ratio
        if "shared_prefix_tokens" not in self.spans and self.preset is not None:
            return None, self._assume("shared_prefix_ratio", (self.preset.shared_prefix_ratio,) * 2)
        return None, None

    def _clients(self) -> tuple[Span | None, Span | None]:
        """Clients and rate of one replica; one of them is None."""
        if "requests_per_second" in self.spans:
            low, high = self.spans["requests_per_second"]
            return None, (low / self.replicas, high / self.replicas)
        if "concurrency" not in self.spans or self.replicas == 1:
            return self.spans.get("concurrency"), None
        low, high = (math.ceil(clients / self.replicas) for clients in self.spans["concurrency"])
        return self._assume("concurrency_per_replica", (low, high)), None

    def _longest(self, middle: Workload, ends: LoadRange) -> Workload:
        output = self.spans.get("max_output_tokens", ends.max_new_tokens)[1]
        return replace(middle, prompt_tokens=ends.prompt_tokens[1], max_new_tokens=int(output))

    def _assume(self, name: str, span: tuple[float, ...]) -> Span:
        low, high = span
        self.assumed[f"workload.{name}"] = low if low == high else _text((low, high))
        return low, high

    def _refuse_missing(self, *found: Span | None) -> NoReturn:
        details = [
            Detail(path=f"$.workload.{name}", message=message)
            for (name, message), span in zip(_NEEDED.items(), found, strict=True)
            if span is None and not (name == "shared_prefix_ratio" and "shared_prefix_tokens" in self.spans)
        ]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise RefusedError("invalid_request", f"{details[0].path}: {details[0].message}{more}", details=details)


def _share(confidence: str | None) -> float:
    return EXACT_SHARE if confidence == "exact" else SHARE_OF_LIMIT


def _moves(ends: LoadRange) -> bool:
    prefix = ends.prefix_tokens or ends.shared_prefix_ratio
    return any(low < high for low, high in (ends.prompt_tokens, ends.max_new_tokens, prefix, ends.concurrency))


def _unmoving(workload: Workload) -> LoadRange:
    return LoadRange(
        prompt_tokens=(workload.prompt_tokens,) * 2,
        max_new_tokens=(workload.max_new_tokens,) * 2,
        shared_prefix_ratio=(workload.shared_prefix_ratio,) * 2,
        concurrency=(workload.concurrency,) * 2,
    )


def _whole(span: Span) -> tuple[int, int]:
    return int(span[0]), int(span[1])


def _text(span: Span) -> str:
    ends = [str(end) if isinstance(end, int) else f"{end:.4g}" for end in span]
    return ends[0] if span[0] == span[1] else " to ".join(ends)


def _given(span: Span) -> object:
    """As it was sent."""
    return span[0] if span[0] == span[1] else list(span)


def _refuse(places: Mapping[str, object], why: str) -> NoReturn:
    """places: two that cannot both be meant, with what stands there."""
    values = {f"$.workload.{name}": value for name, value in places.items()}
    stated = " and ".join(f"{path} ({shorten(value)})" for path, value in values.items())
    message = f"{stated} contradict each other: {why}"
    details = [Detail(path=path, message=f"{why} (with {_other(path, values)})", value=values[path]) for path in values]
    raise RefusedError("invalid_request", message, details=details)


def _other(path: str, values: Mapping[str, object]) -> str:
    return next(other for other in values if other != path)
