"""The reference's cells under other settings of host and front end, counted as its table may have counted them.

The published tables say "no request completed in the window" and "p95 TTFT" without saying which requests count. Two
rules are looked at: every request that completes in the window, which is ours, and of those only the ones that were
sent after the warm-up. Both are read from the same runs. Everything here is simulated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench_runner.measurement import LOGGED, new_recorder, percentile
from bench_runner.plan import Plan, reference_plan
from bench_runner.simulator import Load, Observed, SimulationSettings, Window, new_engine, run_to_end
from bench_runner.stand_in import Run
from bench_runner.step_time import StepTables
from service.domain.candidate import CANDIDATES, FIXED_INDEX, GRID_MAX_NUM_SEQS, INDEX_BY_CONFIG_ID, Candidate
from service.domain.cell import CellKey
from service.domain.memory import kv_blocks, start_up_feasibility
from service.domain.reference import split_of
from service.domain.scenario import Workload
from service.domain.slo import Slo

# Which requests count: those that complete in the window; or of them those that were sent in it, too.
Rule = Literal["completed", "sent-after-warm-up"]
RULES: tuple[Rule, ...] = ("completed", "sent-after-warm-up")
MOST_REQUESTS = 100_000
_HEUR_LONG_PROMPT_TOKENS = 2048
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One cell under one rule; latencies in milliseconds are None, and the throughput 0, where no request counts."""

    throughput_tps: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    slo_met: bool

    @property
    def failed(self) -> bool:
        """The server did not start, or no request counts."""
        return self.ttft_p95_ms is None


FAILED = Outcome(throughput_tps=0.0, ttft_p95_ms=None, tpot_p95_ms=None, slo_met=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario of the reference: the key of candidate 0 stands for it, heur is the index of HEUR's choice."""

    key: CellKey
    workload: Workload
    heur: int


def heur_index(workload: Workload) -> int:
    """HEUR of the reference: utilisation 0.85, caching on, sequences nearest to the clients (ties to the lower),
    8,192 tokens a step from prompts of 2,048 on, 2,048 below."""
    candidate = Candidate(
        max_num_seqs=min(GRID_MAX_NUM_SEQS, key=lambda seqs: (abs(seqs - workload.concurrency), seqs)),
        max_num_batched_tokens=8192 if workload.prompt_tokens >= _HEUR_LONG_PROMPT_TOKENS else 2048,
        gpu_memory_utilization=0.85,
        enable_prefix_caching=True,
    )
    return INDEX_BY_CONFIG_ID[candidate.config_id]


def scenarios(split: Literal["dev", "test"]) -> list[Scenario]:
    """The 16 scenarios of a split, in plan order."""
    plan = reference_plan()
    first = (key for key in plan.cells() if key.config_id == CANDIDATES[FIXED_INDEX].config_id)
    return [
        Scenario(key=key, workload=plan.workload(key), heur=heur_index(plan.workload(key)))
        for key in first
        if split_of(model=key.model, workload=key.workload) == split
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunner:
    """Runs cells of the reference plan. reseed: added to every scenario's seed, 0 for the committed cells' own."""

    plan: Plan
    tables: StepTables
    settings: SimulationSettings
    reseed: int = 0

    def outcomes(self, scenario: Scenario, indices: Iterable[int]) -> dict[Rule, dict[int, Outcome]]:
        """By rule and candidate. Candidates whose limits make no difference to a run share it."""
        blocks = {index: self._blocks(scenario, CANDIDATES[index]) for index in indices}
        # As in stand_in: small pools and wide limits first, those runs stand for most of the others.
        order = sorted(
            blocks,
            key=lambda index: (
                not CANDIDATES[index].enable_prefix_caching,
                blocks[index] or 0,
                -CANDIDATES[index].max_num_seqs,
                -CANDIDATES[index].max_num_batched_tokens,
            ),
        )
        made: list[tuple[Run, dict[Rule, Outcome]]] = []
        found: dict[Rule, dict[int, Outcome]] = {rule: {} for rule in RULES}
        for index in order:
            for rule, outcome in self._shared_or_run(scenario, CANDIDATES[index], blocks[index], made).items():
                found[rule][index] = outcome
        return found

    def _shared_or_run(
        self,
        scenario: Scenario,
        candidate: Candidate,
        blocks: int | None,
        made: list[tuple[Run, dict[Rule, Outcome]]],
    ) -> dict[Rule, Outcome]:
        if blocks is None:
            return dict.fromkeys(RULES, FAILED)
        for run, by_rule in made:
            if run.stands_for(candidate, kv_blocks=blocks):
                return by_rule
        observed, by_rule = self._run(scenario, candidate, blocks)
        made.append((Run(candidate=candidate, kv_blocks=blocks, observed=observed), by_rule))
        return by_rule

    def _blocks(self, scenario: Scenario, candidate: Candidate) -> int | None:
        """None where the server would not start."""
        model, memory_gib = self.plan.model(scenario.key), self.plan.memory_gib
        if not start_up_feasibility(model, scenario.workload, candidate, memory_gib=memory_gib).feasible:
            return None
        return kv_blocks(model, candidate, memory_gib=memory_gib)

    def _run(self, scenario: Scenario, candidate: Candidate, blocks: int) -> tuple[Observed, dict[Rule, Outcome]]:
        window = Window(warm_up_ms=self.plan.warm_up_s * 1000, length_ms=self.plan.window_s * 1000)
        engine = new_engine(
            Load.of(scenario.workload).stream(),
            candidate,
            kv_blocks=blocks,
            table=self.tables.of(scenario.key.model),
            settings=self.settings,
            seed=(self.plan.scenario_seed(scenario.key) + self.reseed) % 2**64,
        )
        recorder = new_recorder(
            start_ms=window.warm_up_ms, end_ms=window.end_ms, capacity=MOST_REQUESTS, logged=MOST_REQUESTS
        )
        observed, recorder = run_to_end(engine, recorder)
        log = recorder.log[: recorder.counts[LOGGED]]
        answer_tokens = scenario.workload.max_new_tokens
        rows = {rule: counted(log, rule, window=window) for rule in RULES}
        tps = observed.tokens / self.plan.window_s
        return observed, {
            rule: outcome_of(kept, tps=tps, answer_tokens=answer_tokens, slo=self.plan.slo)
            for rule, kept in rows.items()
        }


def counted(log: Vector, rule: Rule, *, window: Window) -> Vector:
    """The rows of a log (client, sent, first token, last token; in milliseconds) that a rule counts."""
    kept = (log[:, 3] >= window.warm_up_ms) & (log[:, 3] < window.end_ms)
    if rule == "sent-after-warm-up":
        kept &= log[:, 1] >= window.warm_up_ms
    return np.asarray(log[kept], dtype=np.float64)


def outcome_of(log: Vector, *, tps: float, answer_tokens: int, slo: Slo) -> Outcome:
    """From the counted rows of a log; tps: output tokens received in the window per second, by either rule."""
    ttft_p95_ms = percentile(log[:, 2] - log[:, 1], 95)
    if ttft_p95_ms is None:
        return FAILED
    tpot_p95_ms = percentile((log[:, 3] - log[:, 2]) / (answer_tokens - 1), 95) if answer_tokens > 1 else None
    met = slo.met(ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, error_rate=0.0)
    return Outcome(throughput_tps=tps, ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, slo_met=met)


def dev_metrics(found: Sequence[tuple[Scenario, dict[int, Outcome]]]) -> dict[str, float | None]:
    """The dev table's numbers of FIXED and HEUR; each scenario with the outcomes of all 15 candidates.

    A regret is over the scenarios in which a candidate meets the SLO, None where there is no such scenario.
    """
    metrics: dict[str, float | None] = {}
    for policy in ("FIXED", "HEUR"):
        picked = [outcomes[_index(policy, scenario)] for scenario, outcomes in found]
        regrets = [
            1 - one.throughput_tps / max(out.throughput_tps for out in outcomes.values() if out.slo_met)
            for one, (_, outcomes) in zip(picked, found, strict=True)
            if any(out.slo_met for out in outcomes.values())
        ]
        metrics |= {f"{policy} {name}": value for name, value in _shares(picked).items()}
        metrics[f"{policy} regret"] = float(np.mean(regrets)) if regrets else None
    return metrics


def table_metrics(found: Sequence[tuple[Scenario, dict[int, Outcome]]]) -> dict[str, float | None]:
    """The test table's numbers of FIXED and HEUR. p95 over scenarios of the p95, failures left out as published."""
    metrics: dict[str, float | None] = {}
    by_policy = {
        policy: [outcomes[_index(policy, scenario)] for scenario, outcomes in found] for policy in ("FIXED", "HEUR")
    }
    for policy, picked in by_policy.items():
        metrics |= {f"{policy} {name}": value for name, value in _shares(picked).items()}
        metrics[f"{policy} throughput_tps"] = float(np.mean([one.throughput_tps for one in picked]))
        ttft = [one.ttft_p95_ms / 1000 for one in picked if one.ttft_p95_ms is not None]
        tpot = [one.tpot_p95_ms for one in picked if one.tpot_p95_ms is not None]
        metrics[f"{policy} ttft_p95_s"] = percentile(np.array(ttft), 95)
        metrics[f"{policy} tpot_p95_ms"] = percentile(np.array(tpot), 95)
    both = [
        heur.throughput_tps / fixed.throughput_tps
        for heur, fixed in zip(by_policy["HEUR"], by_policy["FIXED"], strict=True)
        if heur.slo_met and fixed.slo_met
    ]
    metrics["HEUR throughput_ratio"] = float(np.mean(both)) if both else None
    return metrics


def _index(policy: str, scenario: Scenario) -> int:
    return FIXED_INDEX if policy == "FIXED" else scenario.heur


def _shares(picked: Sequence[Outcome]) -> dict[str, float]:
    return {
        "violation": float(np.mean([not one.slo_met for one in picked])),
        "failure": float(np.mean([one.failed for one in picked])),
        "goodput_tps": float(np.mean([one.throughput_tps * one.slo_met for one in picked])),
    }
