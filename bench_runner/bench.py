"""make bench BENCH=simulator: how fast and how exact the simulator is, as ratios and rates of one run."""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rich.progress import track

from bench_runner.bar import Bar
from bench_runner.equivalence import compare
from bench_runner.plan import reference_plan
from bench_runner.random_cells import random_cells
from bench_runner.results import ResultsFolder, Shard
from bench_runner.simulate import fill_shard
from bench_runner.simulator import Load, SimulationSettings, Window, simulate
from bench_runner.step_time import StepTables, load_step_tables
from service.domain.candidate import CANDIDATES
from service.domain.catalogue import model_by_name
from service.domain.gpu import B200
from service.domain.memory import kv_blocks
from service.domain.reference import REFERENCE_MODELS
from service.domain.scenario import Workload

COMPARED_CELLS, COMPARED_VIRTUAL_MS = 63, 4000.0
RANDOM_CELLS, CORES = 400, 2
# 300,000 cells in half an hour.
CELLS_PER_MINUTE = 10_000.0
PLOT = Path("build/bench/simulator_cost.png")


def main() -> int:
    """Prints a BAR line for each goal; exit code 0 whether reached or not."""
    for bar in (*_compared(), _plan(), *_random_cells()):
        print(bar.line(), flush=True)
    _draw_costs()
    print(f"plot: {PLOT}")
    return 0


def _compared() -> Iterable[Bar]:
    compare(next(random_cells(seed=0, count=1)), virtual_ms=10.0)
    cells = list(random_cells(seed=time.time_ns() % 2**31, count=COMPARED_CELLS))
    verdicts = [compare(c, virtual_ms=COMPARED_VIRTUAL_MS) for c in track(cells, "comparing", transient=True)]
    fast, reference = sum(v.fast_s for v in verdicts), sum(v.reference_s for v in verdicts)
    yield Bar(name="simulator_exact_agreement", value=statistics.mean(v.difference is None for v in verdicts), target=1)
    yield Bar(name="simulator_speedup", value=reference / fast, target=300)


def _plan() -> Bar:
    with tempfile.TemporaryDirectory() as folder:
        results = ResultsFolder.open(Path(folder), reference_plan())
        start = time.perf_counter()
        fill_shard(results, shard=Shard(index=0, count=1), settings=SimulationSettings(), jobs=CORES)
    return Bar(name="simulator_plan_s", value=time.perf_counter() - start, target=60, at_most=True)


def _random_cells() -> Iterable[Bar]:
    """In a process of its own, whose memory is the simulator's and not vLLM's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        elapsed_s, peak_kib = pool.submit(_simulate_random_cells).result()
    rate = CORES * 60 * RANDOM_CELLS / elapsed_s
    yield Bar(name="simulator_cells_per_minute", value=rate, target=CELLS_PER_MINUTE)
    yield Bar(name="simulator_peak_gb", value=peak_kib * 1024 / 1e9, target=1, at_most=True)


def _simulate_random_cells() -> tuple[float, int]:
    """Seconds and peak memory in KiB of workloads over the whole range that may be asked for, even in the logarithm."""
    rng = np.random.default_rng(0)

    def drawn(low: float, high: float) -> int:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))

    _cost_s(Workload(prompt_tokens=16, max_new_tokens=1, shared_prefix_ratio=0.0, concurrency=1))
    elapsed_s = 0.0
    for _ in track(range(RANDOM_CELLS), "random cells", transient=True):
        workload = Workload(
            prompt_tokens=drawn(16, 32_768),
            max_new_tokens=drawn(1, 4_096),
            shared_prefix_ratio=float(rng.uniform(0, 0.95)),
            concurrency=drawn(1, 512),
        )
        elapsed_s += _cost_s(workload, model=str(rng.choice(REFERENCE_MODELS)), candidate=int(rng.integers(15)))
    return elapsed_s, _peak_kib()


def _peak_kib() -> int:
    """VmHWM of this process. getrusage would carry over the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _cost_s(
    workload: Workload, *, model: str = "Qwen/Qwen3-8B", candidate: int = 0, window_ms: float = 15_000.0
) -> float:
    chosen, table = CANDIDATES[candidate], _tables().of(model)
    blocks = kv_blocks(model_by_name(model), chosen, memory_gib=B200.memory_gib)
    start = time.perf_counter()
    simulate(
        Load.of(workload).stream(),
        chosen,
        kv_blocks=blocks,
        table=table,
        settings=SimulationSettings(),
        window=Window(warm_up_ms=4_000.0, length_ms=window_ms),
        seed=0,
    )
    return time.perf_counter() - start


@cache
def _tables() -> StepTables:
    return load_step_tables()


def _draw_costs() -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def workload(prompt: int = 1024, clients: int = 64) -> Workload:
        return Workload(prompt_tokens=prompt, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=clients)

    clients, prompts, seconds = (1, 4, 16, 64, 256, 512), (64, 512, 2048, 8192, 32_000), (5, 15, 30, 60)
    series = (
        ("clients", clients, [_cost_s(workload(clients=n)) for n in clients]),
        ("prompt tokens", prompts, [_cost_s(workload(prompt=n)) for n in prompts]),
        ("virtual seconds", seconds, [_cost_s(workload(), window_ms=1000.0 * n) for n in seconds]),
    )
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), sharey=True, layout="constrained")
    for axis, (label, values, costs_s) in zip(axes, series, strict=True):
        axis.plot(values, [1000 * cost for cost in costs_s], marker="o")
        axis.set(xscale="linear" if label.startswith("virtual") else "log", xlabel=label)
    axes[0].set_ylabel("ms for one cell")
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT)


if __name__ == "__main__":
    sys.exit(main())
