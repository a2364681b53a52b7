"""The load generator's own processes: whether they keep up, and that they end with the run."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from bench_runner.load import ClientLoad, LoadProgress, client_saturated
from bench_runner.request_log import Outcome
from tests.bench_runner.scripted_load import PATIENCE_S, ROOT, Server, load, serving


def workers(parent: int) -> list[psutil.Process]:
    """The worker processes that a process has started."""
    return [child for child in psutil.Process(parent).children() if "bench_runner.load_worker" in child.cmdline()]


def saturated(client: ClientLoad) -> bool:
    return client_saturated(client, max_lag_p95_ms=4.0, max_cpu_share=0.85)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("healthy")) as server:
        yield server


def test_a_client_that_stands_still_for_a_part_of_the_window_is_saturated(healthy: Server) -> None:
    stalls: list[float] = []

    def stall(progress: LoadProgress) -> None:
        if progress.elapsed_s > 0.3 and not stalls:
            (worker,) = workers(os.getpid())
            worker.suspend()
            begun = time.monotonic()
            time.sleep(0.4)
            worker.resume()
            stalls.append(1000 * (time.monotonic() - begun))

    result = load(healthy, window_s=1.2, on_progress=stall)
    client = result.client
    assert stalls
    assert client.loop_lag_max_ms is not None
    assert client.loop_lag_p95_ms is not None
    assert client.loop_lag_max_ms >= 350
    # 0.4 s of 1.2 s: the last 5 % of the window's time were later than a tenth of a second.
    assert client.loop_lag_p95_ms > 100
    assert saturated(client)


def test_an_idle_client_reports_its_load_and_is_not_saturated(healthy: Server) -> None:
    client = load(healthy, clients=1, window_s=1.0).client
    assert client.loop_lag_max_ms is not None
    assert client.loop_lag_p95_ms is not None
    assert 0 <= client.loop_lag_p95_ms <= client.loop_lag_max_ms
    assert client.cpu_share is not None
    assert client.cpu_seconds is not None
    assert 0 < client.cpu_share < 0.5
    assert not client_saturated(client, max_lag_p95_ms=1000.0, max_cpu_share=0.85)


@pytest.mark.parametrize(
    ("lag_ms", "share", "expected"),
    [(4.0, 0.85, False), (4.1, 0.1, True), (0.1, 0.86, True), (None, None, False)],
)
def test_a_client_is_saturated_beyond_either_threshold(
    lag_ms: float | None, share: float | None, expected: bool
) -> None:
    client = ClientLoad(loop_lag_p95_ms=lag_ms, loop_lag_max_ms=lag_ms, cpu_share=share, cpu_seconds=share)
    assert saturated(client) is expected


def test_a_worker_that_is_killed_ends_the_run_with_a_reason(healthy: Server) -> None:
    killed: list[int] = []

    def kill(progress: LoadProgress) -> None:
        if progress.completed and not killed:
            worker = workers(os.getpid())[0]
            killed.append(worker.pid)
            worker.kill()

    result = load(healthy, window_s=60.0, processes=2, on_progress=kill)
    assert result.gave_up is None
    assert result.lost == "a load worker ended with exit code -9: it said nothing"
    # The other one has told what it knows.
    assert set(result.log.outcome) == {Outcome.COMPLETED, Outcome.UNFINISHED}
    assert workers(os.getpid()) == []


def test_an_interrupt_from_the_terminal_does_not_reach_the_workers(healthy: Server) -> None:
    sent: list[int] = []

    def interrupt(progress: LoadProgress) -> None:
        if progress.completed and not sent:
            (worker,) = workers(os.getpid())
            sent.append(worker.pid)
            assert os.getsid(worker.pid) != os.getsid(0)
            worker.send_signal(signal.SIGINT)

    result = load(healthy, on_progress=interrupt, window_s=0.8)
    assert sent
    assert result.gave_up is None
    assert result.tokens_in_window > 0


def test_workers_end_when_the_process_that_started_them_is_killed(healthy: Server) -> None:
    script = (
        f"from tests.bench_runner.scripted_load import load; load({healthy.base_url!r}, window_s=60.0, processes=2)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as parent:
        deadline = time.monotonic() + PATIENCE_S
        while len(found := workers(parent.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.kill()
    _, alive = psutil.wait_procs(found, timeout=PATIENCE_S)
    assert alive == []


def test_runs_can_be_started_from_a_thread_and_leave_nothing_behind(healthy: Server) -> None:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(load(healthy).tokens_in_window))
    thread.start()
    thread.join(PATIENCE_S)
    assert results[0] > 0
    assert workers(os.getpid()) == []


def test_a_worker_imports_nothing_that_is_slow_to_start() -> None:
    slow = "{'numba', 'pyarrow', 'matplotlib', 'rich'}"
    script = f"import sys, bench_runner.load_worker; print(sorted({slow} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
