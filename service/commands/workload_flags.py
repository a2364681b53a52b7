"""The workload of a question on the command line: a flag for every field of the request's, ranges as LOW:HIGH."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.domain.errors import MemoryPolicyError, shorten

Number = int | float


def _or_range(kind: Callable[[str], Number]) -> Callable[[str], Number | list[Number]]:
    def parse(text: str) -> Number | list[Number]:
        try:
            numbers = [kind(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 2:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}: write {what}, or LOW:HIGH for a range")
        return numbers[0] if len(numbers) == 1 else numbers

    return parse


_COUNTS, _NUMBERS = _or_range(int), _or_range(float)
_RANGES: dict[str, tuple[Callable[[str], Any], str]] = {
    "prompt_tokens": (_COUNTS, "of a prompt, the mean"),
    "max_new_tokens": (_COUNTS, "that a request generates at most: the limit, or the 95th percentile"),
    "output_tokens": (_COUNTS, "that a request generates, the mean"),
    "shared_prefix_ratio": (_NUMBERS, "share of the prompt that all requests have in common, 0 to 1"),
    "shared_prefix_tokens": (_COUNTS, "the same in tokens"),
    "concurrency": (_COUNTS, "clients that each keep one request in flight"),
    "requests_per_second": (_NUMBERS, "instead of --concurrency: the mean rate when it is busy"),
}
WORKLOAD_FLAGS = (*_RANGES, "preset", "max_output_tokens", "replicas", "confidence")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """The flags of the workload. Which of them are needed, the reader of the question says, as over HTTP."""
    group = parser.add_argument_group("workload: each number may be a range, LOW:HIGH")
    group.add_argument(
        "--workload", metavar="PATH", type=Path, dest="workload_file",
        help="a JSON object with any of these, or a whole question, of which all is taken; - for standard input",
    )  # fmt: skip
    group.add_argument(
        "--preset", metavar="NAME", help="a known shape: chat, rag, agent, summarize, codeassist or longgen"
    )
    for name, (kind, meaning) in _RANGES.items():
        metavar = "NUMBER" if kind is _NUMBERS else "INT"
        group.add_argument(_flag(name), type=kind, metavar=f"{metavar}[:{metavar}]", help=meaning)
    group.add_argument("--max-output-tokens", type=int, metavar="INT", help="of the longest output")
    group.add_argument("--replicas", type=int, metavar="INT", help="servers that share the load evenly (1)")
    group.add_argument(
        "--confidence", metavar="WORD", help="how well the workload is known: exact, typical or rough (typical)"
    )


def workload_part(arguments: argparse.Namespace) -> dict[str, Any]:
    """`workload` of the question, as far as flags say it."""
    return {name: value for name in WORKLOAD_FLAGS if (value := getattr(arguments, name)) is not None}


def with_file(arguments: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """The question of the flags with that of --workload: what is kept in the file counts like a flag.

    MemoryPolicyError names both places of what stands in the file and, otherwise, in a flag.
    """
    path: Path | None = arguments.workload_file
    if path is None:
        return given
    from service.api.model_folder import read_object

    content = read_object(path)
    # A question that is kept as a file, such as what a request log came to, or its workload alone.
    kept = content if "workload" in content else {"workload": content}
    # Of the model a question has exactly one form, and its flags make one together.
    given = {name: value for name, value in given.items() if value or name not in ("model", "workload")}
    both = {**kept, **given}
    for name in kept.keys() & given.keys():
        if name in _MEMBERS and isinstance(kept[name], dict):
            inner = kept[name].keys() & given[name].keys()
            for member in sorted(inner):
                _refuse_another(path, f"{name}.{member}", kept[name][member], given[name][member])
            both[name] = {**kept[name], **given[name]}
        else:
            _refuse_another(path, name, kept[name], given[name])
    return both


# Parts of a question whose members are flags of their own.
_MEMBERS = ("workload", "slo", "fixed")
_FLAGS = {
    "model": "the flags of the model (--model, --config, --same-architecture-as, --weight-gb, …)",
    "adapter": "the flags of the adapter (--adapter, --lora-rank, --max-loras)",
}


def _refuse_another(path: Path, place: str, kept: object, given: object) -> None:
    if kept == given:
        return
    part, _, member = place.partition(".")
    flag = f"--fixed {member}=…" if part == "fixed" else _FLAGS.get(place) or _flag(member or part)
    # A line of arguments may hold a key.
    values = ("stands", ", another one,") if part == "extra_args" else (f"is {shorten(kept)}", f" {shorten(given)}")
    raise MemoryPolicyError(f"{path}: {place} {values[0]} there and{values[1]} in {flag}; leave one of them out")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
