"""The member `expected` of an answer as it is documented."""

from pydantic import BaseModel, ConfigDict, Field

from service.domain.cell import Evidence
from service.domain.regime import Regime


class ExpectedModel(BaseModel):
    """No member beyond the documented ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpectedRange(ExpectedModel):
    """A quantity: its median over true workloads that could hide behind the announced one, and a range around it."""

    value: float = Field(description="The median.")
    low: float = Field(description="Lower end of the range, see `band`.")
    high: float = Field(description="Upper end of the range, see `band`.")


class ExpectedMeets(ExpectedModel):
    """Whether the value is within the limit."""

    max_p95_ttft_ms: bool
    max_p95_tpot_ms: bool = Field(description="True where an answer has one token and so no further ones.")


class ExpectedSide(ExpectedModel):
    """Of one configuration."""

    config_id: str
    output_throughput_tps: ExpectedRange = Field(description="Output tokens per second of the whole server.")
    ttft_p95_ms: ExpectedRange = Field(description="95th percentile of the time to the first token.")
    tpot_p95_ms: ExpectedRange | None = Field(
        description="95th percentile of the time per further token; null where an answer has one token."
    )
    slo_met_chance: float | None = Field(
        description="Calibrated chance that the limits of training are met; null where other limits are judged. "
        "Estimated separately from the values: it may say the opposite of `meets_slo`."
    )
    meets_slo: ExpectedMeets = Field(description="The values against `slo`.")
    regime: Regime = Field(description="What bounds the server: the simulator's error differs by it.")
    simulator_error_unknown: dict[str, str] = Field(
        description="Quantities without measurements to compare simulations with in this regime, and why: their range "
        "is that of the workloads alone."
    )


class ChangeRange(ExpectedModel):
    """A relative change: 0.064 is 6.4 % more, -0.1 is a tenth less."""

    value: float = Field(description="The median.")
    low: float = Field(description="Lower end of the range: the quantile `band.from_quantile`.")
    high: float = Field(description="Upper end of the range: the quantile `band.to_quantile`.")


class ExpectedChange(ExpectedModel):
    """By what share the quantities of what ranks first differ from those of the engine's default.

    Paired: the ratio of both in the same draw of the true workload, so that what both share cancels. The range is that
    over draws; the simulator's own error is not in it: both sides share it, and nothing tells how far it cancels.
    Estimated by itself: the quotient of the two values, into which the errors of both go, need not be it."""

    output_throughput_tps: ChangeRange
    ttft_p95_ms: ChangeRange
    tpot_p95_ms: ChangeRange | None = Field(description="Null where an answer has one token.")


class ExpectedApart(ExpectedModel):
    """Whether what ranks first can be told from what would run without it.

    Of a `change`: whether it is larger than the estimator's own error of such ratios (the median error of its test
    sets), or its whole range lies on one side of 0; up to 0.5 % never. Where there is no change, the same of the two
    numbers: whether they differ by more than the error of one, or their ranges do not meet. Where not, neither is the
    better one."""

    output_throughput_tps: bool
    ttft_p95_ms: bool
    tpot_p95_ms: bool | None = Field(description="Null where an answer has one token.")


class ExpectedLimits(ExpectedModel):
    """Limits of service."""

    max_p95_ttft_ms: float
    max_p95_tpot_ms: float
    max_error_rate: float = Field(description="Not judged: nothing estimates a share of failed requests.")


class ExpectedBand(ExpectedModel):
    """What lies between `low` and `high`: these quantiles of what would be measured.

    Two spreads are joined as independent ones: over true workloads behind the announced one (lengths and clients vary),
    and of the simulator's relative error in the regime, from comparisons with measurements (their 5th to 95th
    percentile). Both are taken in logarithms; the error's mean moves the range, and on each side the root of the sum of
    the squared distances is taken. `value` stays what was simulated.
    """

    from_quantile: float
    to_quantile: float


class ExpectedPart(ExpectedModel):
    """Predicted by a network from runs of the stated evidence; absent where nothing was learnt."""

    evidence: Evidence
    recommended: ExpectedSide | None = Field(description="Of what is to be set; null where nothing is.")
    declined: ExpectedSide | None = Field(
        description="Of the configuration that ranks first, where the engine's default is kept all the same."
    )
    engine_default: ExpectedSide | None = Field(
        description="Of what vLLM starts with when nothing further is set: its default, or what is fixed with its "
        "defaults for the rest (`config_id`). Null where that would not start, and where what is fixed lies outside of "
        "the configurations that were learnt from."
    )
    change: ExpectedChange | None = Field(
        description="Null where there are not two sides, and where `fixed` makes vLLM start with something else than "
        "its default: changes were learnt against that alone. Of the middle of a range."
    )
    told_apart: ExpectedApart | None = Field(description="Null where there are not two sides.")
    slo: ExpectedLimits = Field(description="The limits that are judged: the request's own, where it has any.")
    slo_trained_for: ExpectedLimits = Field(description="Those that the ranking and its caution were trained for.")
    band: ExpectedBand
