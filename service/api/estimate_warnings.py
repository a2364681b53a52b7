"""Where the expected numbers say more than the runs behind them carry."""

from collections.abc import Iterator

from service.api.expected_words import MUCH, default_words
from service.api.percent import chance
from service.api.query import ReadQuery
from service.expectation import Expectation
from service.forecast_error import apart
from service.recommend import Recommendation

# The longest that a simulated run behind a bundle is watched for, its warm-up included: 2.5 s and 8 s, which are the
# bounds of `window_of` in bench_runner/true_workload.py. An answer that takes longer is never seen to end, and a run in
# which none ends counts as violating the SLO.
WATCHED_MS = 10_500.0


def estimate_warnings(read: ReadQuery, answer: Recommendation) -> Iterator[str]:
    """What limits the estimates themselves, whatever the policy was trained for."""
    expectation = answer.expectation
    if expectation is None:
        return
    yield from _longer_than_watched(read, expectation)
    yield from _less_than_default(read, expectation)


def _longer_than_watched(read: ReadQuery, expectation: Expectation) -> Iterator[str]:
    """Of the mean answer, with what ranks first or else with what is kept."""
    if read.policy.manifest.evidence != "simulated":
        return
    tokens = read.load.mean_output_tokens
    for one in (expectation.first, expectation.engine_default):
        if one is None or one.tpot_p95_ms is None or tokens * one.tpot_p95_ms.value <= WATCHED_MS:
            continue
        each = one.tpot_p95_ms.value
        yield (
            f"Answers of {tokens:,.0f} tokens take about {tokens * each / 1000:,.0f} s with {one.config_id} at "
            f"{each:,.3g} ms each, longer than the {WATCHED_MS / 1000:g} s that simulated runs were watched for at "
            "most: such runs count as violating the SLO, so chances and ranking say little here (simulated)."
        )
        return


def _less_than_default(read: ReadQuery, expectation: Expectation) -> Iterator[str]:
    """Where what is recommended is told to lose throughput, and no chance that differs much says what for."""
    ours, own, change = expectation.recommended, expectation.engine_default, expectation.change
    if ours is None or own is None:
        return
    told = apart(expectation, read.policy.forecast_errors) or {}
    if not told.get("throughput_tps"):
        return
    if ours.throughput_tps.value >= own.throughput_tps.value if change is None else change.throughput_tps.value >= 0:
        return
    where = "" if read.query.load_range is None else " at the middle of the range"
    base, evidence = default_words(read.query), read.policy.manifest.evidence
    less = f"{ours.config_id} is expected to deliver less than {base}{where}"
    if ours.slo_met_chance is None or own.slo_met_chance is None:
        yield f"{less} ({evidence}); it ranks first for the limits of training, which are not yours."
    elif ours.slo_met_chance - own.slo_met_chance >= MUCH:
        return  # the summary says it
    elif ours.slo_met_chance > own.slo_met_chance and chance(ours.slo_met_chance) != chance(own.slo_met_chance):
        chances = f"{chance(ours.slo_met_chance)} against {chance(own.slo_met_chance)}: {evidence}"
        yield f"{less}; it ranks first for its chance to meet the limits of training ({chances})."
    else:
        yield (
            f"{less}, and has no higher chance to meet the limits ({evidence}): the estimate and the ranking disagree; "
            f"keeping {base} is the safe choice."
        )
