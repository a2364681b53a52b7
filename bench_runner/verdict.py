"""Is the recommended configuration what it was recommended as? Pairs of visits, an interval, three possible answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from service.domain.interval import Interval, mean_interval

Verdict = Literal["confirmed", "contradicted", "too noisy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One server of one side: what its row says. Percentiles in milliseconds, None where undefined.

    invalid: the row is no label, because the client was saturated or prompts were not fresh.
    """

    output_throughput_tps: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    slo_met: bool
    invalid: bool = False

    @property
    def failed(self) -> bool:
        """Nothing came of it."""
        return self.output_throughput_tps <= 0

    @property
    def served(self) -> bool:
        """Something did."""
        return not self.failed


def valid_pairs(recommended: Sequence[Visit], default: Sequence[Visit]) -> list[tuple[Visit, Visit]]:
    """Each recommended visit with the default visit beside it in time; without pairs of which one is invalid."""
    pairs = zip(recommended, default, strict=False)
    return [(ours, theirs) for ours, theirs in pairs if not (ours.invalid or theirs.invalid)]


def throughput_ratio(pairs: Sequence[tuple[Visit, Visit]]) -> Interval | None:
    """Recommended ÷ default, the geometric mean over pairs and its 95 % interval; a shared drift cancels in a pair.

    None if there is no pair, or if a side failed in one: what failed has no ratio, and is not left out for that.
    """
    if not pairs or any(visit.failed for pair in pairs for visit in pair):
        return None
    found = mean_interval(
        [math.log(ours.output_throughput_tps / theirs.output_throughput_tps) for ours, theirs in pairs]
    )
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Interval(mean=math.exp(found.mean), low=low, high=high, n=found.n)


def is_narrow(ratio: Interval | None, *, precision: float) -> bool:
    """True if the interval lies within ±precision of its middle: the stopping rule, which does not look at the sign.

    An interval at which measuring stops for its width covers a little less often than its 95 %.
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return (ratio.high - ratio.low) / 2 <= precision


def verdict(pairs: Sequence[tuple[Visit, Visit]], *, precision: float, least_pairs: int) -> tuple[Verdict, str]:
    """The answer and the reason in one sentence. pairs: recommended and default.

    The claim is "not worse than the engine's default", first in serving at all, then in the SLO, then in throughput.
    Contradicted if the recommended side never serves, or always violates an SLO that the default always meets, or if
    its throughput interval lies below 1 − precision; confirmed if the interval lies above 1 − precision, or if it is
    the default that never serves or always violates. Whatever differs from visit to visit decides nothing.
    """
    if len(pairs) < least_pairs:
        return "too noisy", f"{len(pairs)} valid pairs of visits in the time given; {least_pairs} are needed"
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    served, met = ([_share(side, name) for side in sides] for name in ("served", "slo_met"))
    for (ours, theirs), what in ((served, "serves"), (met, "meets the SLO")):
        if (ours, theirs) == (1, 0):
            return "confirmed", f"it {what} in every visit, the engine's default in none"
        if (ours, theirs) == (0, 1):
            return "contradicted", f"the engine's default {what} in every visit, it in none"
        if ours not in (0, 1) or theirs not in (0, 1):
            return "too noisy", f"it {what} in {ours:.0%} of its visits, the engine's default in {theirs:.0%}"
    ratio = throughput_ratio(pairs)
    if ratio is None or ratio.low is None or ratio.high is None:
        return "too noisy", "neither side serves"
    said = f"throughput is {ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times the default's"
    if ratio.high < 1 - precision:
        return "contradicted", said
    if ratio.low > 1 - precision:
        return "confirmed", said
    return "too noisy", f"{said}: less than {1 - precision:.3f} is neither shown nor excluded"


def _share(visits: Sequence[Visit], name: str) -> float:
    return sum(bool(getattr(visit, name)) for visit in visits) / len(visits)
