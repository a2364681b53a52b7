"""Fills the cells of a plan with the simulator: in parallel, resumable, with a progress bar."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context, parent_process

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench_runner.plan import Plan
from bench_runner.results import ResultsFolder, Shard, failed_row
from bench_runner.simulator import SCHEDULER, Load, Observed, SimulationSettings, Window, simulate
from bench_runner.step_time import StepTables, load_step_tables
from bench_runner.stop import Stop
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError
from service.domain.gpu import B200
from service.domain.memory import kv_blocks, start_up_feasibility

# The pool is fed in small portions, so that a signal leaves little unfinished work behind.
CELLS_AHEAD = 4
SECONDS_BETWEEN_CHECKS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSimulator:
    """Turns cells of one plan into rows. Picklable, so that worker processes can hold one."""

    plan: Plan
    settings: SimulationSettings
    tables: StepTables

    @property
    def provenance(self) -> Provenance:
        """The same for every row of a run."""
        return Provenance(
            evidence="simulated",
            gpu=self.plan.gpu,
            engine_version=self.plan.engine_version,
            scheduler=f"{SCHEDULER}, settings {self.settings.digest()}",
            step_times=f"{self.tables.system}, {self.tables.source}, tables {self.tables.sha256[:12]}",
        )

    def fill(self, key: CellKey) -> CellResult:
        """The row of one cell; a server that would not start, or answers nothing in the window, is a failed row."""
        model, candidate, workload = self.plan.model(key), self.plan.candidate(key), self.plan.workload(key)
        memory_gib = self.plan.memory_gib
        if not start_up_feasibility(model, workload, candidate, memory_gib=memory_gib).feasible:
            return self._failed(key, cause="kv_cache_too_small")
        observed = simulate(
            Load.of(workload).stream(),
            candidate,
            kv_blocks=kv_blocks(model, candidate, memory_gib=memory_gib),
            table=self.tables.of(key.model),
            settings=self.settings,
            window=Window(warm_up_ms=self.plan.warm_up_s * 1000, length_ms=self.plan.window_s * 1000),
            seed=self.plan.scenario_seed(key),
        )
        if not len(observed.ttft_ms):
            return self._failed(key, cause="no_request_completed", observed=observed)
        ttft_p95_ms, tpot_p95_ms = observed.ttft_percentile(95), observed.tpot_percentile(95)
        return CellResult(
            key=key,
            workload=workload,
            plan_sha256=self.plan.sha256,
            provenance=self.provenance,
            status="ok",
            failure_cause=None,
            completed=len(observed.ttft_ms),
            waiting_at_end=observed.waiting_at_end,
            running_at_end=observed.running_at_end,
            error_rate=0.0,
            output_throughput_tps=observed.tokens / self.plan.window_s,
            ttft_p50_ms=observed.ttft_percentile(50),
            ttft_p95_ms=ttft_p95_ms,
            tpot_p50_ms=observed.tpot_percentile(50),
            tpot_p95_ms=tpot_p95_ms,
            kv_usage_peak=observed.kv_usage_peak,
            preemptions=observed.preemptions,
            cached_token_ratio=observed.cached_token_ratio,
            slo_met=self.plan.slo.met(ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, error_rate=0.0),
        )

    def _failed(self, key: CellKey, *, cause: str, observed: Observed | None = None) -> CellResult:
        row = failed_row(key, plan=self.plan, provenance=self.provenance, cause=cause)
        if observed is None:
            return row
        return replace(
            row,
            waiting_at_end=observed.waiting_at_end,
            running_at_end=observed.running_at_end,
            kv_usage_peak=observed.kv_usage_peak,
            preemptions=observed.preemptions,
            cached_token_ratio=observed.cached_token_ratio,
        )


def simulator_of(plan: Plan, *, settings: SimulationSettings) -> CellSimulator:
    """With the reference step times; ArtefactError if the plan is for another GPU than theirs."""
    if plan.gpu != B200.name:
        raise ArtefactError(f"the step times are of a {B200.name}, the plan is for {plan.gpu}; plan for that GPU")
    return CellSimulator(plan=plan, settings=settings, tables=load_step_tables())


_simulator: CellSimulator | None = None


def _set_up_worker(simulator: CellSimulator) -> None:
    global _simulator  # a pool's worker has no other place to keep what every task shares
    _simulator = simulator
    watch_parent()


def watch_parent() -> None:
    """For a pool's worker: only the parent stops it, and it ends with the parent."""
    # The parent decides when to stop; a Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, so they watch it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _fill_in_worker(key: CellKey) -> CellResult:
    if _simulator is None:
        raise RuntimeError("worker used before it was set up")
    return _simulator.fill(key)


def fill_shard(folder: ResultsFolder, *, shard: Shard, settings: SimulationSettings, jobs: int) -> int:
    """Simulates what is missing of a shard; returns how many cells it added.

    ArtefactError if the plan is for another GPU than the step times; InterruptedRunError on a signal.
    """
    simulator = simulator_of(folder.plan, settings=settings)
    done = {result.key.cell_id for result in folder.rows()}
    cells = shard.cells(folder.plan)
    missing = [key for key in cells if key.cell_id not in done]
    appender = folder.appender(shard)
    try:
        with _progress() as progress, Stop() as stop:
            task = progress.add_task("compiling", total=len(cells), completed=len(cells) - len(missing))
            for count, result in enumerate(_simulate_all(simulator, missing, jobs=jobs, stop=stop)):
                if count == 0:
                    progress.update(task, description=f"simulating {folder.plan.name}")
                appender.append(result)
                progress.advance(task)
    finally:
        appender.close()
    return len(missing)


def _simulate_all(simulator: CellSimulator, cells: list[CellKey], *, jobs: int, stop: Stop) -> Iterator[CellResult]:
    if not cells:
        return
    # Compiled here once and cached on disk, so that the workers only load it.
    yield simulator.fill(cells[0])
    stop.at_once = False
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_set_up_worker, initargs=(simulator,))
    try:
        queue = iter(cells[1:])
        running: set[Future[CellResult]] = set()
        while True:
            stop.check()
            running |= {pool.submit(_fill_in_worker, key) for key in islice(queue, jobs * CELLS_AHEAD - len(running))}
            if not running:
                break
            finished, running = wait(running, timeout=SECONDS_BETWEEN_CHECKS, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in finished)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
    )
