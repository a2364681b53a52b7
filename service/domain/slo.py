"""The service level objective that a cell either meets or violates."""

from dataclasses import dataclass

from service.domain.scenario import check_float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits on one cell: p95 over its requests, in milliseconds, and the share of failed requests."""

    max_p95_ttft_ms: float = 3000.0
    max_p95_tpot_ms: float = 60.0
    max_error_rate: float = 0.01

    def __post_init__(self) -> None:
        check_float("max_p95_ttft_ms", self.max_p95_ttft_ms, low=0.001, high=1e9)
        check_float("max_p95_tpot_ms", self.max_p95_tpot_ms, low=0.001, high=1e9)
        check_float("max_error_rate", self.max_error_rate, low=0.0, high=1.0)

    def met(self, *, ttft_p95_ms: float | None, tpot_p95_ms: float | None, error_rate: float) -> bool:
        """True if every limit holds. No TTFT: nothing completed, not met. No TPOT (one-token answers): no limit."""
        # Written so that NaN, which compares as False, is not met.
        if ttft_p95_ms is None or not ttft_p95_ms <= self.max_p95_ttft_ms:
            return False
        if tpot_p95_ms is not None and not tpot_p95_ms <= self.max_p95_tpot_ms:
            return False
        return error_rate <= self.max_error_rate


REFERENCE_SLO = Slo()
