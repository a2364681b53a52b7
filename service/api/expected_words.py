"""The words about expected numbers, and about a policy that was trained for something else than is asked."""

from collections.abc import Iterator, Mapping

from service.api.counted import counted
from service.api.percent import alike, between, chance, risk, signed
from service.api.query import ReadQuery
from service.domain.candidate import CANDIDATES
from service.domain.manifest import NEVER_MARGIN, PROMISED_RISK, Abstention, Confidence, Manifest
from service.domain.slo import Slo
from service.expectation import Change, Expected
from service.forecast_error import apart, misses_alone
from service.recommend import Query, Recommendation

# Chances of meeting the SLO that are this far apart are worth a word.
MUCH = 0.05
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
    if answer.reason == "no_better_than_engine_default":
        if abstention is not None and abstention.margin >= NEVER_MARGIN:
            judged = 0 if manifest.held_out is None else manifest.held_out.groups
            return f"would be advice that too little speaks for ({counted(judged, 'held-out workload')})"
        return _gains_too_little(query, answer, abstention) + promise(query, answer, errors)
    if answer.reason == "not_safe_enough" and abstention is not None:
        return (
            f"has a chance of {100 * (first.not_worse or 0):.1f} % not to do worse than them, and "
            f"{100 * (abstention.threshold or 0):.1f} % is asked for"
        )
    if answer.reason == "engine_default_meets_slo" and declined is not None and default is not None:
        return f"is expected to miss your limits, which they are expected to meet ({_missed(declined, query.slo)})"
    return None


def _gains_too_little(query: Query, answer: Recommendation, abstention: Abstention | None) -> str:
    """What tips the choice: a price is blamed only if flags would be set without it."""
    first = answer.ranked[0]
    gain = first.score - answer.kept_score
    worse, worse_than_fixed = (1 - (one or 0.0) for one in (first.not_worse, first.not_worse_than_fixed))
    if abstention is not None and first.not_worse is not None:
        # The engine's default is never worse than itself, but like any other it may be worse than candidate 0.
        own = 1 - (answer.kept_not_worse_than_fixed or 0.0)
        of_default = (abstention.risk_price or 0.0) * worse
        of_fixed = (abstention.fixed_price or 0.0) * (worse_than_fixed - own)
        fixed = CANDIDATES[0].config_id
        if of_default > 0 and gain + of_default > abstention.margin:
            return f"gains too little for a chance of {risk(worse)} to do worse"
        if of_fixed > 0 and gain + of_fixed > abstention.margin:
            return (
                f"gains too little for a chance of {risk(worse_than_fixed)} to do worse than {fixed}, where they have "
                f"{risk(own)}"
            )
        if of_default > 0 and of_fixed > 0 and gain + of_default + of_fixed > abstention.margin:
            return (
                f"gains too little for its chances to do worse, {risk(worse)} than they and {risk(worse_than_fixed)} "
                f"than {fixed}"
            )
    return f"is {'hardly' if gain > 0 else 'not'} scored above {'them' if query.as_trained else 'that'}"


def default_words(query: Query) -> str:
    """What starts where nothing further is set."""
    return "vLLM's defaults" if query.as_trained else "what you fixed with vLLM's defaults for the rest"


def _base(query: Query) -> str:
    return "with vLLM's defaults" if query.as_trained else "without it"


def promise(query: Query, answer: Recommendation, errors: Mapping[str, float] | None = None) -> str:
    """What the first-ranked configuration is expected to do beside what is kept; empty where nobody knows."""
    expectation = answer.expectation
    first, own = (None, None) if expectation is None else (expectation.first, expectation.engine_default)
    if expectation is None or first is None or own is None:
        return ""
    told = (apart(expectation, errors or {}) or {})["throughput_tps"]
    parts = [_throughput(query, expectation.change, first, own, told=bool(told)), *_slo_met(query, answer, first, own)]
    return f" (expected {'; '.join(parts)})"


def _throughput(query: Query, change: Change | None, first: Expected, own: Expected, *, told: bool) -> str:
    """Beside a change stands no second number: the quotient of two, into which the errors of both go, may contradict
    it."""
    ours, base = f"{first.throughput_tps.value:,.0f} tokens/s", _base(query)
    if change is None:
        numbers = f"{ours} against {own.throughput_tps.value:,.0f} {base}"
        return numbers if told else f"about the same throughput: {numbers}; the estimate cannot tell them apart"
    found = change.throughput_tps
    ends = between(found.low, found.high)
    if told:
        return f"{ours}: {signed(found.value)} against vLLM's defaults, {ends}"
    if alike(found.low, found.high):
        return f"about the same throughput as {base}, {ends}: {ours}"
    return f"no clear change of throughput against vLLM's defaults, {ends}: {ours}"


def _slo_met(query: Query, answer: Recommendation, first: Expected, own: Expected) -> Iterator[str]:
    """Where that differs much, it is what the choice is about.

    What meets the limits less often than the default does worse at least as often as they differ. The chance to do
    worse is estimated separately: where it is smaller than that, the two contradict each other and this one is left
    out.
    """
    ours, theirs = first.slo_met_chance, own.slo_met_chance
    if ours is None or theirs is None or abs(ours - theirs) < MUCH:
        return
    not_worse = answer.ranked[0].not_worse
    if not_worse is not None and theirs - ours > 1 - not_worse:
        return
    yield f"the SLO met in {chance(ours)} of the workloads that may come, {_base(query)} in {chance(theirs)}"


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
    yield from _missed_limits(query, answer, manifest, read.policy.forecast_errors)
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


def _missed_limits(
    query: Query, answer: Recommendation, manifest: Manifest, errors: Mapping[str, float]
) -> Iterator[str]:
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
        if default.meets_limits and not misses_alone(runs, default, expectation.change, errors):
            other += ", by an estimate of their own: the change between the two does not bear it out"
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
