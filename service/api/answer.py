"""A recommendation -> the body of the answer, the same for the API and the command line."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from service.api.estimate_warnings import estimate_warnings
from service.api.expected_part import expected_json
from service.api.expected_words import policy_warnings
from service.api.launch import command, launch_of, renders
from service.api.query import ReadQuery
from service.api.reasons import reasons
from service.api.remedy import Remedy, remedy
from service.api.wording import reason, summary, warnings
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import CUDA_GRAPHS_GIB, Capacity, Demand
from service.domain.gpu import ENGINE_VERSION, Gpu
from service.domain.memory import GIB
from service.exclusion import Exclusion, Shortfall
from service.recommend import RankedCandidate, Recommendation, recommend, recommend_all
from service.support import OutOfRange


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """What identifies a candidate and how to set it."""
    return {
        "config_id": candidate.config_id,
        "engine_args": candidate.engine_args(),
        "cli_args": candidate.cli_args(),
    }


# The part of a row that no request changes.
_ROWS = tuple(candidate_json(candidate) for candidate in CANDIDATES)


def answer(read: ReadQuery, *, recommendation_id: str) -> dict[str, Any]:
    """Ranks, decides and words; the members are those of the interface contract."""
    return _content(read, recommend(read.query, read.policy), recommendation_id)


def answers(reads: Sequence[ReadQuery], *, new_id: Callable[[], str]) -> list[dict[str, Any]]:
    """The same for many, with one run of the networks of each policy that is asked."""
    of_policy: dict[int, list[int]] = {}
    for index, read in enumerate(reads):
        of_policy.setdefault(id(read.policy), []).append(index)
    found: dict[int, Recommendation] = {}
    for indices in of_policy.values():
        queries = [reads[index].query for index in indices]
        found.update(zip(indices, recommend_all(queries, reads[indices[0]].policy), strict=True))
    return [_content(read, found[index], new_id()) for index, read in enumerate(reads)]


def _content(read: ReadQuery, found: Recommendation, recommendation_id: str) -> dict[str, Any]:
    query, manifest, terms = read.query, read.policy.manifest, read.terms
    launch = launch_of(query, found, terms)
    way_out = remedy(query) if found.shortfall else None
    return {
        "recommendation_id": recommendation_id,
        "decision": found.decision,
        "reason": reason(found),
        "summary": summary(query, found, manifest=manifest, errors=read.policy.forecast_errors),
        "set": found.flags,
        "command": None if launch is None else command(launch),
        "ranked": _rows(found.ranked),
        "engine_default": _engine_default(query.engine_default),
        "engine_default_capacity": _default_capacity(found.default_capacity),
        "memory": _memory(query.gpu, found.demand),
        "expected": expected_json(query, found, manifest, read.policy.forecast_errors),
        "shortfall": _shortfall(found.shortfall, way_out) if found.shortfall and way_out else None,
        "support": {
            "in_distribution": not found.out_of_range,
            "out_of_range": [_members(entry) for entry in found.out_of_range],
        },
        "assumed": read.assumed,
        "warnings": [
            *read.warnings,
            *warnings(query, found, terms, way_out),
            *policy_warnings(read, found),
            *estimate_warnings(read, found),
        ],
        "renders": renders(launch, read.render),
        **reasons(read, found),
        "policy": {
            "version": manifest.version,
            "sha256": read.policy.bundle.sha256,
            "feature_schema": manifest.feature_schema,
            "gpu": manifest.gpu,
            "confidence": manifest.confidence,
            "engine_version": manifest.engine_version,
            "evidence": manifest.evidence,
        },
    }


@lru_cache(maxsize=64)
def _engine_default(start: Candidate) -> dict[str, Any]:
    return start.engine_args()


def _members(entry: OutOfRange) -> dict[str, Any]:
    # asdict copies deeply, which costs more than all that stands around it.
    return {name: getattr(entry, name) for name in OutOfRange.__slots__}


def _shortfall(shortfall: Shortfall, way_out: Remedy) -> dict[str, Any]:
    return {**asdict(shortfall), "remedy": asdict(way_out)}


def _rows(ranked: Sequence[RankedCandidate]) -> list[dict[str, Any]]:
    # Rows of one memory setting share their capacity.
    capacities: dict[int, dict[str, Any]] = {}
    rows = []
    for row in ranked:
        capacity = capacities.get(id(row.capacity))
        if capacity is None:
            capacity = capacities[id(row.capacity)] = _capacity(row.capacity)
        rows.append(_row(row, capacity))
    return rows


def _row(ranked: RankedCandidate, capacity: dict[str, Any]) -> dict[str, Any]:
    static = _ROWS[ranked.candidate_index]
    return {
        "rank": ranked.rank,
        "config_id": static["config_id"],
        "score": ranked.score,
        "p_not_worse_than_engine_default": ranked.not_worse,
        "p_not_worse_than_fixed": ranked.not_worse_than_fixed,
        "engine_args": static["engine_args"],
        "cli_args": static["cli_args"],
        "feasible": ranked.exclusion is None,
        "feasibility": None if ranked.exclusion is None else _feasibility(ranked.exclusion),
        "capacity": capacity,
    }


def _capacity(capacity: Capacity) -> dict[str, Any]:
    return {
        "kv_cache_gib": capacity.kv_cache_gib,
        "kv_cache_tokens": capacity.kv_cache_tokens,
        "requests_that_fit": capacity.requests_that_fit,
        "full_length_request_fits": capacity.full_length_request_fits,
    }


def _default_capacity(capacity: Capacity) -> dict[str, Any]:
    return {
        "engine_version": ENGINE_VERSION,
        **_capacity(capacity),
        "needed_gib": capacity.needed_gib,
        "available_gib": capacity.available_gib,
    }


def _memory(gpu: Gpu, demand: Demand) -> dict[str, Any]:
    """The terms of kv_cache_gib = gpu_memory_utilization · gpu_memory_gib - weights_gib - overhead_gib."""
    return {
        "gpu_memory_gib": gpu.memory_gib,
        "weights_gib": demand.weight_bytes / GIB,
        "overhead_gib": demand.rule.inside_gib,
        "cuda_graphs_gib": CUDA_GRAPHS_GIB,
        "cuda_graphs": "inside" if demand.rule.graphs_inside else "outside",
        "context_tokens": demand.context_tokens,
    }


def _feasibility(exclusion: Exclusion) -> dict[str, Any]:
    return {
        "reason": exclusion.reason,
        "arguments": exclusion.arguments,
        "needed_gib": exclusion.needed_gib,
        "available_gib": exclusion.available_gib,
    }
