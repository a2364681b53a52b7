"""The workload of a question on the command line: a flag for every field of the request's, ranges as LOW:HIGH."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.domain.errors import MemoryPolicyError

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
        help="a JSON object with any of these, or a question that holds one; - for standard input",
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
    """`workload` of the question. MemoryPolicyError where a number stands in the file and in a flag."""
    given = {name: value for name in WORKLOAD_FLAGS if (value := getattr(arguments, name)) is not None}
    if arguments.workload_file is None:
        return given
    from service.api.model_folder import read_object

    content = read_object(arguments.workload_file)
    # A question that is kept as a file, or what a request log came to.
    inner = content.get("workload", content)
    if not isinstance(inner, dict):
        raise MemoryPolicyError(f"{arguments.workload_file}: workload is no object")
    if twice := sorted(inner.keys() & given.keys()):
        raise MemoryPolicyError(
            f"{arguments.workload_file}: {twice[0]} stands there and in {_flag(twice[0])}; leave one of them out"
        )
    return {**inner, **given}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
