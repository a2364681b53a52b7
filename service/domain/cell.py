"""A cell: one scenario under one configuration, its result, and where the numbers come from."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from service.domain.errors import ArtefactError, InvalidInputError
from service.domain.scenario import Workload

CELL_SCHEMA_VERSION = 1

Evidence = Literal["measured", "measured-cpu", "simulated"]
_NUMBERS = (
    "completed",
    "waiting_at_end",
    "running_at_end",
    "error_rate",
    "output_throughput_tps",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "kv_usage_peak",
    "preemptions",
    "cached_token_ratio",
)
EVIDENCE_CLASSES: tuple[Evidence, ...] = ("measured", "measured-cpu", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """Names one cell of a plan. workload is a name; its numbers are in the plan."""

    model: str
    workload: str
    concurrency: int
    config_id: str

    @property
    def cell_id(self) -> str:
        """Readable and stable: `Qwen/Qwen3-8B|chat|c64|s256-b8192-g0.90-p1`."""
        return f"{self.scenario_id}|{self.config_id}"

    @property
    def scenario_id(self) -> str:
        """What all candidates of one ranking list have in common."""
        return f"{self.model}|{self.workload}|c{self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a cell's numbers come from. Rows that differ in any of these never share a data set."""

    evidence: Evidence
    gpu: str
    engine_version: str
    scheduler: str
    step_times: str

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE_CLASSES:
            raise ArtefactError(f"evidence {self.evidence!r} is none of {', '.join(EVIDENCE_CLASSES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One row. Undefined is None, not zero; a failed cell is a row with a cause.

    Times in milliseconds at the client; throughput in output tokens per second of the measured window;
    kv_usage_peak is a share of the KV cache; cached_token_ratio a share of the prompt tokens of admitted requests.
    """

    key: CellKey
    workload: Workload
    plan_sha256: str
    provenance: Provenance
    status: Literal["ok", "failed"]
    failure_cause: str | None
    completed: int
    waiting_at_end: int | None
    running_at_end: int | None
    error_rate: float
    output_throughput_tps: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None
    kv_usage_peak: float | None
    preemptions: int | None
    cached_token_ratio: float | None
    slo_met: bool

    def __post_init__(self) -> None:
        self._check_values()
        failed = self.status == "failed"
        if failed != (self.failure_cause is not None):
            raise ArtefactError(f"{self.key.cell_id}: a failed cell, and only a failed one, has a failure_cause")
        if failed and (self.slo_met or self.output_throughput_tps != 0 or self.completed):
            raise ArtefactError(f"{self.key.cell_id}: a failed cell has no throughput and meets no SLO")
        if not failed and (self.completed < 1 or self.ttft_p95_ms is None):
            raise ArtefactError(f"{self.key.cell_id}: status ok with nothing completed")

    def _check_values(self) -> None:
        where = self.key.cell_id
        if self.status not in ("ok", "failed"):
            raise ArtefactError(f"{where}: status {self.status!r} is neither ok nor failed")
        if self.workload.concurrency != self.key.concurrency:
            raise ArtefactError(f"{where}: the workload has {self.workload.concurrency} clients")
        if not isinstance(self.slo_met, bool):
            raise ArtefactError(f"{where}: slo_met {self.slo_met!r} is neither true nor false")
        for name in _NUMBERS:
            value = getattr(self, name)
            # Comparisons with NaN are false, so it is refused with the infinities.
            if value is not None and not 0 <= value < math.inf:
                raise ArtefactError(f"{where}: {name} is {value!r}; no run can give that")
        if not self.error_rate <= 1:
            raise ArtefactError(f"{where}: error_rate {self.error_rate!r} is no share")

    def to_row(self) -> dict[str, Any]:
        """The flat row of the cells' files."""
        row = asdict(self)
        nested = {**row.pop("provenance"), **row.pop("key"), **row.pop("workload")}
        # The workload's name and its concurrency are part of the key; the three lengths come from its numbers.
        nested["workload"] = self.key.workload
        return {"schema_version": CELL_SCHEMA_VERSION, "cell_id": self.key.cell_id, **nested, **row}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Inverse of to_row; ArtefactError if a column is missing, foreign or contradicts another."""
        values = dict(row)
        version = values.pop("schema_version", None)
        if version != CELL_SCHEMA_VERSION:
            raise ArtefactError(
                f"cell schema_version {version!r}, this program reads {CELL_SCHEMA_VERSION}; simulate again"
            )
        try:
            cell_id = values.pop("cell_id")
            key = CellKey(**{name: values[name] for name in CellKey.__slots__})
            workload = Workload(
                prompt_tokens=values.pop("prompt_tokens"),
                max_new_tokens=values.pop("max_new_tokens"),
                shared_prefix_ratio=values.pop("shared_prefix_ratio"),
                concurrency=key.concurrency,
            )
            provenance = Provenance(**{name: values.pop(name) for name in Provenance.__slots__})
            for name in CellKey.__slots__:
                values.pop(name)
            cell = cls(key=key, workload=workload, provenance=provenance, **values)
        except (KeyError, TypeError, InvalidInputError) as error:
            raise ArtefactError(f"not a cell row: {error}; columns are {', '.join(sorted(row))}") from error
        if cell.key.cell_id != cell_id:
            raise ArtefactError(f"cell_id {cell_id!r} does not belong to {cell.key.cell_id!r}")
        return cell
