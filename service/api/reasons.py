"""The members of an answer that say why and how far it holds: null unless asked for."""

from typing import Any

from service.api.explanation import explanation
from service.api.holds_until import holds_until
from service.api.query import ReadQuery
from service.api.range_part import range_json
from service.recommend import Recommendation


def reasons(read: ReadQuery, found: Recommendation) -> dict[str, Any]:
    """range where one was given; holds_until, which costs several times the rest, and explanation for `explain`."""
    query, policy = read.query, read.policy
    over = query.load_range is not None
    compares = policy.manifest.abstention is not None and query.chunked_prefill
    return {
        "range": range_json(query, found, compares=compares) if over else None,
        "holds_until": holds_until(query, found, policy) if read.explain else None,
        "explanation": explanation(read, found) if read.explain else None,
    }
