"""An answer as text for a terminal."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.api.counted import counted
from service.api.percent import alike, between, chance, signed
from service.api.reason_text import reason_lines
from service.domain.errors import MemoryPolicyError


def print_answer(content: dict[str, Any]) -> None:
    """Summary, command, the 15 rows and everything that limits them."""
    # Not wrapped: a command that is broken over two lines cannot be copied.
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{content['decision']}[/bold]" + (f" ({content['reason']})" if content["reason"] else ""))
    console.print(escape(content["summary"]))
    if content["command"]:
        console.print(f"\n  {escape(content['command'])}")
    console.print()
    Console(highlight=False).print(_ranking(content))
    default = ", ".join(f"{name} {value}" for name, value in content["engine_default"].items())
    capacity = content["engine_default_capacity"]
    fits = "starts" if capacity["full_length_request_fits"] else "does not start"
    console.print(
        f"engine default (vLLM {capacity['engine_version']}): {default}; {fits}, {capacity['kv_cache_gib']:.1f} GiB "
        f"for {counted(capacity['requests_that_fit'], 'request')}"
    )
    if content["expected"]:
        _print_expected(console, content["expected"], content["policy"]["evidence"])
    for line in reason_lines(content):
        console.print(escape(line))
    for path, value in content["assumed"].items():
        console.print(f"assumed: {escape(path)} = {escape(str(value))}")
    for warning in content["warnings"]:
        console.print(f"warning: {escape(warning)}")
    policy = content["policy"]
    scope = f"{policy['gpu']}, vLLM {policy['engine_version']}, {policy['confidence']} workloads"
    console.print(f"policy: {policy['version']} for {scope}, {policy['evidence']} evidence")


_QUANTITIES = (
    ("tokens/s", "output_throughput_tps"),
    ("p95 TTFT", "ttft_p95_ms"),
    ("p95 TPOT", "tpot_p95_ms"),
)


def _print_expected(console: Console, expected: dict[str, Any], evidence: str) -> None:
    """A line for each configuration that numbers are expected of. evidence: the class of runs that they come from."""
    for name in ("recommended", "declined", "engine_default"):
        side = expected[name]
        if side is None:
            continue
        missed = [limit for limit, met in side["meets_slo"].items() if not met]
        times = [
            f"p95 {what} {_spread(side[key])} ms"
            for what, key in (("TTFT", "ttft_p95_ms"), ("TPOT", "tpot_p95_ms"))
            if side[key] is not None
        ]
        judged = f"misses {' and '.join(missed)}" if missed else "meets the limits"
        if side["slo_met_chance"] is not None:
            judged += f", the SLO met in {chance(side['slo_met_chance'])} of the workloads"
            # Beside a verdict that says the opposite nobody shall take it for the same statement.
            if side["slo_met_chance"] > 0.5 if missed else side["slo_met_chance"] < 0.5:
                judged += " (estimated separately)"
        numbers = ", ".join([f"{_spread(side['output_throughput_tps'])} tokens/s", *times])
        console.print(
            f"expected of {name.replace('_', ' ')} {side['config_id']} by {evidence} runs: {numbers}; {judged}, "
            f"{side['regime']}"
        )
    if expected["change"] is not None:
        changes = [
            _change(what, expected["change"][key], told=expected["told_apart"][key])
            for what, key in _QUANTITIES
            if expected["change"][key] is not None
        ]
        console.print(
            f"expected change against the engine default by {evidence} runs: {', '.join(changes)}; estimated by "
            "itself, it need not be the quotient of the two numbers above"
        )


def _change(what: str, found: dict[str, float], *, told: bool) -> str:
    low, high = found["low"], found["high"]
    size = signed(found["value"]) if told else "about the same" if alike(low, high) else "not clearly changed"
    return f"{what} {size} ({between(low, high)})"


def _spread(found: dict[str, float]) -> str:
    def short(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return f"{short(found['value'])} ({short(found['low'])} to {short(found['high'])})"


def print_forms(content: dict[str, Any]) -> None:
    """The forms that were asked for and nothing else, so that they can go to a file; on stderr what limits them.

    An object is printed as JSON, which is YAML too. MemoryPolicyError with the ways out where nothing would start.
    """
    if content["command"] is None:
        raise MemoryPolicyError(" ".join([content["summary"], *content["warnings"]]))
    for line in (content["summary"], *(f"warning: {warning}" for warning in content["warnings"])):
        print(f"memorypolicy: {line}", file=sys.stderr)
    for form in content["renders"].values():
        print(form.rstrip("\n") if isinstance(form, str) else json.dumps(form, indent=2, ensure_ascii=False))


def _ranking(content: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in ("rank", "score", "seqs", "batched", "memory"):
        table.add_column(column, justify="right")
    table.add_column("prefix")
    table.add_column("KV GiB", justify="right")
    table.add_column("fit", justify="right")
    table.add_column("can be chosen")
    for row in content["ranked"]:
        arguments = row["engine_args"]
        table.add_row(
            str(row["rank"]),
            f"{row['score']:.3f}",
            str(arguments["max_num_seqs"]),
            str(arguments["max_num_batched_tokens"]),
            f"{arguments['gpu_memory_utilization']:.2f}",
            "on" if arguments["enable_prefix_caching"] else "off",
            f"{row['capacity']['kv_cache_gib']:.1f}",
            f"{row['capacity']['requests_that_fit']:,}",
            _choice(row["feasibility"]),
        )
    return table


def _choice(feasibility: dict[str, Any] | None) -> str:
    if feasibility is None:
        return "yes"
    if feasibility["reason"] == "contradicts_fixed":
        return f"no: fixed is another {', '.join(feasibility['arguments'])}"
    if feasibility["reason"] == "not_learnt":
        return "no: not learnt"
    if feasibility["reason"] == "too_few_batched_tokens":
        return "no: too few batched tokens"
    return f"no: needs {feasibility['needed_gib']:.1f} of {feasibility['available_gib']:.1f} GiB"
