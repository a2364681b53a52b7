"""`bench_runner verify`: is a recommendation right on this machine?"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench_runner.engine_command import check_program, engine_command
from bench_runner.files import make_folder, write_json
from bench_runner.load import LoadProgress
from bench_runner.machine import check_machine, this_machine
from bench_runner.plan import CPU, Plan, reference_plan
from bench_runner.plan_inputs import device_of, engine_default, read_candidates, read_model, read_slo, read_workloads
from bench_runner.recommendation import Recommendation, ask
from bench_runner.server_process import end_left_over
from bench_runner.stop import Stop
from bench_runner.sweep_command import add_server_options, check_plan, folder_with_room, protocol_of
from bench_runner.verify import Verification, run_verification
from bench_runner.visits import Visits
from service.domain.errors import InvalidInputError
from service.domain.scenario import Scenario, check_float, check_int
from service.domain.slo import REFERENCE_SLO

DEFAULT_MINUTES = 15.0
DEFAULT_PRECISION = 0.02


def add_parser(commands: Any) -> None:
    """Adds the command `verify`."""
    parser = commands.add_parser(
        "verify", help="measure a recommendation against the engine's default on this machine, and say what is true"
    )
    parser.add_argument("--model", required=True, help="a catalogue name, a model folder, or HUB_ID=CONFIG.json")
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE", help="one workload as JSON")
    parser.add_argument("--concurrency", type=int, metavar="N", help="clients, if the file names none")
    parser.add_argument("--gpu", default="B200", help="the GPU of this machine (default: B200), or CPU")
    parser.add_argument("--memory-gib", type=float, metavar="GIB", help="KV cache of a CPU, memory of an unlisted GPU")
    parser.add_argument("--slo", type=Path, metavar="FILE", help="limits as JSON (default: the reference's)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="CONFIG", help="verify this configuration instead of asking the service")
    source.add_argument("--answer", type=Path, metavar="FILE", help="verify this body of POST /v1/recommend")
    parser.add_argument("--dummy-weights", action="store_true", help="random weights: speed is the same, no download")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="longest time (default: 15)")
    parser.add_argument(
        "--precision", type=float, default=DEFAULT_PRECISION, help="half width of the interval to reach (default: 0.02)"
    )
    parser.add_argument("--warm-up-s", type=float, metavar="S", help="seconds before each window (default: 4)")
    parser.add_argument("--window-s", type=float, metavar="S", help="seconds of each window (default: 15)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/verify/outcome.json"), metavar="FILE", help="outcome file to write"
    )
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 with any verdict: contradicted is an answer, too."""
    folder = folder_with_room(arguments.output.parent)
    verification = _verification(arguments, folder)
    make_folder(folder)
    visits = Visits(arguments.output.with_suffix(".visits.jsonl"), settings=verification.settings())
    try:
        # Only now is it certain that no other run works here.
        end_left_over(verification.server_record, grace_s=verification.protocol.stop_grace_s)
        outcome = _run(verification, visits)
    finally:
        visits.close()
    print(f"{outcome['verdict']}: {outcome['reason']}")
    for arm in outcome["arms"].values():
        print(f"  {arm['arm']}: {_said(arm['measured'])}")
    write_json(arguments.output, outcome)
    visits.path.unlink()
    print(f"{arguments.output} holds both sides, {outcome['evidence']}", file=sys.stderr)
    return 0


def _run(verification: Verification, visits: Visits) -> dict[str, Any]:
    """With a bar that shows the time, and the load under way."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("of {task.total:.0f} s"))
    with Progress(*columns, console=Console(stderr=True)) as progress, Stop() as stop:
        stop.at_once = False
        task = progress.add_task("verifying", total=verification.time_limit_s)
        begun_s = visits.took_s

        def show(load: LoadProgress) -> None:
            said = f"{load.tokens_per_s:,.0f} tokens/s, {load.in_flight} in flight"
            progress.update(task, completed=begun_s + (progress.tasks[0].elapsed or 0.0), description=said)

        return run_verification(verification, visits, stop=stop, say=progress.console.print, on_progress=show)


def _verification(arguments: argparse.Namespace, folder: Path) -> Verification:
    check_float("minutes", arguments.minutes, low=0.01, high=24 * 60.0)
    check_float("precision", arguments.precision, low=0.0001, high=1.0)
    plan = _plan(arguments)
    recommendation = _recommendation(arguments, plan)
    default = plan.candidates[-1]
    if recommendation.candidate == default:
        raise InvalidInputError(
            path="config", value=default.config_id, remedy="that is the engine's default: there is nothing to compare"
        )
    plan = replace(plan, candidates=(recommendation.candidate, default))
    words = shlex.split(arguments.server_args) + (["--load-format=dummy"] if arguments.dummy_weights else [])
    command = engine_command(program=arguments.server_command, arguments=words, device=arguments.device)
    check_program(command)
    check_plan(plan, command)
    machine = this_machine(arguments.device)
    check_machine(machine, gpu=plan.gpu)
    return Verification(
        plan=plan,
        recommendation=recommendation,
        protocol=protocol_of(plan, arguments),
        command=command,
        machine=machine,
        ports=arguments.ports,
        time_limit_s=arguments.minutes * 60,
        precision=arguments.precision,
        folder=folder,
    )


def _plan(arguments: argparse.Namespace) -> Plan:
    """One model, one workload, and the engine's default as the only configuration so far."""
    device = device_of(CPU if arguments.device == "cpu" else arguments.gpu, arguments.memory_gib)
    workloads, concurrencies = read_workloads(arguments.workload)
    named = concurrencies[0] or ((arguments.concurrency,) if arguments.concurrency is not None else ())
    if len(workloads) != 1 or len(named) != 1:
        raise InvalidInputError(
            path=str(arguments.workload),
            value=[workload.name for workload in workloads],
            remedy='give one workload with one "concurrency", or give --concurrency',
        )
    check_int("concurrency", named[0], high=100_000)
    model = read_model(arguments.model)
    Scenario(model=model, workload=workloads[0].at(named[0]))
    whole = reference_plan()
    return replace(
        whole,
        name="verify",
        gpu=device.name,
        memory_gib=device.memory_gib,
        slo=read_slo(arguments.slo) if arguments.slo else REFERENCE_SLO,
        warm_up_s=whole.warm_up_s if arguments.warm_up_s is None else arguments.warm_up_s,
        window_s=whole.window_s if arguments.window_s is None else arguments.window_s,
        models=(model,),
        workloads=(workloads[0],),
        concurrencies=named,
        candidates=(engine_default(device),),
    )


def _recommendation(arguments: argparse.Namespace, plan: Plan) -> Recommendation:
    if arguments.config:
        device = device_of(plan.gpu, plan.memory_gib)
        return Recommendation(candidate=read_candidates(arguments.config, device)[0], answer=None)
    if arguments.answer:
        return Recommendation.read(arguments.answer)
    return ask(plan.models[0], plan.workload(next(plan.cells())), gpu=plan.gpu, slo=plan.slo)


def _said(measured: dict[str, Any]) -> str:
    units = {"output_throughput_tps": "tok/s", "ttft_p95_ms": "ms p95 TTFT", "tpot_p95_ms": "ms p95 TPOT"}
    parts = []
    for name, unit in units.items():
        found = measured[name]
        if found is None:
            continue
        interval = "" if found["low"] is None else f" [{found['low']:,.1f}, {found['high']:,.1f}]"
        parts.append(f"{found['mean']:,.1f}{interval} {unit}")
    share = f"SLO met in {measured['slo_met']:.0%} of {measured['visits']} visits" if measured["visits"] else "no visit"
    return ", ".join([*parts, share])
