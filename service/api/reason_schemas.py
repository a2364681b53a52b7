"""The reasons of an answer as they are documented: how it holds over a range, how far, and what it rests on."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.domain.regime import Regime

Limit = Literal["kv_memory", "sequences", "prefill_budget", "front_end", "none"]


class ReasonPart(BaseModel):
    """No member beyond the documented ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LoadPart(ReasonPart):
    """A workload as one server has it."""

    prompt_tokens: int
    max_new_tokens: int
    shared_prefix_ratio: float
    concurrency: int


class RangeEnds(ReasonPart):
    """[low, high] of each number as one server has it, the same twice where there is no range."""

    prompt_tokens: list[int] = Field(min_length=2, max_length=2)
    max_new_tokens: list[int] = Field(min_length=2, max_length=2)
    shared_prefix_ratio: list[float] = Field(min_length=2, max_length=2)
    concurrency: list[int] = Field(min_length=2, max_length=2)


class HeldPart(ReasonPart):
    """How one configuration does over the range, in utility: throughput as a share of the best, if the limits of
    training are met, else -1; less the prices of the chances of being worse than the engine's default and than the
    first of /v1/configs, where the policy has them and it is the default that would run."""

    config_id: str
    mean_gain: float | None = Field(
        description="Over what starts where nothing further is set, the mean over the range, in utility less the "
        "prices of risk where there are any; null where the policy has no such comparison."
    )
    worst_regret: float = Field(description="Against the best that can be chosen at the same point, the most of any.")
    worst_at: LoadPart = Field(description="The point of that regret.")


class RangePart(ReasonPart):
    """The choice over a range: of the configurations whose worst-case regret is within 0.02 of the least, the one of
    the best mean utility. `expected` and capacities are those of the middle; support is judged at the corners too."""

    ends: RangeEnds
    middle: LoadPart = Field(description="Of every range the middle, of counts by factors.")
    points: int = Field(description="That stand for the range: evenly over its inside, and all of its corners.")
    first: HeldPart | None = Field(
        description="What `ranked` begins with. It and the next two are null outside of support."
    )
    best_mean: HeldPart | None = Field(description="The best on average, whatever its worst case.")
    least_regret: HeldPart | None = Field(description="The least worst case, whatever its average.")


class Turn(ReasonPart):
    """Where another choice comes first: the choice holds before this value, not at it."""

    value: float = Field(description="Of that number, the others as they are.")
    choice: str = Field(description="The config_id that comes first there, or `engine_default`: set nothing.")


class Turns(ReasonPart):
    """How far one number may move."""

    below: Turn | None = Field(description="The nearest lower value that was found; null: it holds to the trained end.")
    above: Turn | None = Field(description="The same upwards.")


class HoldsUntilPart(ReasonPart):
    """How far each number of the workload has to move, the others as they are, before the choice is another one; of a
    range it is the middle that moves, and its choice is that of the range. Found by steps of at most a thirty-second of
    the way to the trained end."""

    choice: str = Field(description="What is chosen without a move: a config_id, or `engine_default`: set nothing.")
    prompt_tokens: Turns
    max_new_tokens: Turns
    shared_prefix_ratio: Turns
    concurrency: Turns


class MarginPart(ReasonPart):
    """By how much the configuration that ranks first is ahead, negative where it is behind; null outside of support.

    In utility less the prices of the chances of being worse than the engine's default and than the first of
    /v1/configs, where the policy has them and it is the default that would run. That difference is what decides, not
    the one of the expected numbers."""

    to_engine_default: float | None = Field(
        description="Over what starts where nothing further is set: vLLM's default, or what is fixed with its "
        "defaults for the rest. Null where the policy has no such comparison, without chunked prefill, and where that "
        "would not start."
    )
    to_second: float | None = Field(description="Of those that can be chosen; null where there is no second.")
    second: str | None = Field(description="Its config_id.")
    needed: float | None = Field(description="What to_engine_default has to exceed before flags are set.")


class SeenNumbers(ReasonPart):
    """What a configuration did in simulated or measured runs, medians over draws of the true workload."""

    throughput_tps: float
    ttft_p95_ms: float | None = Field(description="Null where no request was answered.")
    tpot_p95_ms: float | None = Field(description="Null where no answer had two tokens.")


class NeighbourPart(ReasonPart):
    """A scenario of the training data."""

    distance: float = Field(
        description="Over the 8 features of model and workload, each in units of the trained range, sizes and lengths "
        "by factors: 0 is the same, 1 is the whole range of one feature."
    )
    weight_gb: float
    num_layers: float
    hidden_size: float
    kv_bytes_per_token: float
    prompt_tokens: float
    max_new_tokens: float
    shared_prefix_ratio: float
    concurrency: float
    config_id: str = Field(description="The best candidate there.")
    best: SeenNumbers = Field(description="What that did.")
    engine_default: SeenNumbers = Field(description="What the engine's default did.")


class LimitPart(ReasonPart):
    """What binds the configuration that would run."""

    config_id: str = Field(description="The one that would run: the first, or what starts when nothing further is set.")
    limit: Limit = Field(
        description="KV memory, max_num_seqs, max_num_batched_tokens, the assumed serial front end, or none of these."
    )
    regime: Regime
    sentence: str


class ExplanationPart(ReasonPart):
    """What the answer rests on, of facts that stand in it."""

    margin: MarginPart
    neighbours: list[NeighbourPart] = Field(
        max_length=3, description="The nearest, nearest first; empty where the bundle carries none."
    )
    limit: LimitPart | None = Field(description="Null for `none_feasible`: nothing would run, see `shortfall`.")
