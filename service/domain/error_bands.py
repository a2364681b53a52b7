"""How far simulated numbers are from measured ones, by metric and regime: the content of error_bands.json."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from service.domain.cell import EVIDENCE_CLASSES, Evidence
from service.domain.errors import ArtefactError
from service.domain.regime import REGIMES, Regime

ERROR_BANDS_SCHEMA_VERSION = 1
ERROR_BANDS_FILE = "error_bands.json"

BandMetric = Literal["throughput", "ttft", "tpot"]
BAND_METRICS: tuple[BandMetric, ...] = get_args(BandMetric)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Relative errors (simulated − measured) ÷ measured of one metric in one regime.

    bias is their mean, low and high are their 5th and 95th percentile over n comparisons. All three are None where
    there is nothing to compare with, and `reason` says why. source: the measurements, for people.
    """

    bias: float | None
    low: float | None
    high: float | None
    n: int
    source: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        known = [value for value in (self.bias, self.low, self.high) if value is not None]
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 0:
            raise ArtefactError(f"error band: n {self.n!r} is no number of comparisons")
        if not known and self.n == 0 and self.reason:
            return
        if len(known) < 3 or self.n == 0 or not self.source:
            raise ArtefactError("error band: bias, low, high, n and source together, or n 0 and a reason")
        # Simulating nothing at all is an error of −1; a measured time cannot be below 0.
        if not all(isinstance(value, int | float) and math.isfinite(value) and value > -1 for value in known):
            raise ArtefactError(f"error band: {known} are no relative errors, which are finite and above -1")
        if known[1] > known[2]:
            raise ArtefactError(f"error band: low {known[1]} is above high {known[2]}")

    def measured_range(self, simulated: float) -> tuple[float, float] | None:
        """Where a measurement of what was simulated as this would lie, in its unit; None for an empty band."""
        if self.low is None or self.high is None:
            return None
        return simulated / (1 + self.high), simulated / (1 + self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBands:
    """bands[evidence][metric][regime]. Classes of evidence are never mixed: an answer for a GPU uses `measured`."""

    bands: Mapping[Evidence, Mapping[BandMetric, Mapping[Regime, ErrorBand]]]
    provenance: Mapping[str, Any]

    def of(self, metric: BandMetric, regime: Regime, *, evidence: Evidence = "measured") -> ErrorBand:
        """The band; one without numbers carries the reason."""
        return self.bands[evidence][metric][regime]

    def to_json(self) -> dict[str, Any]:
        """What error_bands.json holds."""
        return {
            "schema_version": ERROR_BANDS_SCHEMA_VERSION,
            "quantity": "(simulated - measured) / measured; bias is the mean, low and high the 5th and 95th percentile",
            "used_for_gpu_answers": "measured",
            "provenance": dict(self.provenance),
            "bands": {
                evidence: {
                    metric: {regime: asdict(band) for regime, band in by_regime.items()}
                    for metric, by_regime in by_metric.items()
                }
                for evidence, by_metric in self.bands.items()
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """ArtefactError names what is missing, foreign or impossible."""
        version = content.get("schema_version")
        if version != ERROR_BANDS_SCHEMA_VERSION:
            raise ArtefactError(f"error bands: schema_version {version!r}; run `make fidelity` again")
        try:
            bands: dict[Evidence, dict[BandMetric, dict[Regime, ErrorBand]]] = {}
            for evidence in content["bands"]:
                if evidence not in EVIDENCE_CLASSES:
                    raise ArtefactError(f"error bands: evidence {evidence!r} is none of {', '.join(EVIDENCE_CLASSES)}")
                by_metric = content["bands"][evidence]
                bands[evidence] = {
                    metric: {regime: ErrorBand(**by_metric[metric][regime]) for regime in REGIMES}
                    for metric in BAND_METRICS
                }
            if "measured" not in bands:
                raise ArtefactError("error bands: no class `measured`; run `make fidelity` again")
            return cls(bands=bands, provenance=content["provenance"])
        except (KeyError, TypeError) as error:
            raise ArtefactError(f"error bands: {error} is missing or foreign; run `make fidelity` again") from error
