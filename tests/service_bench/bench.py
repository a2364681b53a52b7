"""make bench BENCH=service: every goal of speed as a BAR line, paired medians over interleaved rounds of one run."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_json

from service.api.answer import answer
from service.api.query import read_query
from service.domain.candidate import CANDIDATES
from service.domain.features import encode, encode_candidate, encode_state
from service.domain.ranking import rank
from service.policies import Policies, load_policy
from service.settings import DEFAULT_BUNDLE_DIR
from tests.memory.bench import bar, throughput
from tests.service_bench.kernel import Kernel
from tests.service_bench.processes import batches, first_answers, hook_latencies, one_client, resident_mib
from tests.service_bench.questions import questions, widened
from tests.service_bench.variant import APPS

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12
RANKINGS = 2_000
RANGES = 100
REQUESTS = 300
WARM_UP = 200


def main() -> int:
    """Prints a BAR line for each goal; exit code 0 whether reached or not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _ranking(folder)
        _requests(folder)
        _ranges()
        _batches(folder)
        _one_client(folder)
        _hook(folder)
        _start(folder)
        throughput(folder)
    return 0


def _ranking(folder: Path) -> None:
    """Features, network and order; the kernel does not transform its inputs as the bundle's graph does."""
    policy = load_policy(DEFAULT_BUNDLE_DIR)
    policies, scorer = Policies(policy), policy.scorer
    queries = [read_query(body, policies=policies, default_gpu=None).query for body in questions(RANKINGS)]
    kernel = Kernel(folder, policy.bundle.model)
    rows = np.ascontiguousarray([encode(query.scenario) for query in queries])
    beside = encode_candidate(queries[0].gpu.engine_default)

    def ours() -> None:
        for query in queries:
            rank(scorer.score_question(encode_state(query.scenario), beside)[: len(CANDIDATES)])

    def in_c() -> None:
        kernel.rank_all(rows)

    us = _interleaved({"ours": ours, "C kernel": in_c}, per=RANKINGS)
    print(f"ranking: {_medians(us)}")
    bar("rank_vs_c_kernel", _ratio(us["ours"], us["C kernel"]), "<=", 6)


def _interleaved(runs: dict[str, Callable[[], None]], *, per: int) -> dict[str, list[float]]:
    """Microseconds of CPU by name, ROUNDS each, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            begun_s = time.process_time()
            run()
            if number:
                found[name].append(1e6 * (time.process_time() - begun_s) / per)
    return found


def _requests(folder: Path) -> None:
    with (folder / "variants.log").open("wb") as log:
        us = _of_variants(log.fileno())
    print(f"a request in memory: {_medians(us)}")
    bar("cpu_vs_naive_fastapi", _ratio(us["shipped"], us["naive FastAPI"]), "<=", 0.40)
    bare = _ratio(us["unobserved"], us["naive FastAPI"])
    print(f"without metrics, logs and request ids, which the naive handler has none of: {bare:.2f} of its CPU")
    bar("cpu_vs_bare_starlette", _ratio(us["shipped"], us["bare Starlette"]), "<=", 2.2)
    bar("observability_cost", _ratio(us["shipped"], us["unobserved"]), "<=", 1.6)


def _of_variants(log: int) -> dict[str, list[float]]:
    """Microseconds of CPU a request, by variant. Their logs are written as a server's are: to a file."""
    children = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.service_bench.variant", name],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        for name in APPS
    }

    def cpu_us(name: str, count: int) -> float:
        child = children[name]
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{count}\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise AssertionError(f"{name} ended with {child.wait()}")
        return 1e6 * float(line) / count

    try:
        for name in children:
            cpu_us(name, WARM_UP)
        rounds = [{name: cpu_us(name, REQUESTS) for name in children} for _ in range(ROUNDS)]
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return {name: [one[name] for one in rounds] for name in children}


def _ranges() -> None:
    """From the parsed body to the bytes of the answer: all numbers as ranges, and one point with its reasons, against
    one point."""
    policies = Policies(load_policy(DEFAULT_BUNDLE_DIR))
    points = questions(RANGES)
    over = [{**body, "workload": widened(body["workload"])} for body in points]
    explained = [{**body, "explain": True} for body in points]

    def answer_all(bodies: Sequence[dict[str, Any]]) -> None:
        for body in bodies:
            read = read_query(body, policies=policies, default_gpu=None)
            to_json(answer(read, recommendation_id=""))

    asked = {"point": points, "range": over, "explained point": explained}
    us = _interleaved({name: partial(answer_all, bodies) for name, bodies in asked.items()}, per=RANGES)
    # Reasons have no goal: who asks for them waits for them.
    print(f"an answer over a range, and with reasons: {_medians(us)}")
    bar("range_vs_point", _ratio(us["range"], us["point"]), "<=", 20)
    bar("range_question_ms", statistics.median(us["range"]) / 1000, "<=", 5)


def _batches(folder: Path) -> None:
    single, batch = batches(folder / "batches", rounds=ROUNDS)
    cpu = _ratio([one.cpu_s for one in batch], [one.cpu_s for one in single])
    elapsed = _ratio([one.elapsed_s for one in batch], [one.elapsed_s for one in single])
    print(f"a batch of 64 against 64 calls, audit on: {cpu:.2f} of the CPU, {elapsed:.2f} of the time")
    bar("batch_of_64", cpu, "<=", 0.35)


def _one_client(folder: Path) -> None:
    found = one_client(folder / "one", rounds=ROUNDS)
    print(f"one client, audit on: p50 {statistics.median(p50 for p50, _ in found):.2f} ms")
    bar("p99_to_p50_one_client", statistics.median(p99 / p50 for p50, p99 in found), "<=", 5)


def _hook(folder: Path) -> None:
    found = hook_latencies(folder / "hook", rounds=ROUNDS)
    print(f"the hook at 32 connections, audit on: p50 {statistics.median(p50 for p50, _ in found):.1f} ms")
    bar("hook_p99_ms", statistics.median(p99 for _, p99 in found), "<=", 50)


def _start(folder: Path) -> None:
    bar("start_to_first_200_s", statistics.median(first_answers(folder / "start", rounds=ROUNDS)), "<=", 2)
    first, next_one = resident_mib(folder / "resident")
    print(f"memory: {first:.0f} MiB where the database is migrated at the start, which loads alembic")
    bar("rss_per_worker_mib", next_one, "<=", 130)


def _ratio(values: Sequence[float], to: Sequence[float]) -> float:
    """Median of the rounds' own ratios: a noisy round is noisy to both."""
    return statistics.median(a / b for a, b in zip(values, to, strict=True))


def _medians(us: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(values):.1f} µs" for name, values in us.items())


if __name__ == "__main__":
    sys.exit(main())
