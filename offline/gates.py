"""Seven gates, "not worse than FIXED", for the policy that dev selected, judged once on the test split.

Each asks whether the far end of a 95 % paired bootstrap interval stays inside a margin, so wide intervals fail: a
passed set shows "not worse by more than the margins", not improvement. Margins: one scenario in sixteen for violations;
none for failures, because a server that does not start serves nobody; 5 % of FIXED's own value for throughput and
goodput; 0.05 for the two regrets; 10 % for the TTFT tail, the one that a mean would hide.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from offline.comparison import TTFT_TAIL_RATIO, Comparison, Estimate, finite
from service.domain.errors import ArtefactError

GATES_BASE = "FIXED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """`bound` of the interval of `metric` must not pass `limit`; in units of the metric, or as a share of FIXED's."""

    metric: str
    bound: Literal["upper", "lower"]
    limit: float
    limit_of: Literal["absolute", "share_of_base"] = "absolute"


GATES: tuple[Gate, ...] = (
    Gate(metric="slo_violation_rate", bound="upper", limit=1 / 16),
    Gate(metric="failure_rate", bound="upper", limit=0.0),
    Gate(metric="output_throughput_tps", bound="lower", limit=-0.05, limit_of="share_of_base"),
    Gate(metric="goodput_tps", bound="lower", limit=-0.05, limit_of="share_of_base"),
    Gate(metric="regret", bound="upper", limit=0.05),
    Gate(metric="slo_regret", bound="upper", limit=0.05),
    Gate(metric=TTFT_TAIL_RATIO, bound="upper", limit=1.10),
)


def gate_definitions() -> list[dict[str, Any]]:
    """What a registration fixes about the gates."""
    return [asdict(gate) for gate in GATES]


def judge(comparison: Comparison, *, base_values: dict[str, float | None]) -> list[dict[str, Any]]:
    """A verdict per gate for the policy's comparison with FIXED; an undefined interval does not pass."""
    return [_verdict(gate, comparison, base_values) for gate in GATES]


def _verdict(gate: Gate, comparison: Comparison, base_values: dict[str, float | None]) -> dict[str, Any]:
    estimate = _estimate(gate, comparison)
    scale: float | None = 1.0 if gate.limit_of == "absolute" else base_values[gate.metric]
    limit = math.nan if scale is None else gate.limit * scale
    end = estimate.high if gate.bound == "upper" else estimate.low
    # Comparisons with NaN are false, which is the verdict that an undefined interval deserves.
    passed = end <= limit if gate.bound == "upper" else end >= limit
    return {
        "metric": gate.metric,
        "bound": gate.bound,
        "interval_end": finite(end),
        "limit": finite(limit),
        "passed": bool(passed),
    }


def _estimate(gate: Gate, comparison: Comparison) -> Estimate:
    if gate.metric == TTFT_TAIL_RATIO:
        return comparison.ttft_tail
    if gate.metric not in comparison.differences:
        raise ArtefactError(
            f"gate on {gate.metric!r}, which no comparison holds; known: {', '.join(comparison.differences)}"
        )
    return comparison.differences[gate.metric]
