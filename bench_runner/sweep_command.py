"""`bench_runner sweep`: the command line of real measurements."""

import argparse
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_runner.engine_command import EngineCommand, check_model, check_program, engine_command
from bench_runner.gpu_hours import BETWEEN_CELLS_S, START_UP_S
from bench_runner.machine import check_machine, this_machine
from bench_runner.plan import Plan, load_plan
from bench_runner.protocol import Protocol
from bench_runner.results import ResultsFolder, Shard
from bench_runner.stop import Stop
from bench_runner.sweep import Sweep, run_sweep
from bench_runner.sweep_view import Estimate, SweepView
from service.domain.errors import ArtefactError, InvalidInputError

# Logs of a long sweep are the largest of what it writes.
MIN_FREE_MIB = 256
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that starts servers."""
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: rows are measured-cpu")
    parser.add_argument("--server-command", metavar="COMMAND", help="what starts a server (default: vllm serve)")
    parser.add_argument(
        "--server-args", default="", metavar="ARGS", help="further arguments of every server, one quoted string"
    )
    parser.add_argument("--ports", type=_ports, metavar="A-B", help="ports to use (default: any free one)")
    parser.add_argument("--start-deadline-s", type=float, metavar="S", help="longest wait for a server's start")
    parser.add_argument("--request-timeout-s", type=float, metavar="S", help="longest silence of a request")
    parser.add_argument("--client-processes", type=int, metavar="N", help="processes that send the load")
    parser.add_argument("--repetitions", type=int, metavar="N", help="windows per cell, pooled (default: 1)")


def add_parser(commands: Any) -> None:
    """Adds the command `sweep`."""
    parser = commands.add_parser("sweep", help="fill cells on real vLLM servers; resumes where it stopped")
    parser.add_argument("--plan", default="reference", help="a built-in plan or a plan file (default: reference)")
    # Required below: a dry run writes nothing.
    parser.add_argument("--results", metavar="DIR", help="folder of this plan's results")
    parser.add_argument("--shard-index", type=int, default=0, metavar="I", help="this shard, from 0")
    parser.add_argument("--shard-count", type=int, default=1, metavar="N", help="shards in all")
    parser.add_argument("--max-attempts", type=int, metavar="N", help="attempts per cell before it has failed")
    parser.add_argument("--dry-run", action="store_true", help="print every server command and cell, start nothing")
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every cell of the shard has a row."""
    plan, shard = load_plan(arguments.plan), Shard(index=arguments.shard_index, count=arguments.shard_count)
    protocol = protocol_of(plan, arguments)
    command = engine_command(
        program=arguments.server_command, arguments=shlex.split(arguments.server_args), device=arguments.device
    )
    check_plan(plan, command)
    if arguments.dry_run:
        return _dry_run(plan, shard, protocol, command)
    check_program(command)
    if not arguments.results:
        raise ArtefactError("--results is missing; give the folder that is to hold the rows")
    machine = this_machine(arguments.device)
    check_machine(machine, gpu=plan.gpu)
    folder = ResultsFolder.open(folder_with_room(Path(arguments.results)), plan)
    sweep = Sweep(
        folder=folder, shard=shard, protocol=protocol, command=command, machine=machine, ports=arguments.ports
    )
    estimate = Estimate(start_s=START_UP_S, cell_s=protocol.cell_s + BETWEEN_CELLS_S)
    with SweepView(Console(stderr=True), name=plan.name, estimate=estimate) as view, Stop() as stop:
        stop.at_once = False
        added = run_sweep(sweep, view=view, stop=stop)
    print(f"{added['ok']} cells measured, {added['failed']} failed", file=sys.stderr)
    return 0


def protocol_of(plan: Plan, arguments: argparse.Namespace) -> Protocol:
    """The plan's protocol with what the command line changes."""
    names = ("start_deadline_s", "request_timeout_s", "client_processes", "repetitions", "max_attempts")
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    given.setdefault("client_processes", max(1, min(4, len(os.sched_getaffinity(0)) // 4)))
    return Protocol.of(plan, **given)


def check_plan(plan: Plan, command: EngineCommand) -> None:
    """Refuses before anything is started what no server could answer: a missing model, a request that does not fit."""
    limit = _max_model_len(command.arguments)
    for model in plan.models:
        check_model(str(model.name))
        context = min(value for value in (model.max_model_len, limit, 10**9) if value is not None)
        for named in plan.workloads:
            tokens = named.at(1).sequence_tokens
            if tokens > context:
                raise InvalidInputError(
                    path=f"workload {named.name}",
                    value=tokens,
                    remedy=f"prompt and answer exceed the {context} tokens of {model.name}; leave it out or shorten it",
                )


def _max_model_len(arguments: tuple[str, ...]) -> int | None:
    """The last --max-model-len among the user's server arguments; None if there is none, or no number in vLLM's way.

    vLLM takes 4096, 4k (4,000) and 4K (4,096); -1 and auto leave it to the engine.
    """
    words = " ".join(arguments).replace("=", " ").replace("_", "-").split()
    values = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--max-model-len"]
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", values[-1]) if values else None
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def _dry_run(plan: Plan, shard: Shard, protocol: Protocol, command: EngineCommand) -> int:
    environment = " ".join(f"{name}={value}" for name, value in command.environment(memory_gib=plan.memory_gib).items())
    servers = shard.servers(plan)
    for cells in servers:
        print(
            environment, shlex.join(command.for_cell(plan, cells[0])), "--host=127.0.0.1 --port=… --served-model-name=…"
        )
        for key in cells:
            print(f"  {key.cell_id}")
    count = sum(map(len, servers))
    seconds = len(servers) * START_UP_S + count * (protocol.cell_s + BETWEEN_CELLS_S)
    print(f"{len(servers)} servers, {count} cells, about {seconds / 3600:.1f} hours", file=sys.stderr)
    return 0


def folder_with_room(folder: Path) -> Path:
    """The folder if its file system has room for a sweep."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free_mib = shutil.disk_usage(nearest).free // 2**20
    if free_mib < MIN_FREE_MIB:
        raise ArtefactError(
            f"{folder}: {free_mib} MiB free, {MIN_FREE_MIB} are needed; free space or give another folder"
        )
    return folder


def _ports(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r}: give two ports from 1 to 65535, such as 8100-8199")
    return range(int(first), int(last) + 1)
