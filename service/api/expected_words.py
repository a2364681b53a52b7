"""The words about expected numbers, and about a policy that was trained for something else than is asked."""

from collections.abc import Iterator

from service.api.query import ReadQuery
from service.domain.manifest import Confidence, Manifest
from service.recommend import Query, Recommendation

_KNOWN: dict[Confidence, str] = {
    "exact": "a workload that is known exactly",
    "typical": "a workload that is known as usual",
    "rough": "a workload that is known roughly",
}


def why_not(query: Query, answer: Recommendation, manifest: Manifest) -> str | None:
    """Why the engine's default is preferred to the first-ranked configuration, None where it is not."""
    expectation = answer.expectation
    declined, default = (None, None) if expectation is None else (expectation.declined, expectation.engine_default)
    first, abstention = answer.ranked[0], manifest.abstention
    if answer.reason == "no_better_than_engine_default":
        if abstention is not None and abstention.risk_price is not None and first.not_worse is not None:
            # Its median may well be the higher one: what it can lose weighs more.
            worse = f"a chance of {1 - first.not_worse:.1%} to do worse"
            return f"gains too little for {worse}{promise(query, answer)}"
        return f"promises no clear gain{promise(query, answer)}"
    if answer.reason == "not_safe_enough" and manifest.abstention is not None:
        return (
            f"has a chance of {answer.ranked[0].not_worse or 0:.1%} not to do worse than them, and "
            f"{manifest.abstention.threshold or 0:.1%} is asked for"
        )
    if answer.reason == "engine_default_meets_slo" and declined is not None and default is not None:
        missed = " and ".join(
            f"{what} {found.value:,.0f} ms of {limit:,.0f}"
            for what, met, found, limit in (
                ("p95 TTFT", declined.meets_ttft, declined.ttft_p95_ms, query.slo.max_p95_ttft_ms),
                ("p95 TPOT", declined.meets_tpot, declined.tpot_p95_ms, query.slo.max_p95_tpot_ms),
            )
            if not met and found is not None
        )
        return f"is expected to miss your limits, which they are expected to meet ({missed})"
    return None


def default_words(query: Query) -> str:
    """What starts where nothing further is set."""
    return "vLLM's defaults" if query.as_trained else "what you fixed with vLLM's defaults for the rest"


def _base(query: Query) -> str:
    return "with vLLM's defaults" if query.as_trained else "without it"


def promise(query: Query, answer: Recommendation) -> str:
    """What the first-ranked configuration is expected to do beside what is kept; empty where nobody knows."""
    expectation = answer.expectation
    if expectation is None or expectation.engine_default is None:
        return ""
    first = expectation.recommended or expectation.declined
    if first is None:
        return ""
    ours, theirs = first.throughput_tps.value, expectation.engine_default.throughput_tps.value
    return f" (expected {ours:,.0f} tokens/s against {theirs:,.0f} {_base(query)})"


def policy_warnings(read: ReadQuery, answer: Recommendation) -> Iterator[str]:
    """What to know of the policy that answered: what it was trained for where that is not what was asked."""
    manifest, query = read.policy.manifest, read.query
    if manifest.confidence != read.confidence and manifest.gpu == query.gpu.name:
        yield (
            f"No policy for {manifest.gpu} was trained for {_KNOWN[read.confidence]}; this one was for "
            f"{_KNOWN[manifest.confidence]}."
        )
    if _runs_unlike_trained(query, answer, manifest):
        yield (
            f"There are no numbers of what would run ({query.kept.config_id}): what is fixed lies outside of the "
            "configurations that were learnt from."
        )
    if query.slo == manifest.slo or answer.expectation is None:
        return
    trained = manifest.slo
    yield (
        f"The ranking was trained for p95 TTFT up to {trained.max_p95_ttft_ms:,g} ms and p95 TPOT up to "
        f"{trained.max_p95_tpot_ms:,g} ms; your limits are judged by the expected numbers alone."
    )
    if query.slo.max_error_rate != trained.max_error_rate:
        yield "slo.max_error_rate is not judged: nothing estimates a share of failed requests."
    recommended = answer.expectation.recommended
    if recommended is not None and not recommended.meets_limits:
        default = answer.expectation.engine_default
        too = "" if default is None or default.meets_limits else f"; so is {default_words(query)}"
        yield f"{recommended.config_id} is expected to miss your limits{too}."


def _runs_unlike_trained(query: Query, answer: Recommendation, manifest: Manifest) -> bool:
    """Whether numbers lack for nothing but what is fixed."""
    if manifest.estimator is None or answer.decision != "keep_engine_default" or answer.out_of_range:
        return False
    lacking = answer.expectation is None or answer.expectation.engine_default is None
    return lacking and not query.as_trained and query.chunked_prefill
