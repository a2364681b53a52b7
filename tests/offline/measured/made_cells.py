"""Cells that a rule fills: long prompts want few sequences, short ones many."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench_runner.plan import CPU, Plan, reference_plan
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.reference import NamedWorkload

SERVER = Provenance(
    evidence="measured-cpu", gpu=CPU, engine_version="0.28.0", scheduler="a real vllm serve", step_times="wall clock"
)
SIMULATOR = replace(SERVER, evidence="simulated", scheduler="simulator 1", step_times="a table")
# Candidate 0, and 32 and 512 sequences under otherwise equal arguments.
CONFIGURATIONS = (CANDIDATES[0], CANDIDATES[4], CANDIDATES[12])
MANY, FEW = CANDIDATES[12].config_id, CANDIDATES[4].config_id


def plan(candidates: tuple[Candidate, ...] = CONFIGURATIONS) -> Plan:
    lengths = [(100, 50), (200, 60), (150, 80), (250, 40), (4000, 50), (5000, 60), (6000, 80), (4500, 40)]
    return replace(
        reference_plan(),
        name="on a CPU",
        gpu=CPU,
        memory_gib=1.0,
        models=reference_plan().models[:1],
        workloads=tuple(
            NamedWorkload(
                name=f"w{i}", prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=0.0, split="train"
            )
            for i, (prompt, new) in enumerate(lengths)
        ),
        concurrencies=(16, 64),
        candidates=candidates,
    )


def measured_tps(key: CellKey) -> float:
    """Long prompts: 300 tok/s with few sequences, 100 with many; short ones the other way round; 200 between."""
    long = plan().workload(key).prompt_tokens > 1000
    return {FEW: 300.0 if long else 100.0, MANY: 100.0 if long else 300.0}.get(key.config_id, 200.0)


def cell(key: CellKey, throughput: float, provenance: Provenance, *, of: Plan | None = None) -> CellResult:
    """A cell that meets the SLO; throughput 0 is a failed one."""
    failed, of = throughput == 0, of or plan()
    times = None if failed else 20.0
    return CellResult(
        key=key,
        workload=of.workload(key),
        plan_sha256=of.sha256,
        provenance=provenance,
        status="failed" if failed else "ok",
        failure_cause="server_did_not_start" if failed else None,
        completed=0 if failed else 10,
        waiting_at_end=None,
        running_at_end=None,
        error_rate=0.0,
        output_throughput_tps=throughput,
        ttft_p50_ms=times,
        ttft_p95_ms=times,
        tpot_p50_ms=times,
        tpot_p95_ms=times,
        kv_usage_peak=None,
        preemptions=None,
        cached_token_ratio=None,
        slo_met=not failed,
    )


Rule = Callable[[CellKey], float]


def written(path: Path, rule: Rule = measured_tps, provenance: Provenance = SERVER, *, of: Plan | None = None) -> Path:
    """A merged file of a plan, filled by a rule that gives tokens per second."""
    filled = of or plan()
    rows = [cell(key, rule(key), provenance, of=filled).to_row() for key in filled.cells()]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
