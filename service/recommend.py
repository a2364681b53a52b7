"""The use case: a query before launch in, a ranking of the 15 candidates and one decision out. Knows no HTTP."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bundle import Bundle, load_bundle
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.features import FEATURE_NAMES, encode_candidate, encode_state
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
# What every policy learns from: dense decoders with full attention and 16-bit weights.
TRAINED_ARCHITECTURE = "dense"
TRAINED_QUANTISATION = "16-bit weights"
# A training range may have passed through float32, whose rounding must not push a trained model out of it.
RANGE_TOLERANCE = 1e-6
_BY_UTILIZATION = {candidate.gpu_memory_utilization: candidate for candidate in CANDIDATES}


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


class RankedCandidate(NamedTuple):
    """A candidate at its rank. score orders and means nothing else; exclusion is None if it can be chosen.

    A tuple because each answer makes 15: frozen dataclasses would cost more than the network.
    """

    rank: int
    candidate_index: int
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
    state = encode_state(query.scenario)
    return _recommendation(query, policy, state, policy.scorer.score_question(state, _engine_default(query.gpu)))


def recommend_all(queries: Sequence[Query], policy: Policy) -> list[Recommendation]:
    """Each as `recommend` has it, with one run of the network for all."""
    if not queries:
        return []
    states = [encode_state(query.scenario) for query in queries]
    scores = policy.scorer.score_questions(states, [_engine_default(query.gpu) for query in queries])
    return [
        _recommendation(query, policy, state, row) for query, state, row in zip(queries, states, scores, strict=True)
    ]


def _recommendation(
    query: Query, policy: Policy, state: Sequence[float], scores: NDArray[np.float32]
) -> Recommendation:
    """scores: [16], the 15 candidates and the engine's default. state: the query's 8 features."""
    manifest = policy.bundle.manifest
    start_up = _start_up(query)
    exclusions = _exclusions(query, start_up)
    order = rank(scores[:-1], [exclusion is None for exclusion in exclusions])
    values: list[float] = scores.tolist()
    out_of_range = tuple(_out_of_range(query, state, manifest))
    decision, reason = _decide(exclusions, start_up, in_range=not out_of_range)
    # Who has fixed an argument does not start with the engine's default, so nothing is compared with it then.
    if decision == "recommended" and not query.fixed and not _better(values[order[0]], values[-1], manifest):
        decision, reason = "keep_engine_default", "no_better_than_engine_default"
    return Recommendation(
        decision=decision,
        reason=reason,
        flags=_flags(decision, query.fixed, top=CANDIDATES[order[0]]),
        ranked=tuple(
            map(
                RankedCandidate,
                range(1, len(order) + 1),
                order,
                [values[i] for i in order],
                [exclusions[i] for i in order],
            )
        ),
        out_of_range=out_of_range,
        shortfall=_shortfall(exclusions, start_up) if decision == "none_feasible" else None,
    )


@lru_cache(maxsize=64)
def _engine_default(gpu: Gpu) -> tuple[float, ...]:
    """The 4 features of what vLLM starts with when nothing is set."""
    return encode_candidate(gpu.engine_default)


def _better(score: float, default_score: float, manifest: Manifest) -> bool:
    """Whether the best candidate is worth setting flags for; always, if the bundle knows no engine default."""
    return manifest.abstention is None or score - default_score > manifest.abstention.margin


def _start_up(query: Query) -> dict[float, Feasibility]:
    """By gpu_memory_utilization: the only argument of a candidate that start-up depends on."""
    model, workload, memory_gib = query.scenario.model, query.scenario.workload, query.gpu.memory_gib
    return {
        utilization: start_up_feasibility(model, workload, candidate, memory_gib=memory_gib)
        for utilization, candidate in _BY_UTILIZATION.items()
    }


def _exclusions(query: Query, start_up: Mapping[float, Feasibility]) -> list[Exclusion | None]:
    """Of each candidate, None where it can be chosen."""
    if not query.fixed and all(start.feasible for start in start_up.values()):
        return [None] * len(CANDIDATES)
    return [_exclusion(candidate, query.fixed, start_up) for candidate in CANDIDATES]


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


def _out_of_range(query: Query, state: Sequence[float], manifest: Manifest) -> Iterator[OutOfRange]:
    for feature, value in zip(FEATURE_NAMES, state, strict=False):
        low, high = manifest.training_range[feature]
        slack = RANGE_TOLERANCE * max(abs(low), abs(high))
        if not low - slack <= value <= high + slack:
            yield OutOfRange(feature=feature, value=value, low=low, high=high)
    model = query.scenario.model
    if model.kind != TRAINED_ARCHITECTURE:
        yield OutOfRange(feature="architecture", value=model.kind, trained_for=TRAINED_ARCHITECTURE)
    if model.quantisation is not None:
        yield OutOfRange(feature="quantisation", value=model.quantisation, trained_for=TRAINED_QUANTISATION)
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
