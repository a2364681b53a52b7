"""Error bands by regime out of single relative errors."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from bench_runner.fidelity import ComparedCell
from bench_runner.plan import Plan
from service.domain.error_bands import BAND_METRICS, BandMetric, ErrorBand
from service.domain.regime import REGIMES, Regime, announced_regime

# Fewer say nothing about a range.
FEWEST = 3
DIGITS = 4

ErrorsByRegime = Mapping[BandMetric, Mapping[Regime, list[float]]]
# Which column of a compared cell stands for which metric.
_CELL_METRICS: Mapping[BandMetric, str] = {"throughput": "output_throughput_tps", "ttft": "ttft_p95_ms"}


def band_table(
    sources: Mapping[str, ErrorsByRegime], reasons: Mapping[Regime, str]
) -> dict[BandMetric, dict[Regime, ErrorBand]]:
    """A band of each metric in each regime, of all sources together. reasons: why a regime may have none."""
    return {metric: {regime: _band(metric, regime, sources, reasons) for regime in REGIMES} for metric in BAND_METRICS}


def _band(
    metric: BandMetric, regime: Regime, sources: Mapping[str, ErrorsByRegime], reasons: Mapping[Regime, str]
) -> ErrorBand:
    found = {name: errors.get(metric, {}).get(regime, []) for name, errors in sources.items()}
    errors = np.array([error for of_source in found.values() for error in of_source])
    if len(errors) < FEWEST:
        few = f"{len(errors)} comparisons, {FEWEST} are needed" if len(errors) else "nothing to compare with"
        return ErrorBand(bias=None, low=None, high=None, n=0, reason=f"{few}; {reasons[regime]}")
    low, high = np.percentile(errors, [5, 95])
    return ErrorBand(
        bias=round(float(errors.mean()), DIGITS),
        low=round(float(low), DIGITS),
        high=round(float(high), DIGITS),
        n=len(errors),
        source="; ".join(f"{len(of_source)} from {name}" for name, of_source in found.items() if of_source),
    )


def cell_errors(cells: Iterable[ComparedCell], *, plan: Plan, kv_cache_tokens: int) -> ErrorsByRegime:
    """The errors of measured cells, each under the regime that its numbers announce; TPOT is not compared there."""
    found: dict[BandMetric, dict[Regime, list[float]]] = {metric: defaultdict(list) for metric in _CELL_METRICS}
    for cell in cells:
        workload, candidate = plan.workload(cell.key), plan.candidate(cell.key)
        regime = announced_regime(workload, candidate, kv_cache_tokens=kv_cache_tokens)
        for metric, column in _CELL_METRICS.items():
            if column in cell.metrics:
                found[metric][regime].append(cell.metrics[column].error)
    return found
