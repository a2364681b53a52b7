"""The use case: a query before launch in, a ranking of the 15 candidates and one decision out. Knows no HTTP."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.bundle import Bundle, load_bundle
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.features import FEATURE_NAMES, encode, encode_candidate, encode_state
from service.domain.gpu import Gpu
from service.domain.manifest import Manifest
from service.domain.memory import Feasibility, start_up_feasibility
from service.domain.ranking import rank
from service.domain.scenario import Scenario
from service.domain.slo import Slo
from service.scorer import Scorer

Decision = Literal["recommended", "keep_engine_default", "none_feasible"]
Reason = Literal["out_of_support", "no_better_than_engine_default", "no_candidate_matches_fixed", "kv_cache_too_small"]
EngineArgs = Mapping[str, int | float | bool]
ENGINE_ARGUMENTS = tuple(CANDIDATES[0].engine_args())
# A training range may have passed through float32, whose rounding must not push a trained model out of it.
RANGE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is known before launch. fixed: engine arguments that the user has already set, by name."""

    scenario: Scenario
    gpu: Gpu
    engine_version: str
    slo: Slo
    fixed: EngineArgs

    def __post_init__(self) -> None:
        if not set(self.fixed) <= set(ENGINE_ARGUMENTS):
            raise ValueError(f"fixed names {sorted(self.fixed)}, known are {ENGINE_ARGUMENTS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A verified bundle and the session that scores with it."""

    bundle: Bundle
    scorer: Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """One input outside what the bundle was trained for: a range (low, high), or one value (trained_for)."""

    feature: str
    value: float | str
    low: float | None = None
    high: float | None = None
    trained_for: float | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Why a candidate cannot be chosen. arguments: those that contradict `fixed`; memory in GiB where it lacks."""

    reason: Literal["kv_cache_too_small", "contradicts_fixed"]
    arguments: tuple[str, ...] = ()
    needed_gib: float | None = None
    available_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """A candidate at its rank. score orders and means nothing else; exclusion is None if it can be chosen."""

    rank: int
    index: int
    score: float
    exclusion: Exclusion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Memory that the candidate nearest to starting needs and may use, in GiB."""

    config_id: str
    needed_gib: float
    available_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer. flags: arguments to set, {} for the engine's default, None if nothing would start."""

    decision: Decision
    reason: Reason | None
    flags: EngineArgs | None
    ranked: tuple[RankedCandidate, ...]
    out_of_range: tuple[OutOfRange, ...]
    shortfall: Shortfall | None


def load_policy(directory: Path) -> Policy:
    """The policy of a bundle directory; ArtefactError if anything about it does not verify."""
    return policy_of(load_bundle(directory))


def policy_of(bundle: Bundle) -> Policy:
    """The policy of a verified bundle; ArtefactError if its graph cannot be run."""
    return Policy(bundle=bundle, scorer=Scorer(bundle.model))


def recommend(query: Query, policy: Policy) -> Recommendation:
    """Ranks the 15 candidates and decides; the same query gives the same answer."""
    start_up = _start_up(query)
    exclusions = [_exclusion(candidate, query.fixed, start_up) for candidate in CANDIDATES]
    scores, default_score = _scores(query, policy)
    order = rank(scores, [exclusion is None for exclusion in exclusions])
    ranked = tuple(
        RankedCandidate(rank=position, index=index, score=float(scores[index]), exclusion=exclusions[index])
        for position, index in enumerate(order, start=1)
    )
    out_of_range = tuple(_out_of_range(query, policy.bundle.manifest))
    decision, reason = _decide(exclusions, start_up, in_range=not out_of_range)
    if decision == "recommended" and not _better(float(scores[order[0]]), default_score, policy.bundle.manifest):
        decision, reason = "keep_engine_default", "no_better_than_engine_default"
    return Recommendation(
        decision=decision,
        reason=reason,
        flags=_flags(decision, query.fixed, top=CANDIDATES[order[0]]),
        ranked=ranked,
        out_of_range=out_of_range,
        shortfall=_shortfall(exclusions, start_up) if decision == "none_feasible" else None,
    )


def _scores(query: Query, policy: Policy) -> tuple[NDArray[np.float32], float | None]:
    """The 15 candidates' scores, and the engine default's where the bundle scores it.

    Who has fixed an argument does not start with the engine's default, so there is no such score then.
    """
    rows = encode(query.scenario)
    if policy.bundle.manifest.abstention is None or query.fixed:
        return policy.scorer.score(rows), None
    default = np.array([*encode_state(query.scenario), *encode_candidate(query.gpu.engine_default)], dtype=np.float32)
    scores = policy.scorer.score_rows(np.concatenate([rows, default[None]]))
    return scores[:-1], float(scores[-1])


def _better(score: float, default_score: float | None, manifest: Manifest) -> bool:
    """Whether the best candidate is worth setting flags for; always, if the bundle knows no engine default."""
    if manifest.abstention is None or default_score is None:
        return True
    return score - default_score > manifest.abstention.margin


def _start_up(query: Query) -> dict[float, Feasibility]:
    """By gpu_memory_utilization: the only argument of a candidate that start-up depends on."""
    model, workload = query.scenario.model, query.scenario.workload
    by_utilization: dict[float, Feasibility] = {}
    for candidate in CANDIDATES:
        if candidate.gpu_memory_utilization not in by_utilization:
            by_utilization[candidate.gpu_memory_utilization] = start_up_feasibility(
                model, workload, candidate, memory_gib=query.gpu.memory_gib
            )
    return by_utilization


def _exclusion(candidate: Candidate, fixed: EngineArgs, start_up: Mapping[float, Feasibility]) -> Exclusion | None:
    if fixed:
        args = candidate.engine_args()
        # 0.9 may arrive as 0.9000000001 from a template that computed it.
        foreign = tuple(name for name, value in fixed.items() if not math.isclose(args[name], value, rel_tol=1e-9))
        if foreign:
            return Exclusion(reason="contradicts_fixed", arguments=foreign)
    start = start_up[candidate.gpu_memory_utilization]
    if start.feasible:
        return None
    return Exclusion(reason="kv_cache_too_small", needed_gib=start.needed_gib, available_gib=start.available_gib)


def _decide(
    exclusions: Sequence[Exclusion | None], start_up: Mapping[float, Feasibility], *, in_range: bool
) -> tuple[Decision, Reason | None]:
    """none_feasible before keep_engine_default before recommended."""
    if any(exclusion is None for exclusion in exclusions):
        return ("recommended", None) if in_range else ("keep_engine_default", "out_of_support")
    none_agrees = all(exclusion and exclusion.reason == "contradicts_fixed" for exclusion in exclusions)
    if none_agrees and any(start.feasible for start in start_up.values()):
        return "keep_engine_default", "no_candidate_matches_fixed"
    return "none_feasible", "kv_cache_too_small"


def _flags(decision: Decision, fixed: EngineArgs, *, top: Candidate) -> EngineArgs | None:
    if decision == "none_feasible":
        return None
    if decision == "keep_engine_default":
        return {}
    return {name: value for name, value in top.engine_args().items() if name not in fixed}


def _shortfall(exclusions: Sequence[Exclusion | None], start_up: Mapping[float, Feasibility]) -> Shortfall:
    """Of the candidates that agree with `fixed` (of all, if none does), the one that may use the most memory."""
    agreeing = [c for c, e in zip(CANDIDATES, exclusions, strict=True) if e and e.reason == "kv_cache_too_small"]
    nearest = max(agreeing or CANDIDATES, key=lambda candidate: candidate.gpu_memory_utilization)
    start = start_up[nearest.gpu_memory_utilization]
    return Shortfall(config_id=nearest.config_id, needed_gib=start.needed_gib, available_gib=start.available_gib)


def _out_of_range(query: Query, manifest: Manifest) -> Iterator[OutOfRange]:
    for feature, value in zip(FEATURE_NAMES, encode_state(query.scenario), strict=False):
        low, high = manifest.training_range[feature]
        slack = RANGE_TOLERANCE * max(abs(low), abs(high))
        if not low - slack <= value <= high + slack:
            yield OutOfRange(feature=feature, value=value, low=low, high=high)
    if query.gpu.name != manifest.gpu:
        yield OutOfRange(feature="gpu", value=query.gpu.name, trained_for=manifest.gpu)
    if query.engine_version != manifest.engine_version:
        yield OutOfRange(feature="engine_version", value=query.engine_version, trained_for=manifest.engine_version)
    if query.slo == manifest.slo:
        return
    for name, value in asdict(query.slo).items():
        trained_for = getattr(manifest.slo, name)
        if value != trained_for:
            yield OutOfRange(feature=f"slo.{name}", value=value, trained_for=trained_for)
