"""What is decided about a ranking: set flags, keep the engine's default, or neither works; and the reason."""

from collections.abc import Mapping, Sequence
from typing import Literal

from service.domain.candidate import Candidate
from service.domain.manifest import Manifest
from service.domain.slo import Slo
from service.exclusion import EngineArgs, Exclusion, Obstacle
from service.expectation import Change, Expected
from service.forecast_error import misses_alone

Decision = Literal["recommended", "keep_engine_default", "none_feasible"]
Reason = (
    Literal[
        "out_of_support",
        "no_better_than_engine_default",
        "not_safe_enough",
        "engine_default_meets_slo",
        "no_candidate_matches_fixed",
        "only_engine_default_starts",
    ]
    | Obstacle
)


def decided(
    exclusions: Sequence[Exclusion | None], obstacle: Obstacle | None, *, in_range: bool
) -> tuple[Decision, Reason | None]:
    """none_feasible before keep_engine_default before recommended. obstacle: of a start with nothing further set."""
    if None in exclusions:
        return ("recommended", None) if in_range else ("keep_engine_default", "out_of_support")
    found = {exclusion.reason for exclusion in exclusions if exclusion}
    if "not_learnt" in found:
        # One would start, and nothing is known about it.
        return "keep_engine_default", "out_of_support"
    contradict = found == {"contradicts_fixed"}
    if obstacle is None:
        return "keep_engine_default", "no_candidate_matches_fixed" if contradict else "only_engine_default_starts"
    if contradict:
        return "none_feasible", obstacle
    # Where memory is enough for some, it is the token budget that stops those.
    return "none_feasible", "too_few_batched_tokens" if "too_few_batched_tokens" in found else "kv_cache_too_small"


def cautious(
    manifest: Manifest,
    *,
    slo: Slo,
    gain: float,
    chance: float | None,
    first: Expected | None,
    own: Expected | None,
    change: Change | None,
    errors: Mapping[str, float],
) -> tuple[Decision, Reason | None]:
    """Whether the first-ranked candidate is worth setting flags for; always, if the bundle knows no engine default.

    gain: of its score over the default's; chance: of not being worse than it; first, own: what both are expected to do;
    change: of the first against the engine's default; errors: of the estimator, by quantity.
    """
    abstention = manifest.abstention
    if abstention is not None and not gain > abstention.margin:
        return "keep_engine_default", "no_better_than_engine_default"
    threshold = None if abstention is None else abstention.threshold
    if threshold is not None and chance is not None and not chance >= threshold:
        return "keep_engine_default", "not_safe_enough"
    # The ranking and its caution are about the limits of training.
    if first is None or own is None or slo == manifest.slo:
        return "recommended", None
    if misses_alone(first, own, change, errors):
        return "keep_engine_default", "engine_default_meets_slo"
    return "recommended", None


def flags_of(decision: Decision, fixed: EngineArgs, *, top: Candidate) -> EngineArgs | None:
    if decision == "none_feasible":
        return None
    if decision == "keep_engine_default":
        return {}
    return {name: value for name, value in top.engine_args().items() if name not in fixed}
