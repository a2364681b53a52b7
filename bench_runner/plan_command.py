"""`bench_runner plan`: lists the cells of a plan or writes it, a built-in one or one of the user's own."""

import argparse
import json
import sys
from pathlib import Path

from bench_runner.gpu_hours import START_UP_S, GpuHours
from bench_runner.plan import BUILT_IN_PLANS, Plan, load_plan, save_plan
from bench_runner.plan_request import PlanRequest, left_out
from service.domain.scenario import check_float


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("plan", help="list the cells of a plan, or write the plan to a file")
    add_inputs(parser)
    parser.add_argument("--name", help="the plan's name (default: the built-in one's, or `own`)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the plan instead of listing its cells")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    parser.set_defaults(run=run)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The options that say which plan; `requested_plan` reads them."""
    built_in = ", ".join(BUILT_IN_PLANS)
    parser.add_argument("--plan", default="reference", help=f"start from {built_in} or a file (default: reference)")
    _add_many(parser, "model", "NAME", "a model of the plan or the catalogue, a folder or config.json, ID=CONFIG.json")
    _add_many(parser, "workload", "NAME", "a workload of the plan, or a JSON file with others")
    _add_many(parser, "config", "ID", "a configuration: s64-b4096-g0.90-p1, JSON (text or file), or engine-default")
    _add_many(parser, "concurrency", "N", "clients at a time", type_=int)
    parser.add_argument("--engine-default", action="store_true", help="the GPU's engine default as well")
    parser.add_argument("--gpu", metavar="NAME", help="such as B200, or CPU for a machine without one")
    parser.add_argument("--memory-gib", type=float, metavar="GIB", help="memory of that GPU; with CPU: KV cache size")
    parser.add_argument("--slo", type=Path, metavar="FILE", help="JSON with max_p95_ttft_ms, max_p95_tpot_ms, …")
    parser.add_argument("--warm-up-s", type=float, metavar="S", help="seconds before the measured window")
    parser.add_argument("--window-s", type=float, metavar="S", help="seconds that are measured")
    parser.add_argument(
        "--start-up-s", type=float, default=START_UP_S, metavar="S", help="for the estimate (default: %(default)g)"
    )


def _add_many(parser: argparse.ArgumentParser, name: str, metavar: str, text: str, type_: type = str) -> None:
    plural = "concurrencies" if name == "concurrency" else f"{name}s"
    parser.add_argument(
        f"--{name}", f"--{plural}", dest=plural, nargs="+", action="extend", default=[], metavar=metavar, type=type_,
        help=f"{text}; repeat for more",
    )  # fmt: skip


def requested_plan(arguments: argparse.Namespace) -> Plan:
    """The plan that the options of `add_inputs` ask for."""
    return PlanRequest(
        base=load_plan(arguments.plan),
        name=arguments.name,
        gpu=arguments.gpu,
        memory_gib=arguments.memory_gib,
        models=arguments.models,
        workloads=arguments.workloads,
        concurrencies=arguments.concurrencies,
        slo=arguments.slo,
        configs=arguments.configs,
        engine_default=arguments.engine_default,
        warm_up_s=arguments.warm_up_s,
        window_s=arguments.window_s,
    ).plan()


def print_estimate(plan: Plan, *, start_up_s: float) -> None:
    """What is left out of the plan and how long it takes, on standard error; its last line names the plan."""
    start_up_s = check_float("start_up_s", start_up_s, low=0.0, high=86_400.0)
    for line in left_out(plan):
        print(f"warning: {line}", file=sys.stderr)
    estimate = GpuHours.of(plan, start_up_s=start_up_s)
    print(estimate, file=sys.stderr)
    print(f"plan {plan.name}: {estimate.cells} cells, sha256 {plan.sha256}", file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Lists, prints or writes the plan."""
    plan = requested_plan(arguments)
    if arguments.output:
        save_plan(plan, arguments.output)
    elif arguments.json:
        print(json.dumps(plan.to_json(), indent=1))
    else:
        for key in plan.cells():
            print(key.cell_id)
    # A pipe keeps the list back until it is full; the summary belongs after it.
    sys.stdout.flush()
    print_estimate(plan, start_up_s=arguments.start_up_s)
    return 0
