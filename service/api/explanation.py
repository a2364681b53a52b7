"""What an answer rests on: margins, the training scenarios most like the question, and the limit that binds."""

from functools import lru_cache
from typing import Any

from service.api.binding_limit import binding_limit
from service.api.query import ReadQuery
from service.domain.candidate import CANDIDATES
from service.domain.features import encode_state
from service.domain.manifest import NEIGHBOURS_FILE, NEVER_MARGIN
from service.domain.neighbours import STATE_NAMES, Neighbour, Neighbours, Numbers
from service.policies import Policy
from service.recommend import Query, Recommendation

SHOWN = 3


def explanation(read: ReadQuery, found: Recommendation) -> dict[str, Any]:
    """The member `explanation`, of facts that stand in the answer and in the bundle."""
    query, policy = read.query, read.policy
    return {
        "margin": _margin(query, found, policy),
        "neighbours": _neighbours(query, policy),
        "limit": None
        if found.decision == "none_feasible"
        else binding_limit(query, found, output_tokens=read.load.mean_output_tokens),
    }


def _margin(query: Query, found: Recommendation, policy: Policy) -> dict[str, Any]:
    """In utility: a difference of scores times the slope that was calibrated on dev; of none outside of support."""
    slope, abstention = policy.manifest.score_slope, policy.manifest.abstention
    choosable = [row for row in found.ranked if row.exclusion is None and not found.out_of_range]
    second = choosable[1] if len(choosable) > 1 else None
    compares = (
        abstention is not None
        and query.chunked_prefill
        and found.kept_capacity.full_length_request_fits
        and bool(choosable)
    )
    return {
        "to_engine_default": (choosable[0].score - found.kept_score) * slope if compares else None,
        "to_second": (choosable[0].score - second.score) * slope if second is not None else None,
        "second": None if second is None else CANDIDATES[second.candidate_index].config_id,
        # Where flags are never set, no margin is enough.
        "needed": abstention.margin * slope
        if abstention is not None and compares and abstention.margin < NEVER_MARGIN
        else None,
    }


def _neighbours(query: Query, policy: Policy) -> list[dict[str, Any]]:
    content = policy.bundle.files.get(NEIGHBOURS_FILE)
    if content is None:
        return []
    state = encode_state(query.scenario)
    ranges = policy.manifest.training_range
    found = _read(content).nearest(state, ranges=ranges, count=SHOWN)
    return [_neighbour(one, distance) for one, distance in found]


# As many as there are bundles that answer.
@lru_cache(maxsize=8)
def _read(content: bytes) -> Neighbours:
    return Neighbours.from_bytes(content)


def _neighbour(one: Neighbour, distance: float) -> dict[str, Any]:
    state = dict(zip(STATE_NAMES, one.features, strict=True))
    clients = 2 ** state.pop("log2_concurrency")
    return {
        "distance": distance,
        **state,
        "concurrency": round(clients),
        "config_id": one.config_id,
        "best": _numbers(one.best),
        "engine_default": _numbers(one.engine_default),
    }


def _numbers(numbers: Numbers) -> dict[str, Any]:
    return numbers._asdict()
