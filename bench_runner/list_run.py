"""One list: an announced workload, one draw of the true one, simulated under all 16 configurations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench_runner.announced import Announced
from bench_runner.kv_cache import blocks_of
from bench_runner.list_sets import ListSet, kind_of
from bench_runner.request_stream import longest
from bench_runner.simulator import Observed, SimulationSettings
from bench_runner.stand_in import Setup, run_all
from bench_runner.step_time import StepTable
from bench_runner.true_workload import draw_numbers, ideal_cycle_ms, stream_of, window_of
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.gpu import gpu_by_name
from service.domain.memory import kv_blocks
from service.domain.slo import REFERENCE_SLO

MET, VIOLATED, NOTHING_COMPLETED, NOT_STARTED = 0, 1, 2, 3
MOVED_BY = 0.5


def configurations(gpu: str) -> tuple[Candidate, ...]:
    """Scores are positional: the 15 candidates, then what the engine starts with on that GPU when nothing is set."""
    return (*CANDIDATES, gpu_by_name(gpu).engine_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Factors on the assumed machine: host and front-end times, kernels by kind, and the KV cache that is left."""

    host: float = 1.0
    front_end: float = 1.0
    dense: float = 1.0
    attention: float = 1.0
    kv_cache: float = 1.0

    def settings(self) -> SimulationSettings:
        """The assumed settings, moved."""
        base = SimulationSettings()
        return replace(
            base,
            host_step_ms=base.host_step_ms * self.host,
            host_sequence_ms=base.host_sequence_ms * self.host,
            request_ms=base.request_ms * self.front_end,
            prompt_token_ms=base.prompt_token_ms * self.front_end,
            output_token_ms=base.output_token_ms * self.front_end,
        )

    def table(self, table: StepTable) -> StepTable:
        """Step times, moved."""
        return table._replace(
            dense_ms=table.dense_ms * self.dense,
            head_ms=table.head_ms * self.dense,
            context_ms=table.context_ms * self.attention,
            generation_ms=table.generation_ms * self.attention,
        )


def machine_of(list_set: ListSet, scenario: int) -> Machine:
    """The assumed machine, or one whose every factor is uniform within ±50 %, the same for all draws of a scenario."""
    if list_set.machine == "assumed":
        return Machine()
    host, front_end, dense, attention, kv_cache = np.random.default_rng([list_set.seed, scenario, 5]).uniform(
        1 - MOVED_BY, 1 + MOVED_BY, 5
    )
    return Machine(host=host, front_end=front_end, dense=dense, attention=attention, kv_cache=kv_cache)


def run_list(list_set: ListSet, announced: Announced, scenario: int, draw: int) -> dict[str, Any]:
    """One row of a set's file; arrays have one value per configuration. Equal arguments, equal row."""
    machine = machine_of(list_set, scenario)
    settings, table = machine.settings(), machine.table(announced.architecture.table)
    context = announced.architecture.context
    rng = np.random.default_rng([list_set.draw_seed, scenario, draw])
    true = draw_numbers(rng, announced, list_set.uncertainty_of(draw), kind=kind_of(list_set, scenario, draw))
    cycle_ms = ideal_cycle_ms(true, table, settings)
    window = window_of(cycle_ms)
    stream = stream_of(rng, true, context=context, cycle_ms=cycle_ms, end_ms=window.end_ms)
    needed = max(blocks_of(context), blocks_of(longest(stream)) + 1)
    candidates, memory_gib = configurations(list_set.gpu), gpu_by_name(list_set.gpu).memory_gib
    blocks = [_blocks(announced, one, machine, memory_gib=memory_gib, needed=needed) for one in candidates]
    observed, runs = run_all(
        stream,
        [Setup(candidate=candidate, kv_blocks=n) for candidate, n in zip(candidates, blocks, strict=True)],
        table=table,
        settings=settings,
        window=window,
        seed=int(rng.integers(2**63)),
    )
    workload, model = announced.workload, announced.architecture.model
    return {
        "scenario": scenario,
        "draw": draw,
        "stratum": announced.stratum,
        "model": announced.architecture.name,
        "family": announced.architecture.family,
        "weight_gb": model.weight_gb,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "max_model_len": context,
        "prompt_tokens": workload.prompt_tokens,
        "max_new_tokens": workload.max_new_tokens,
        "shared_prefix_ratio": workload.shared_prefix_ratio,
        "concurrency": workload.concurrency,
        "kind": true.kind,
        "true_prompt_tokens": true.prompt_tokens,
        "true_output_cap": true.output_cap,
        "true_prefix_ratio": true.shared_prefix_ratio,
        "true_clients": true.clients,
        "think_ms": true.think_ms,
        "window_s": window.length_ms / 1000,
        "runs": runs,
        **_outcomes(observed, window_s=window.length_ms / 1000),
    }


def _blocks(
    announced: Announced, candidate: Candidate, machine: Machine, *, memory_gib: float, needed: int
) -> int | None:
    blocks = int(kv_blocks(announced.architecture.model, candidate, memory_gib=memory_gib) * machine.kv_cache)
    return blocks if blocks >= needed else None


def _outcomes(observed: list[Observed | None], *, window_s: float) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {"throughput_tps": [], "ttft_p95_ms": [], "tpot_p95_ms": [], "status": []}
    seen: dict[int, tuple[float, float, float, int]] = {}
    for one in observed:
        # Configurations that share a run share the object, so its percentiles are taken once.
        if id(one) not in seen:
            seen[id(one)] = _summary(one, window_s=window_s)
        for column, value in zip(columns.values(), seen[id(one)], strict=True):
            column.append(value)
    return columns


def _summary(one: Observed | None, *, window_s: float) -> tuple[float, float, float, int]:
    """(tokens/s, p95 TTFT, p95 TPOT, status); a failed run has throughput 0, undefined latencies are NaN."""
    nan = float("nan")
    if one is None:
        return 0.0, nan, nan, NOT_STARTED
    ttft, tpot = one.ttft_percentile(95), one.tpot_percentile(95)
    if ttft is None:
        return 0.0, nan, nan, NOTHING_COMPLETED
    met = REFERENCE_SLO.met(ttft_p95_ms=ttft, tpot_p95_ms=tpot, error_rate=0.0)
    return one.tokens / window_s, ttft, nan if tpot is None else tpot, MET if met else VIOLATED
