"""The words about expected numbers, and about a policy that was trained for something else than is asked."""

from collections.abc import Iterator, Mapping

from service.api.counted import counted
from service.api.query import ReadQuery
from service.domain.manifest import NEVER_MARGIN, Confidence, Manifest
from service.domain.slo import Slo
from service.expectation import Expected
from service.forecast_error import told_apart
from service.recommend import Query, Recommendation

# What bundles of many scenarios are held to; with a higher bound an answer says so.
PROMISED_RISK = 0.01
_KNOWN: dict[Confidence, str] = {
    "exact": "a workload that is known exactly",
    "typical": "a workload that is known as usual",
    "rough": "a workload that is known roughly",
}


def why_not(
    query: Query, answer: Recommendation, manifest: Manifest, errors: Mapping[str, float] | None = None
) -> str | None:
    """Why the engine's default is preferred to the first-ranked configuration, None where it is not. errors: of the
    estimator, by quantity."""
    expectation = answer.expectation
    declined, default = (None, None) if expectation is None else (expectation.declined, expectation.engine_default)
    first, abstention = answer.ranked[0], manifest.abstention
    expects = promise(query, answer, errors)
    if answer.reason == "no_better_than_engine_default":
        price = 0.0 if first.not_worse is None or abstention is None else abstention.risk_price or 0.0
        risk = 1 - (first.not_worse or 0.0)
        gain = first.score - answer.kept_score
        if abstention is not None and abstention.margin >= NEVER_MARGIN:
            judged = 0 if manifest.held_out is None else manifest.held_out.groups
            return f"would be advice that too little speaks for ({counted(judged, 'held-out workload')})"
        if abstention is not None and price and gain + price * risk > abstention.margin:
            # Its score is the higher one: what it can lose weighs more.
            return f"gains too little for a chance of {risk:.1%} to do worse{expects}"
        them = "them" if query.as_trained else "that"
        return f"is {'hardly' if gain > 0 else 'not'} scored above {them}{expects}"
    if answer.reason == "not_safe_enough" and manifest.abstention is not None:
        return (
            f"has a chance of {answer.ranked[0].not_worse or 0:.1%} not to do worse than them, and "
            f"{manifest.abstention.threshold or 0:.1%} is asked for"
        )
    if answer.reason == "engine_default_meets_slo" and declined is not None and default is not None:
        return f"is expected to miss your limits, which they are expected to meet ({_missed(declined, query.slo)})"
    return None


def default_words(query: Query) -> str:
    """What starts where nothing further is set."""
    return "vLLM's defaults" if query.as_trained else "what you fixed with vLLM's defaults for the rest"


def _base(query: Query) -> str:
    return "with vLLM's defaults" if query.as_trained else "without it"


def promise(query: Query, answer: Recommendation, errors: Mapping[str, float] | None = None) -> str:
    """What the first-ranked configuration is expected to do beside what is kept; empty where nobody knows."""
    expectation = answer.expectation
    if expectation is None or expectation.engine_default is None:
        return ""
    if expectation.first is None:
        return ""
    ours, theirs = expectation.first.throughput_tps, expectation.engine_default.throughput_tps
    numbers = f"{ours.value:,.0f} tokens/s against {theirs.value:,.0f} {_base(query)}"
    if told_apart(ours, theirs, error=(errors or {}).get("throughput_tps")):
        return f" (expected {numbers})"
    return f" (expected about the same throughput: {numbers}; the estimate cannot tell them apart)"


def policy_warnings(read: ReadQuery, answer: Recommendation) -> Iterator[str]:
    """What to know of the policy that answered: what it was trained for where that is not what was asked."""
    manifest, query = read.policy.manifest, read.query
    if manifest.confidence != read.confidence and manifest.gpu == query.gpu.name:
        yield (
            f"No policy for {manifest.gpu} was trained for {_KNOWN[read.confidence]}; this one was for "
            f"{_KNOWN[manifest.confidence]}."
        )
    yield from _grounds(answer, manifest)
    if _runs_unlike_trained(query, answer, manifest):
        yield (
            f"There are no numbers of what would run ({query.kept.config_id}): what is fixed lies outside of the "
            "configurations that were learnt from."
        )
    yield from _missed_limits(query, answer, manifest)
    if query.slo == manifest.slo or answer.expectation is None:
        return
    trained = manifest.slo
    yield (
        f"The ranking was trained for p95 TTFT up to {trained.max_p95_ttft_ms:,g} ms and p95 TPOT up to "
        f"{trained.max_p95_tpot_ms:,g} ms; your limits are judged by the expected numbers alone."
    )
    if query.slo.max_error_rate != trained.max_error_rate:
        yield "slo.max_error_rate is not judged: nothing estimates a share of failed requests."


def _grounds(answer: Recommendation, manifest: Manifest) -> Iterator[str]:
    """What the ranking began with, and how little its advice was judged on."""
    if manifest.started_from not in (None, manifest.evidence):
        yield f"The ranking began with {manifest.started_from} runs and went on with {manifest.evidence} ones."
    judged = manifest.held_out
    if answer.decision == "recommended" and judged is not None and judged.worse_upper95 > PROMISED_RISK:
        yield (
            f"Whether to set flags was judged on {counted(judged.scenarios, 'scenario')} of "
            f"{counted(judged.groups, 'workload')}: that such advice does worse than vLLM's defaults in fewer than "
            f"{judged.worse_upper95:.0%} of workloads is all that is known (95 % bound)."
        )


def _runs_unlike_trained(query: Query, answer: Recommendation, manifest: Manifest) -> bool:
    """Whether numbers lack for nothing but what is fixed."""
    if manifest.estimator is None or answer.decision != "keep_engine_default" or answer.out_of_range:
        return False
    lacking = answer.expectation is None or answer.expectation.engine_default is None
    return lacking and not query.as_trained and query.chunked_prefill


def _missed_limits(query: Query, answer: Recommendation, manifest: Manifest) -> Iterator[str]:
    """Where what would run is expected to miss a limit, and what is expected of the other side."""
    expectation = answer.expectation
    runs = None if expectation is None else expectation.runs
    if expectation is None or runs is None or runs.meets_limits:
        return
    limits = "the limits" if query.slo == manifest.slo else "your limits"
    where = "" if query.load_range is None else " at the middle of the range"
    other, default = "", expectation.engine_default
    if runs is expectation.recommended and default is not None:
        other = f"; {default_words(query)} would {'meet them' if default.meets_limits else 'miss them too'}"
    elif expectation.declined is not None:
        meets = "would meet them" if expectation.declined.meets_limits else "would miss them too"
        other = f"; {expectation.declined.config_id}, which was declined, {meets}"
    numbers = f"{_missed(runs, query.slo)}: {manifest.evidence}"
    yield f"{runs.config_id} is expected to miss {limits}{where} ({numbers}){other}."


def _missed(one: Expected, slo: Slo) -> str:
    """Each limit that is missed, with what is expected."""
    times = (
        ("p95 TTFT", one.meets_ttft, one.ttft_p95_ms, slo.max_p95_ttft_ms),
        ("p95 TPOT", one.meets_tpot, one.tpot_p95_ms, slo.max_p95_tpot_ms),
    )
    return " and ".join(
        f"{what} {_milliseconds(found.value, limit)} of {limit:,g} ms"
        for what, met, found, limit in times
        if not met and found is not None
    )


def _milliseconds(value: float, limit: float) -> str:
    """With as many digits as show that it is beyond the limit."""
    short = f"{value:,.0f}"
    return f"{short if float(short.replace(',', '')) > limit else f'{value:,.6g}'} ms"
