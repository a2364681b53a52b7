"""Simulates sets of lists: in parallel, resumable, with progress. `python -m bench_runner lists`."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench_runner.files import read_json
from bench_runner.list_files import ListsFolder, read_columns
from bench_runner.list_run import run_list
from bench_runner.list_sets import ANCHOR_SET, SETS, ListSet, ScenarioSource, anchors_of, definition_sha256
from bench_runner.simulate import SECONDS_BETWEEN_CHECKS, watch_parent
from bench_runner.stop import Stop
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload

CHUNKS_AHEAD = 2
Rows = list[dict[str, Any]]


def simulate_set(root: Path, name: str, *, jobs: int, registration: Path | None) -> tuple[int, float]:
    """Simulates what is missing of a set and merges it; (lists simulated, seconds). InterruptedRunError on a signal.

    ArtefactError for a test set without a registration that fixes this definition of all sets.
    """
    list_set = SETS[name]
    if list_set.test:
        check_registered(registration)
    folder = ListsFolder(root=root, list_set=list_set)
    if folder.finished():
        return 0, 0.0
    folder.prepare()
    source = ScenarioSource.of(list_set, _anchors(root, list_set))
    portions, missing = folder.portions(), folder.missing()
    started = time.monotonic()
    done = 0
    with _progress() as progress, Stop() as stop:
        task = progress.add_task(name, total=len(list_set.items()))
        progress.advance(task, sum(map(len, portions)) - sum(len(portions[number]) for number in missing))
        for number, rows in _run_chunks(source, portions, missing, jobs=jobs, stop=stop):
            folder.write_chunk(number, rows)
            done += len(rows)
            progress.advance(task, len(rows))
    folder.merge()
    return done, time.monotonic() - started


def check_registered(registration: Path | None) -> None:
    """ArtefactError unless the file registers the present definition of all sets."""
    if registration is None:
        raise ArtefactError("a test set is simulated under a registration only; give --registration FILE")
    registered = read_json(registration).get("split_sha256")
    if registered != definition_sha256():
        raise ArtefactError(
            f"{registration.name} registers sets of definition {registered}, here it is {definition_sha256()}; "
            "restore what was registered, or register this definition under a new name with fresh test seeds"
        )


def _anchors(root: Path, list_set: ListSet) -> Sequence[tuple[str, Workload]]:
    """Scenarios in which the choice mattered, from the lists of ANCHOR_SET; none for a set that needs none."""
    if not list_set.focus and not list_set.beyond:
        return ()
    return anchors_of(read_columns(root / f"{ANCHOR_SET}.parquet"))


_source: ScenarioSource | None = None


def _set_up_worker(source: ScenarioSource) -> None:
    global _source  # a pool's worker has no other place to keep what every task shares
    _source = source
    watch_parent()


def _run_in_worker(portion: list[tuple[int, int]]) -> Rows:
    if _source is None:
        raise RuntimeError("worker used before it was set up")
    return run_portion(_source, portion)


def run_portion(source: ScenarioSource, portion: Sequence[tuple[int, int]]) -> Rows:
    """The rows of some lists of a set."""
    return [run_list(source.list_set, source.scenario(scenario), scenario, draw) for scenario, draw in portion]


def _run_chunks(
    source: ScenarioSource, portions: list[list[tuple[int, int]]], missing: list[int], *, jobs: int, stop: Stop
) -> Iterator[tuple[int, Rows]]:
    if not missing:
        return
    # Compiled here once and cached on disk, so that the workers only load it.
    run_portion(source, portions[missing[0]][:1])
    stop.at_once = False
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_set_up_worker, initargs=(source,))
    try:
        queue = iter(missing)
        running: dict[Future[Rows], int] = {}
        while True:
            stop.check()
            for number in islice(queue, jobs * CHUNKS_AHEAD - len(running)):
                running[pool.submit(_run_in_worker, portions[number])] = number
            if not running:
                break
            finished, _ = wait(running, timeout=SECONDS_BETWEEN_CHECKS, return_when=FIRST_COMPLETED)
            for future in finished:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
