"""A recommendation -> the body of the answer, the same for the API and the command line."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from service.api.query import ReadQuery
from service.api.wording import command, reason, summary, warnings
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.gpu import Gpu
from service.recommend import Exclusion, Policy, RankedCandidate, Recommendation, recommend, recommend_all


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """What identifies a candidate and how to set it."""
    return {
        "config_id": candidate.config_id,
        "engine_args": candidate.engine_args(),
        "cli_args": candidate.cli_args(),
    }


# The part of a row that no request changes.
_ROWS = tuple(candidate_json(candidate) for candidate in CANDIDATES)


def answer(read: ReadQuery, policy: Policy, *, recommendation_id: str) -> dict[str, Any]:
    """Ranks, decides and words; the members are those of the interface contract."""
    return _content(read, recommend(read.query, policy), policy, recommendation_id)


def answers(reads: Sequence[ReadQuery], policy: Policy, *, new_id: Callable[[], str]) -> list[dict[str, Any]]:
    """The same for many, with one run of the network."""
    found = recommend_all([read.query for read in reads], policy)
    return [_content(read, one, policy, new_id()) for read, one in zip(reads, found, strict=True)]


def _content(read: ReadQuery, found: Recommendation, policy: Policy, recommendation_id: str) -> dict[str, Any]:
    query, manifest = read.query, policy.bundle.manifest
    return {
        "recommendation_id": recommendation_id,
        "decision": found.decision,
        "reason": reason(found),
        "summary": summary(query, found, manifest=manifest),
        "set": found.flags,
        "command": command(query, found),
        "ranked": [_row(ranked) for ranked in found.ranked],
        "engine_default": _engine_default(query.gpu),
        "expected": None,
        "shortfall": asdict(found.shortfall) if found.shortfall else None,
        "support": {
            "in_distribution": not found.out_of_range,
            "out_of_range": [asdict(entry) for entry in found.out_of_range],
        },
        "assumed": read.assumed,
        "warnings": list(warnings(query, found)),
        "policy": {
            "version": manifest.version,
            "sha256": policy.bundle.sha256,
            "feature_schema": manifest.feature_schema,
            "gpu": manifest.gpu,
            "engine_version": manifest.engine_version,
            "evidence": manifest.evidence,
        },
    }


@lru_cache(maxsize=64)
def _engine_default(gpu: Gpu) -> dict[str, Any]:
    return gpu.engine_default.engine_args()


def _row(ranked: RankedCandidate) -> dict[str, Any]:
    static = _ROWS[ranked.candidate_index]
    return {
        "rank": ranked.rank,
        "config_id": static["config_id"],
        "score": ranked.score,
        "p_not_worse_than_engine_default": None,
        "engine_args": static["engine_args"],
        "cli_args": static["cli_args"],
        "feasible": ranked.exclusion is None,
        "feasibility": None if ranked.exclusion is None else _feasibility(ranked.exclusion),
    }


def _feasibility(exclusion: Exclusion) -> dict[str, Any]:
    return {
        "reason": exclusion.reason,
        "arguments": exclusion.arguments,
        "needed_gib": exclusion.needed_gib,
        "available_gib": exclusion.available_gib,
    }
