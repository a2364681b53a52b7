"""The use case: a query before launch in, a ranking of the 15 candidates and one decision out. Knows no HTTP."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bundle import Bundle, load_bundle
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Capacity, Demand
from service.domain.features import FEATURE_NAMES, encode_candidate, encode_state
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.manifest import Manifest
from service.domain.memory import start_up_tokens
from service.domain.ranking import rank
from service.domain.scenario import ModelArch, Scenario, Workload
from service.domain.slo import Slo
from service.exclusion import (
    EngineArgs,
    Exclusion,
    Obstacle,
    Shortfall,
    capacities_of,
    engine_start,
    exclusions_of,
    obstacle_of,
    shortfall_of,
)
from service.load_range import LoadRange, RangeScores
from service.scorer import Scorer

Decision = Literal["recommended", "keep_engine_default", "none_feasible"]
Reason = (
    Literal[
        "out_of_support", "no_better_than_engine_default", "no_candidate_matches_fixed", "only_engine_default_starts"
    ]
    | Obstacle
)
ENGINE_ARGUMENTS = tuple(CANDIDATES[0].engine_args())
# What every policy learns from: dense decoders with full attention and 16-bit weights.
TRAINED_ARCHITECTURE = "dense"
TRAINED_QUANTISATION = "16-bit weights"
TRAINED_ADAPTER = "no adapter"
# Features of the model alone, as ModelArch names them.
MODEL_FEATURES = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")
# A training range may have passed through float32, whose rounding must not push a trained model out of it.
RANGE_TOLERANCE = 1e-6
# A device that has a tenth less memory than it should is a slice of it, or another one.
MEMORY_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """One input outside what the bundle was trained for: a range (low, high), or one value (trained_for)."""

    feature: str
    value: float | str
    low: float | None = None
    high: float | None = None
    trained_for: float | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is known before launch. fixed: engine arguments that the user has already set, by name.

    chunked_prefill: off only where the user has switched it off. outside: what else the user has set that nothing was
    learnt from. load_range: where the workload is a range, of which the scenario has the middle. longest: the largest
    request, where it is not the scenario's own.
    """

    scenario: Scenario
    gpu: Gpu
    engine_version: str
    slo: Slo
    fixed: EngineArgs
    chunked_prefill: bool = True
    outside: tuple[OutOfRange, ...] = ()
    load_range: LoadRange | None = None
    longest: Workload | None = None

    def __post_init__(self) -> None:
        if not set(self.fixed) <= set(ENGINE_ARGUMENTS):
            raise ValueError(f"fixed names {sorted(self.fixed)}, known are {ENGINE_ARGUMENTS}")

    @property
    def demand(self) -> Demand:
        """What the model under this workload asks of the device."""
        model = self.scenario.model
        demand = Demand.of(model, self.scenario.workload, engine_version=self.engine_version)
        return demand if self.longest is None else replace(demand, context_tokens=start_up_tokens(model, self.longest))

    @property
    def request_tokens(self) -> int:
        """Tokens of the largest request when it ends."""
        return (self.longest or self.scenario.workload).sequence_tokens

    @property
    def engine_default(self) -> Candidate:
        """What vLLM starts with when none of the four arguments is set."""
        return self._start({})

    @property
    def kept(self) -> Candidate:
        """What vLLM starts with when nothing further is set than what is fixed."""
        return self._start(self.fixed)

    def _start(self, fixed: EngineArgs) -> Candidate:
        scenario = self.scenario if self.longest is None else replace(self.scenario, workload=self.longest)
        return engine_start(self.gpu, fixed, scenario, chunked_prefill=self.chunked_prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A verified bundle and the session that scores with it."""

    bundle: Bundle
    scorer: Scorer


class RankedCandidate(NamedTuple):
    """A candidate at its rank. score orders and means nothing else; exclusion is None if it can be chosen.

    A tuple because each answer makes 15: frozen dataclasses would cost more than the network.
    """

    rank: int
    candidate_index: int
    score: float
    exclusion: Exclusion | None
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer. flags: arguments to set, {} for the engine's default, None if nothing would start.

    default_capacity: of what the engine starts with when nothing is set; kept_capacity: when nothing further is.
    shortfall: None where no memory is lacking. range_scores: where the workload is a range, what was chosen by.
    """

    decision: Decision
    reason: Reason | None
    flags: EngineArgs | None
    ranked: tuple[RankedCandidate, ...]
    out_of_range: tuple[OutOfRange, ...]
    shortfall: Shortfall | None
    demand: Demand
    default_capacity: Capacity
    kept_capacity: Capacity
    range_scores: RangeScores | None = None


def load_policy(directory: Path) -> Policy:
    """The policy of a bundle directory; ArtefactError if anything about it does not verify."""
    return policy_of(load_bundle(directory))


def policy_of(bundle: Bundle) -> Policy:
    """The policy of a verified bundle; ArtefactError if its graph cannot be run."""
    return Policy(bundle=bundle, scorer=Scorer(bundle.model))


def recommend(query: Query, policy: Policy) -> Recommendation:
    """Ranks the 15 candidates and decides; the same query gives the same answer."""
    if query.load_range is not None:
        return _over_range(query, query.load_range, policy)
    state = encode_state(query.scenario)
    return _recommendation(query, policy, state, policy.scorer.score_question(state, _engine_default(query.gpu)))


def recommend_all(queries: Sequence[Query], policy: Policy) -> list[Recommendation]:
    """Each as `recommend` has it, with one run of the network for all; a range, which is many points, has its own."""
    points = [query for query in queries if query.load_range is None]
    states = [encode_state(query.scenario) for query in points]
    scores = policy.scorer.score_questions(states, [_engine_default(query.gpu) for query in points]) if points else ()
    rows = iter(zip(states, scores, strict=True))
    return [
        _recommendation(query, policy, *next(rows)) if query.load_range is None else recommend(query, policy)
        for query in queries
    ]


def _over_range(query: Query, load: LoadRange, policy: Policy) -> Recommendation:
    points, inside = load.points()
    states = [encode_state(replace(query.scenario, workload=point)) for point in points]
    scores = policy.scorer.score_questions(states, [_engine_default(query.gpu)] * len(points))
    found = RangeScores(points=points, scores=scores, inside=inside, slope=policy.bundle.manifest.score_slope)
    # The corners come last, and what lies within them lies within the trained range if they do.
    return _recommendation(query, policy, states[0], found.mean, found, corners=states[inside:])


def _recommendation(
    query: Query,
    policy: Policy,
    state: Sequence[float],
    scores: NDArray[np.float32],
    over: RangeScores | None = None,
    corners: Sequence[Sequence[float]] = (),
) -> Recommendation:
    """scores: [16], the 15 candidates and the engine's default. state: the query's 8 features.

    over, corners: where the workload is a range, its scores, whose means `scores` are, and the states at its corners.
    """
    manifest = policy.bundle.manifest
    demand = query.demand
    capacities = capacities_of(demand, query.gpu.memory_gib)
    exclusions = exclusions_of(capacities, demand, fixed=query.fixed, chunked_prefill=query.chunked_prefill)
    eligible = [exclusion is None for exclusion in exclusions]
    order = rank(scores[:-1], eligible) if over is None else over.order(eligible, rank)
    values: list[float] = scores.tolist()
    out_of_range = tuple(_out_of_range(query, [state, *corners], manifest))
    default = query.engine_default
    kept = query.kept if query.fixed else default
    default_capacity = demand.capacity(default, memory_gib=query.gpu.memory_gib)
    kept_capacity = default_capacity if kept is default else demand.capacity(kept, memory_gib=query.gpu.memory_gib)
    obstacle = obstacle_of(kept, kept_capacity, demand, chunked_prefill=query.chunked_prefill)
    decision, reason = _decide(exclusions, obstacle, in_range=not out_of_range)
    # Who has fixed an argument does not start with the engine's default, so nothing is compared with it then.
    as_trained = not query.fixed and query.chunked_prefill
    if decision == "recommended" and as_trained and not _better(values[order[0]], values[-1], manifest):
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
                [capacities[i] for i in order],
            )
        ),
        out_of_range=out_of_range,
        shortfall=shortfall_of(exclusions, capacities, kept=kept, kept_capacity=kept_capacity)
        if reason == "kv_cache_too_small"
        else None,
        demand=demand,
        default_capacity=default_capacity,
        kept_capacity=kept_capacity,
        range_scores=over,
    )


@lru_cache(maxsize=64)
def _engine_default(gpu: Gpu) -> tuple[float, ...]:
    """The 4 features of what vLLM starts with on this GPU."""
    return encode_candidate(gpu.engine_default)


def _better(score: float, default_score: float, manifest: Manifest) -> bool:
    """Whether the best candidate is worth setting flags for; always, if the bundle knows no engine default."""
    return manifest.abstention is None or score - default_score > manifest.abstention.margin


def _decide(
    exclusions: Sequence[Exclusion | None], obstacle: Obstacle | None, *, in_range: bool
) -> tuple[Decision, Reason | None]:
    """none_feasible before keep_engine_default before recommended. obstacle: of a start with nothing further set."""
    if None in exclusions:
        return ("recommended", None) if in_range else ("keep_engine_default", "out_of_support")
    found = {exclusion.reason for exclusion in exclusions if exclusion}
    contradict = found == {"contradicts_fixed"}
    if obstacle is None:
        return "keep_engine_default", "no_candidate_matches_fixed" if contradict else "only_engine_default_starts"
    if contradict:
        return "none_feasible", obstacle
    # Where memory is enough for some, it is the token budget that stops those.
    return "none_feasible", "too_few_batched_tokens" if "too_few_batched_tokens" in found else "kv_cache_too_small"


def _flags(decision: Decision, fixed: EngineArgs, *, top: Candidate) -> EngineArgs | None:
    if decision == "none_feasible":
        return None
    if decision == "keep_engine_default":
        return {}
    return {name: value for name, value in top.engine_args().items() if name not in fixed}


def _out_of_range(query: Query, states: Sequence[Sequence[float]], manifest: Manifest) -> Iterator[OutOfRange]:
    for feature, *values in zip(FEATURE_NAMES, *states, strict=False):
        found = (_outside(feature, value, manifest) for value in values)
        if (outside := next(filter(None, found), None)) is not None:
            yield outside
    yield from _unlike(query.scenario.model)
    if query.gpu.name != manifest.gpu:
        yield OutOfRange(feature="gpu", value=query.gpu.name, trained_for=manifest.gpu)
    elif _is_another_size(query.gpu, trained := gpu_by_name(manifest.gpu)):
        yield OutOfRange(feature="gpu_memory_gib", value=query.gpu.memory_gib, trained_for=trained.memory_gib)
    if query.engine_version != manifest.engine_version:
        yield OutOfRange(feature="engine_version", value=query.engine_version, trained_for=manifest.engine_version)
    yield from query.outside
    yield from _other_limits(query.slo, manifest)


def model_out_of_range(model: ModelArch, manifest: Manifest) -> Iterator[OutOfRange]:
    """What of a model alone lies outside of what the bundle was trained for."""
    for feature in MODEL_FEATURES:
        if (outside := _outside(feature, float(getattr(model, feature)), manifest)) is not None:
            yield outside
    yield from _unlike(model)


def _outside(feature: str, value: float, manifest: Manifest) -> OutOfRange | None:
    low, high = manifest.training_range[feature]
    slack = RANGE_TOLERANCE * max(abs(low), abs(high))
    if low - slack <= value <= high + slack:
        return None
    return OutOfRange(feature=feature, value=value, low=low, high=high)


def _unlike(model: ModelArch) -> Iterator[OutOfRange]:
    if model.kind != TRAINED_ARCHITECTURE:
        yield OutOfRange(feature="architecture", value=model.kind, trained_for=TRAINED_ARCHITECTURE)
    if model.quantisation is not None:
        yield OutOfRange(feature="quantisation", value=model.quantisation, trained_for=TRAINED_QUANTISATION)
    if model.adapter is not None:
        yield OutOfRange(feature="adapter", value=model.adapter, trained_for=TRAINED_ADAPTER)


def _other_limits(slo: Slo, manifest: Manifest) -> Iterator[OutOfRange]:
    if slo == manifest.slo:
        return
    for name, value in asdict(slo).items():
        trained_for = getattr(manifest.slo, name)
        if value != trained_for:
            yield OutOfRange(feature=f"slo.{name}", value=value, trained_for=trained_for)


def _is_another_size(gpu: Gpu, trained: Gpu) -> bool:
    return gpu is not trained and abs(gpu.memory_gib - trained.memory_gib) > MEMORY_TOLERANCE * trained.memory_gib
