"""Synthetic cells: a closed form that rewards what real servers reward, so that a ranker has an order to learn."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from offline.cells import expected_keys
from offline.dataset import ENGINE_DEFAULT_CONFIG_ID, CellFiles
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.catalogue import model_by_name
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.gpu import B200
from service.domain.reference import REFERENCE_WORKLOADS
from service.domain.slo import REFERENCE_SLO

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = {candidate.config_id: candidate for candidate in (*CANDIDATES, B200.engine_default)}
PROVENANCE = Provenance(
    evidence="simulated",
    gpu="NVIDIA-B200",
    engine_version="0.28.0",
    scheduler="closed form",
    step_times="closed form",
)


def synthetic_cell(key: CellKey) -> CellResult:
    """Throughput grows with the sequences that fit, TTFT with the queue that does not."""
    config = CONFIGURATIONS[key.config_id]
    shape = next(workload for workload in REFERENCE_WORKLOADS if workload.name == key.workload)
    workload = shape.at(key.concurrency)
    weight_gb = model_by_name(key.model).weight_gb
    running = min(key.concurrency, config.max_num_seqs)
    prefix = shape.shared_prefix_ratio if config.enable_prefix_caching else 0.0
    prefill_ms = shape.prompt_tokens * (1 - prefix) * weight_gb * 2e-3 * (1 + 2048 / config.max_num_batched_tokens)
    decode_ms = 1 + weight_gb / 4 + running * (0.02 + shape.prompt_tokens * 1e-6)
    request_ms = shape.max_new_tokens * decode_ms + running * prefill_ms
    queue = max(0, key.concurrency - running)
    base = CellResult(
        key=key,
        workload=workload,
        plan_sha256=("e" if key.config_id == ENGINE_DEFAULT_CONFIG_ID else "a") * 64,
        provenance=PROVENANCE,
        status="ok",
        failure_cause=None,
        completed=running,
        waiting_at_end=queue,
        running_at_end=running,
        error_rate=0.0,
        output_throughput_tps=1000 * running * shape.max_new_tokens / request_ms,
        ttft_p50_ms=running * prefill_ms / 2,
        ttft_p95_ms=running * prefill_ms + queue / running * request_ms,
        tpot_p50_ms=decode_ms,
        tpot_p95_ms=decode_ms + prefill_ms * config.max_num_batched_tokens / 30_000,
        kv_usage_peak=0.5,
        preemptions=0,
        cached_token_ratio=prefix,
        slo_met=False,
    )
    return failed(base) if _out_of_memory(config, key, shape.prompt_tokens) else judged(base)


def _out_of_memory(config: Candidate, key: CellKey, prompt_tokens: int) -> bool:
    return config.gpu_memory_utilization < 0.5 and prompt_tokens > 10_000 and key.model.endswith("8B")


def judged(cell: CellResult) -> CellResult:
    """The cell with the slo_met that its own percentiles give."""
    met = REFERENCE_SLO.met(ttft_p95_ms=cell.ttft_p95_ms, tpot_p95_ms=cell.tpot_p95_ms, error_rate=cell.error_rate)
    return replace(cell, slo_met=met)


def failed(cell: CellResult) -> CellResult:
    """The cell as a row of a server that did not start."""
    return replace(
        cell,
        status="failed",
        failure_cause="kv_cache_too_small",
        completed=0,
        waiting_at_end=None,
        running_at_end=None,
        error_rate=1.0,
        output_throughput_tps=0.0,
        ttft_p50_ms=None,
        ttft_p95_ms=None,
        tpot_p50_ms=None,
        tpot_p95_ms=None,
        kv_usage_peak=None,
        preemptions=None,
        cached_token_ratio=None,
        slo_met=False,
    )


def leaking(cells: list[CellResult]) -> list[CellResult]:
    """A measured hit rate where the designed prefix ratio belongs: it differs between candidates."""
    return [
        replace(cell, workload=replace(cell.workload, shared_prefix_ratio=cell.cached_token_ratio))
        if cell.cached_token_ratio is not None
        else cell
        for cell in cells
    ]


Change = Callable[[list[CellResult]], Iterable[CellResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellWriter:
    """Writes both files into a folder, after a change of the reference's cells."""

    folder: Path

    def write(self, change: Change = iter, *, change_default: Change = iter) -> CellFiles:
        """The files of a complete synthetic sweep with these changes."""
        files = CellFiles(reference=self.folder / "reference.parquet", engine_default=self.folder / "default.parquet")
        plans = (
            (files.reference, [candidate.config_id for candidate in CANDIDATES], change),
            (files.engine_default, [ENGINE_DEFAULT_CONFIG_ID], change_default),
        )
        for path, config_ids, alter in plans:
            cells = alter([synthetic_cell(key) for key in expected_keys(config_ids)])
            pq.write_table(pa.Table.from_pylist([cell.to_row() for cell in cells]), path)
        return files
