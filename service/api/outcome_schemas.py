"""The bodies of POST /v1/outcomes: one report, or the file that `bench_runner verify` writes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.caller import NAME_PATTERN, Mode
from service.api.request_part import RequestPart
from service.domain.interval import Interval

ReportedArm = Literal["recommended", "engine_default", "other"]
MeasuredEvidence = Literal["measured", "measured-cpu"]
# PostgreSQL's text holds no NUL, and no name needs another control character.
PRINTABLE = r"^[^\u0000-\u001f]*$"
AnswerId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,36}$")]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Number = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
EngineValue = bool | int | float | Annotated[str, Field(max_length=500)] | None


class IntervalPart(RequestPart):
    """A mean with its 95 % interval; low and high are null with fewer than two values."""

    mean: Number
    low: float | None
    high: float | None
    n: int = Field(ge=1)


class MeasuredPart(RequestPart):
    """What was measured on the server that really ran. Leave out what was not measured: it is not zero."""

    output_throughput_tps: Number | IntervalPart | None = Field(default=None, description="Output tokens per second.")
    request_throughput_rps: Number | None = None
    ttft_p50_ms: Number | None = None
    ttft_p95_ms: Number | IntervalPart | None = None
    tpot_p50_ms: Number | None = None
    tpot_p95_ms: Number | IntervalPart | None = None
    e2el_p95_ms: Number | None = None
    error_rate: Share | None = None
    kv_usage_peak: Share | None = None
    cached_token_ratio: Share | None = None
    preemptions: Number | None = None
    completed: Number | None = None
    waiting_at_end: Number | None = None
    slo_met: bool | Share | None = Field(default=None, description="Whether the SLO was met, or in which share.")
    window_s: Number | None = Field(default=None, description="Length of the window that was looked at.")
    window_end_unix: Number | None = Field(default=None, description="Its end, in Unix seconds.")


class OutcomeReport(RequestPart):
    """One report about one recommendation, named by its id or by the project and endpoint that it was for."""

    recommendation_id: AnswerId | None = None
    project: Name | None = None
    endpoint: Name | None = None
    arm: ReportedArm = Field(description="What ran: what was recommended, the engine's own default, or something else.")
    engine_args: dict[str, EngineValue] = Field(max_length=200, description="The engine arguments that really ran.")
    measured: MeasuredPart
    mode: Mode = Field(default="apply", description="`shadow`: the recommendation was not acted on.")
    evidence: MeasuredEvidence = "measured"
    source: Literal["report", "collector"] = "report"
    report_id: Name | None = Field(
        default=None, description="Makes a repeated report one report; left out, its content does."
    )


class VerifiedArm(BaseModel):
    """One side of a verification; the visits are rows of cells, of which the measured columns are kept."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    arm: Literal["recommended", "engine_default"]
    engine_args: dict[str, EngineValue] = Field(max_length=200)
    visits: list[dict[str, Any]] = Field(max_length=1000)


class VerifiedOutcome(BaseModel):
    """The outcome file of `bench_runner verify`, as it is; what is not kept is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    schema_version: Literal[1]
    recommendation_id: AnswerId | None
    verdict: Literal["confirmed", "contradicted", "too noisy"]
    evidence: MeasuredEvidence
    model: str = Field(max_length=200, pattern=PRINTABLE)
    gpu: str = Field(max_length=100, pattern=PRINTABLE)
    workload: dict[str, Any] = Field(max_length=50)
    arms: dict[Literal["recommended", "engine_default"], VerifiedArm]


class OutcomeAnswer(BaseModel):
    """What became of a report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outcome_ids: list[str] = Field(description="One for each report; a verification holds one for each visit.")
    accepted: int = Field(description="Reports that are new.")
    duplicates: int = Field(description="Reports that were there already.")
    matched: bool = Field(description="False: the recommendation is not on record yet; the report counts once it is.")


class ObservedArm(BaseModel):
    """Reports of one arm. Intervals are 95 % of the mean; failed and invalid reports are counted, not averaged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reports: int
    failed: int = Field(description="Reports without any throughput.")
    invalid: int = Field(description="Reports that say that they measured something else, such as their own client.")
    output_throughput_tps: Interval | None
    ttft_p95_ms: Interval | None
    tpot_p95_ms: Interval | None
    slo_met: float | None = Field(description="Share of the reports that say.")


class Comparison(BaseModel):
    """Recommended against the engine's default, over pairs of reports that belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Literal["compared", "not enough data"]
    pairs: int
    pairs_needed: int
    throughput_ratio: Interval | None = Field(
        description="Recommended ÷ default: geometric mean over the pairs; null where there are too few."
    )


class Expectation(BaseModel):
    """What the policies predicted for these recommendations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_throughput_tps: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    recommendations: int = Field(description="Recommendations that carried a prediction.")


class OutcomeGroup(BaseModel):
    """One model under one workload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None
    gpu: str | None
    workload: dict[str, Any] | None
    mode: Mode
    recommendations: int = Field(description="Recommendations that reports name.")
    expected: Expectation | None = Field(description="Null where no policy predicted numbers.")
    observed: dict[ReportedArm, ObservedArm]
    not_as_recommended: int = Field(
        description="Reports of the recommended arm whose engine arguments are others; they count as `other`."
    )
    comparison: Comparison


class OutcomeSummary(BaseModel):
    """Expected against observed, per model and workload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    days: int
    reports: int
    unmatched: int = Field(description="Reports whose recommendation is not on record.")
    groups: list[OutcomeGroup]
