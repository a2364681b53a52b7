"""The use case: a query before launch in, a ranking of the 15 candidates and one decision out. Knows no HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.decision import Decision, Reason, cautious, decided, flags_of
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Capacity, Demand
from service.domain.features import encode_candidate, encode_state
from service.domain.gpu import Gpu
from service.domain.manifest import Abstention, Manifest
from service.domain.memory import start_up_tokens
from service.domain.preference import prefer
from service.domain.scenario import Scenario, Workload
from service.domain.slo import Slo
from service.estimator import Estimates
from service.exclusion import (
    EngineArgs,
    Exclusion,
    Shortfall,
    capacities_of,
    engine_start,
    exclusions_of,
    obstacle_of,
    shortfall_of,
    with_learnt_only,
)
from service.expectation import (
    Expectation,
    Expected,
    change_of,
    expectation_of,
    expected_of,
    not_worse,
    priced,
    slo_met_chance,
)
from service.load_range import LoadRange, RangeScores
from service.policies import Policy
from service.support import OutOfRange, configurations_not_learnt, out_of_range

ENGINE_ARGUMENTS = tuple(CANDIDATES[0].engine_args())
# Of what is scored and estimated beside the candidates: what starts where nothing further is set.
DEFAULT_ROW = len(CANDIDATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is known before launch. fixed: engine arguments that the user has already set, by name.

    chunked_prefill: off only where the user has switched it off. outside: what else the user has set that nothing was
    learnt from. gpu_shared: others use the same device, so that memory which is left to them is worth something.
    load_range: where the workload is a range, of which the scenario has the middle. longest: the largest request,
    where it is not the scenario's own.
    """

    scenario: Scenario
    gpu: Gpu
    engine_version: str
    slo: Slo
    fixed: EngineArgs
    chunked_prefill: bool = True
    outside: tuple[OutOfRange, ...] = ()
    gpu_shared: bool = False
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
        if self.gpu.cache_only:
            demand = demand.of_given_cache()
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
    def as_trained(self) -> bool:
        """Whether it is the engine's default that starts where nothing further is set: the chances of training are
        about it. Fixing what vLLM would start with anyway changes nothing."""
        return self.chunked_prefill and (not self.fixed or self.kept == self.engine_default)

    @property
    def kept(self) -> Candidate:
        """What vLLM starts with when nothing further is set than what is fixed."""
        return self._start(self.fixed)

    @property
    def beside(self) -> tuple[float, ...]:
        """The 4 features of what the candidates are compared with: what starts where nothing further is set."""
        if self.as_trained or not self.chunked_prefill:
            return default_features(self.gpu)
        return tuple(encode_candidate(self.kept))

    def _start(self, fixed: EngineArgs) -> Candidate:
        scenario = self.scenario if self.longest is None else replace(self.scenario, workload=self.longest)
        return engine_start(self.gpu, fixed, scenario, chunked_prefill=self.chunked_prefill)


class RankedCandidate(NamedTuple):
    """A candidate at its rank. score orders and means nothing else; exclusion is None if it can be chosen.

    not_worse, not_worse_than_fixed: the chances of not being worse than the engine's default and than candidate 0,
    None where they are not estimated or where it is not that default which would be kept.
    A tuple because each answer makes 15: frozen dataclasses would cost more than the network.
    """

    rank: int
    candidate_index: int
    score: float
    exclusion: Exclusion | None
    capacity: Capacity
    not_worse: float | None = None
    not_worse_than_fixed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer. flags: arguments to set, {} for the engine's default, None if nothing would start.

    default_capacity: of what the engine starts with when nothing is set; kept_capacity: when nothing further is.
    shortfall: None where no memory is lacking. expectation: None outside of support, or without an estimator; of the
    middle, where the workload is a range. range_scores: what was chosen by then. kept_score: of what is compared with;
    kept_not_worse_than_fixed: its chance of not being worse than candidate 0, as the ranked have theirs.
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
    kept_score: float
    kept_not_worse_than_fixed: float | None = None
    expectation: Expectation | None = None
    range_scores: RangeScores | None = None


def recommend(query: Query, policy: Policy) -> Recommendation:
    """Ranks the 15 candidates and decides; the same query gives the same answer."""
    if query.load_range is not None:
        return _over_range(query, query.load_range, policy)
    state, beside = encode_state(query.scenario), query.beside
    outside = _outside(query, state, policy)
    estimates = None
    if policy.estimator is not None and _estimable(query, outside):
        estimates = policy.estimator.estimate(state, beside)
    scores = priced(policy.scorer.score_question(state, beside), estimates, rules_of(query, policy.manifest))
    return _recommendation(query, policy, outside, scores, estimates)


def recommend_all(queries: Sequence[Query], policy: Policy) -> list[Recommendation]:
    """Each as `recommend` has it, with one run of each network for all; a range, which is many points, has its own."""
    if any(query.load_range is not None for query in queries):
        points = iter(recommend_all([query for query in queries if query.load_range is None], policy))
        return [next(points) if query.load_range is None else recommend(query, policy) for query in queries]
    if not queries:
        return []
    states = [encode_state(query.scenario) for query in queries]
    beside = [query.beside for query in queries]
    scores = policy.scorer.score_questions(states, beside)
    outside = [_outside(query, state, policy) for query, state in zip(queries, states, strict=True)]
    estimates: list[Estimates | None] = [None] * len(queries)
    wanted = [i for i, query in enumerate(queries) if _estimable(query, outside[i])]
    if policy.estimator is not None and wanted:
        found = policy.estimator.estimate_all([states[i] for i in wanted], [beside[i] for i in wanted])
        for i, one in zip(wanted, found, strict=True):
            estimates[i] = one
    return [
        _recommendation(query, policy, beyond, priced(row, one, rules_of(query, policy.manifest)), one)
        for query, beyond, row, one in zip(queries, outside, scores, estimates, strict=True)
    ]


def _over_range(query: Query, load: LoadRange, policy: Policy) -> Recommendation:
    """One run of each network over the points: mean scores and mean chances, expected numbers of the middle."""
    points, inside = load.points()
    middle = encode_state(query.scenario)
    states = _states(middle, points)
    beside = [query.beside] * len(points)
    scores = policy.scorer.score_questions(states, beside)
    ends = _states(middle, load.extremes)
    outside = tuple({entry.feature: entry for state in ends for entry in _outside(query, state, policy)}.values())
    estimates = None
    if policy.estimator is not None and _estimable(query, outside):
        of_middle, *of_points = policy.estimator.estimate_all([middle, *states], beside[:1] * (len(states) + 1))
        rules = rules_of(query, policy.manifest)
        scores = np.stack([priced(row, one, rules) for row, one in zip(scores, of_points, strict=True)])
        chances: NDArray[np.float32] = np.stack([one.chances for one in of_points[:inside]]).mean(axis=0)
        estimates = of_middle._replace(chances=chances)
    over = RangeScores(points=points, scores=scores, inside=inside, slope=policy.manifest.score_slope)
    return _recommendation(query, policy, outside, over.mean, estimates, over)


def _states(middle: Sequence[float], points: NDArray[np.float64]) -> list[list[float]]:
    """The 8 features at each point: the model's own, then the workload's."""
    workloads = points.copy()
    workloads[:, -1] = np.log2(workloads[:, -1])
    model = list(middle[: -workloads.shape[1]])
    return [[*model, *workload] for workload in workloads.tolist()]


def _outside(query: Query, state: Sequence[float], policy: Policy) -> tuple[OutOfRange, ...]:
    found = out_of_range(
        state,
        model=query.scenario.model,
        gpu=query.gpu,
        engine_version=query.engine_version,
        slo=query.slo,
        manifest=policy.bundle.manifest,
    )
    return (*found, *query.outside)


def rules_of(query: Query, manifest: Manifest) -> Abstention | None:
    """What the bundle asks about chances; None where it has nothing, or where it is not the engine's default that would
    be kept: its margin of scores holds all the same."""
    return manifest.abstention if query.as_trained else None


def _estimable(query: Query, outside: Sequence[OutOfRange]) -> bool:
    """Nothing is estimated where nothing was learnt; without chunked prefill nothing was."""
    return not outside and query.chunked_prefill


def _like_trained(query: Query) -> bool:
    """Whether what is kept lies within the arguments of the configurations that were learnt from."""
    if query.as_trained:
        return True
    low, high = _trained_arguments(query.gpu)
    return all(least <= value <= most for least, value, most in zip(low, query.beside, high, strict=True))


@lru_cache(maxsize=64)
def _trained_arguments(gpu: Gpu) -> tuple[list[float], list[float]]:
    """The least and the greatest of each argument's feature, of the candidates and vLLM's default."""
    rows = np.array([*(encode_candidate(candidate) for candidate in CANDIDATES), default_features(gpu)])
    return rows.min(axis=0).tolist(), rows.max(axis=0).tolist()


def _recommendation(
    query: Query,
    policy: Policy,
    outside: tuple[OutOfRange, ...],
    scores: NDArray[np.float32],
    estimates: Estimates | None,
    over: RangeScores | None = None,
) -> Recommendation:
    """scores: [16], the 15 candidates and what is kept; estimates: of the same, None where there are none.

    over: where the workload is a range, that of which the scores are the means.
    """
    manifest = policy.bundle.manifest
    demand = query.demand
    capacities = capacities_of(demand, query.gpu.memory_gib)
    exclusions = exclusions_of(capacities, demand, fixed=query.fixed, chunked_prefill=query.chunked_prefill)
    exclusions = with_learnt_only(exclusions, manifest.configurations)
    outside = (*outside, *configurations_not_learnt(exclusions, None if query.as_trained else query.kept, manifest))
    chances = not_worse(estimates).tolist() if estimates is not None and query.as_trained else None
    order = ordered(query, manifest, scores[:-1], exclusions, chances, over)
    top = order[0]
    default = query.engine_default
    kept = query.kept if query.fixed else default
    default_capacity = demand.capacity(default, memory_gib=query.gpu.memory_gib)
    kept_capacity = default_capacity if kept is default else demand.capacity(kept, memory_gib=query.gpu.memory_gib)
    obstacle = obstacle_of(kept, kept_capacity, demand, chunked_prefill=query.chunked_prefill)
    decision, reason = decided(exclusions, obstacle, in_range=not outside)
    first = own = change = None
    if estimates is not None and exclusions[top] is None:
        first = expected_row(query, policy, estimates, top, capacities[top])
        if query.as_trained:
            change = change_of(estimates.ratios[top].tolist(), answer_tokens=query.scenario.workload.max_new_tokens)
    if estimates is not None and obstacle is None and _like_trained(query):
        own = expected_row(query, policy, estimates, DEFAULT_ROW, kept_capacity)
    values: list[float] = scores.tolist()
    # What does not start is nothing to keep.
    if decision == "recommended" and query.chunked_prefill and (query.as_trained or obstacle is None):
        chance = None if chances is None else chances[top][0]
        decision, reason = cautious(
            manifest,
            slo=query.slo,
            gain=float(scores[top] - scores[-1]),
            chance=chance,
            first=first,
            own=own,
            change=change,
            errors=policy.forecast_errors,
        )
    return Recommendation(
        decision=decision,
        reason=reason,
        flags=flags_of(decision, query.fixed, top=CANDIDATES[top]),
        ranked=_ranked(order, values, exclusions, capacities, chances),
        out_of_range=outside,
        shortfall=shortfall_of(exclusions, capacities, kept=kept, kept_capacity=kept_capacity)
        if reason == "kv_cache_too_small"
        else None,
        demand=demand,
        default_capacity=default_capacity,
        kept_capacity=kept_capacity,
        kept_score=values[-1],
        kept_not_worse_than_fixed=None if chances is None else chances[-1][1],
        expectation=expectation_of(first, own, chosen=decision == "recommended", change=change),
        range_scores=over,
    )


def _ranked(
    order: Sequence[int],
    values: Sequence[float],
    exclusions: Sequence[Exclusion | None],
    capacities: Sequence[Capacity],
    chances: Sequence[Sequence[float]] | None,
) -> tuple[RankedCandidate, ...]:
    """The candidates in this order; everything else by candidate."""
    return tuple(
        map(
            RankedCandidate,
            range(1, len(order) + 1),
            order,
            [values[i] for i in order],
            [exclusions[i] for i in order],
            [capacities[i] for i in order],
            *([None if chances is None or exclusions[i] else chances[i][k] for i in order] for k in range(2)),
        )
    )


def ordered(
    query: Query,
    manifest: Manifest,
    scores: NDArray[np.float32],
    exclusions: Sequence[Exclusion | None],
    chances: Sequence[Sequence[float]] | None,
    over: RangeScores | None = None,
) -> list[int]:
    """Best first; what cannot be chosen comes last. Those that are safe enough come before the others, if any is asked
    to be. Over a range those of the least worst case come before all. chances: [16, 2] as `not_worse` has them."""
    abstention = manifest.abstention
    threshold = None if abstention is None or not query.as_trained else abstention.threshold
    preferred = partial(
        prefer,
        near_tie=None if abstention is None else abstention.near_tie,
        low_utilisation_gain=None if abstention is None else abstention.low_utilisation_gain,
        shared_gpu=query.gpu_shared,
        engine_default=_default_of(query.gpu),
        safe=None if threshold is None or chances is None else [chance[0] >= threshold for chance in chances[:-1]],
    )
    eligible = [exclusion is None for exclusion in exclusions]
    return preferred(scores, eligible) if over is None else over.order(eligible, preferred)


def expected_row(query: Query, policy: Policy, estimates: Estimates, row: int, capacity: Capacity) -> Expected:
    """Of the candidate in that row of the estimates; the last is what starts where nothing further is set."""
    as_trained = query.slo == policy.bundle.manifest.slo
    return expected_of(
        query.kept if row == DEFAULT_ROW else CANDIDATES[row],
        quantiles=estimates.quantiles[row].tolist(),
        slo_met_chance=slo_met_chance(estimates, row) if as_trained else None,
        workload=query.scenario.workload,
        kv_cache_tokens=capacity.kv_cache_tokens,
        slo=query.slo,
        bands=policy.error_bands,
    )


@lru_cache(maxsize=64)
def _default_of(gpu: Gpu) -> Candidate:
    return gpu.engine_default


@lru_cache(maxsize=64)
def default_features(gpu: Gpu) -> tuple[float, ...]:
    """The 4 features of what vLLM starts with on this GPU."""
    return encode_candidate(gpu.engine_default)
