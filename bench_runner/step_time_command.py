"""`bench_runner probe`: step tables from a server's own steps."""

import argparse
import asyncio
import fcntl
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench_runner.engine_command import EngineCommand, check_model, engine_command
from bench_runner.plan_inputs import candidate_of
from bench_runner.priority import raise_priority
from bench_runner.server import EngineServer, free_port
from bench_runner.server_failure import ServerFailureError
from bench_runner.server_process import end_left_over
from bench_runner.step_time_fit import FrontEndPoint, StepPoint, write_tables
from bench_runner.step_time_probe import Probe, probe_steps
from bench_runner.stop import Stop
from bench_runner.sweep_command import add_server_options
from service.domain.errors import ArtefactError
from service.domain.scenario import check_float

START_DEADLINE_S = 900.0
STOP_GRACE_S = 8.0


def add_parser(commands: Any) -> None:
    """Adds the command `probe`."""
    parser = commands.add_parser("probe", help="measure a server's step times, for the simulator and `fidelity`")
    parser.add_argument("--model", required=True, help="a model folder or a model's name, as for vllm serve")
    parser.add_argument(
        "--config", default="s64-b2048-g0.90-p1", metavar="ID", help="its server (default: %(default)s)"
    )
    parser.add_argument("--memory-gib", type=float, default=1.0, metavar="GIB", help="KV cache on a CPU (default: 1)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="step tables to write")
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the tables are written; no process of the server is left, whatever happens."""
    check_model(arguments.model)
    check_float("memory_gib", arguments.memory_gib, low=0.01, high=100_000.0)
    command = engine_command(
        program=arguments.server_command, arguments=shlex.split(arguments.server_args), device=arguments.device
    )
    with _alone(arguments.output):
        return _probe(arguments, command)


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """ArtefactError if another probe is at work for that file: it would be ended as one that was left over."""
    with output.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArtefactError(f"{output} is being written by another probe; wait for it or name another") from error
        yield


def _probe(arguments: argparse.Namespace, command: EngineCommand) -> int:
    deadline_s = arguments.start_deadline_s or START_DEADLINE_S
    log, record = arguments.output.with_suffix(".log"), arguments.output.with_suffix(".server.json")
    end_left_over(record, grace_s=STOP_GRACE_S)
    server = EngineServer(
        command.for_candidate(arguments.model, candidate_of(arguments.config)),
        port=free_port(arguments.ports),
        environment=command.environment(memory_gib=arguments.memory_gib),
        log=log,
        grace_s=STOP_GRACE_S,
    )
    # A session of its own, because priority is given to sessions; it ends when the server does.
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_time_others)
    try:
        with pool, Stop() as stop, server:
            server.start(record)
            server.wait_ready(deadline_s=deadline_s, check=stop.check)
            steps, front_end = pool.submit(_points, server.base_url).result()
    except ServerFailureError as failure:
        raise ArtefactError(f"{failure}; log: {log}") from failure
    finally:
        record.unlink(missing_ok=True)
    print(write_tables(arguments.output, model=arguments.model, steps=steps, cpu=front_end), file=sys.stderr)
    return 0


def _time_others() -> None:
    os.setsid()
    raise_priority(os.getpid())


def _points(base_url: str) -> tuple[list[StepPoint], list[FrontEndPoint]]:
    return asyncio.run(probe_steps(Probe(base_url)))
