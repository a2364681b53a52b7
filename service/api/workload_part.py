"""`workload` of a question: the four numbers that are ranked, or the words that their owner has for them."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from service.api.request_part import RequestPart
from service.domain.manifest import Confidence
from service.domain.reference import REFERENCE_WORKLOADS
from service.domain.scenario import MAX_CONCURRENCY, MAX_TOKENS

Preset = Literal["chat", "rag", "agent", "summarize", "codeassist", "longgen"]
# Nobody divides one load among more servers than there are clients.
MAX_REPLICAS = MAX_CONCURRENCY
MAX_REQUESTS_PER_SECOND = 1e6
# Tags of the two forms of a number; pydantic puts them into an error's location.
ONE, RANGE = "one", "range"

Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Clients = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]
PerSecond = Annotated[float, Field(ge=1e-6, le=MAX_REQUESTS_PER_SECOND)]
_BOTH_ENDS = Field(min_length=2, max_length=2, description="[low, high]")


def _form(value: object) -> str:
    return RANGE if isinstance(value, list | tuple) else ONE


_BY_FORM = Discriminator(_form)
Number = TypeVar("Number")
OneOrRange = Annotated[
    Annotated[Number, Tag(ONE)] | Annotated[Annotated[list[Number], _BOTH_ENDS], Tag(RANGE)],
    _BY_FORM,
]
Counts = OneOrRange[Count]
ClientCounts = OneOrRange[Clients]
Ratios = OneOrRange[Ratio]
Rates = OneOrRange[PerSecond]

PRESETS = {named.name: named for named in REFERENCE_WORKLOADS}
_NUMBERS_OF_PRESETS = "; ".join(
    f"{named.name} {named.prompt_tokens} → {named.max_new_tokens}, {named.shared_prefix_ratio:g}"
    for named in REFERENCE_WORKLOADS
)


class WorkloadPart(RequestPart):
    """What is announced about the load. A number may be a range, [low, high], over which the choice then has to hold.

    Needed are the prompt, the output, the prefix in common and the clients, each in one of its forms or by `preset`.
    """

    preset: Preset | None = Field(
        default=None,
        description="A known shape of requests, prompt → output tokens and shared ratio: "
        f"{_NUMBERS_OF_PRESETS}. It says nothing of how many requests come. What it fills in is listed under "
        "`assumed`; a number given beside it has to agree.",
    )
    prompt_tokens: Counts | None = Field(default=None, description="Tokens of a prompt: the mean over requests.")
    max_new_tokens: Counts | None = Field(
        default=None,
        description="Tokens that a request generates at most: the limit that is set, or the 95th percentile. This is "
        "the number that is ranked by.",
    )
    output_tokens: Counts | None = Field(
        default=None,
        description="Tokens that a request generates: the mean over requests. Without max_new_tokens the limit is "
        "taken to be output_tokens ÷ 0.7, the share of it that the traffic of training used (1 where confidence is "
        "exact), and at most max_output_tokens.",
    )
    max_output_tokens: Count | None = Field(
        default=None,
        description="Tokens of the longest output: the maximum over requests. One request of that length has to "
        "fit; it is not ranked by, unless nothing else says how long outputs are.",
    )
    shared_prefix_ratio: Ratios | None = Field(
        default=None,
        description="Designed share of the prompt that all requests have in common, 0 to 1: the mean over requests.",
    )
    shared_prefix_tokens: Annotated[
        Annotated[int, Field(ge=0, le=MAX_TOKENS), Tag(ONE)]
        | Annotated[Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]], _BOTH_ENDS], Tag(RANGE)],
        _BY_FORM,
    ] | None = Field(
        default=None,
        description="The same in tokens, such as of a system prompt; the ratio is this ÷ prompt_tokens.",
    )  # fmt: skip
    concurrency: ClientCounts | None = Field(
        default=None,
        description="Clients that each keep one request in flight: the mean of requests in flight when it is busy.",
    )
    requests_per_second: Rates | None = Field(
        default=None,
        description="Instead of concurrency: the mean rate when it is busy. It becomes the concurrency at which "
        "vLLM's default finishes so many requests by simulated runs, expected throughput ÷ mean output; it and the "
        "mean latency, by Little's law, are listed under `assumed`.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REPLICAS,
        description="Servers that share the load evenly. Each gets ⌈concurrency ÷ replicas⌉ clients, or "
        "requests_per_second ÷ replicas.",
    )

    confidence: Confidence | None = Field(
        default=None,
        description="How well these numbers are known: exact, typical (which is taken if left out) or rough. Selects "
        "the policy that was trained for it.",
    )

    def announced(self) -> dict[str, Any]:
        """What was said, by name."""
        return self.model_dump(exclude_none=True)
