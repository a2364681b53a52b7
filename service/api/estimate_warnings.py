"""Where the expected numbers say more than the runs behind them carry."""

from collections.abc import Iterator

from service.api.query import ReadQuery
from service.expectation import Expectation
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
