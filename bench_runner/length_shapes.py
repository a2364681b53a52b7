"""Observed lengths that ship with the program: shapes to train on, traces to test on. Tokens."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench_runner.files import read_json
from bench_runner.lengths import EmpiricalLengths, QuantileTable

LENGTHS_PATH = Path(__file__).parent / "traffic_tables" / "lengths.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How prompts and outputs of one service are distributed; each a table of its own."""

    name: str
    prompt: QuantileTable
    output: QuantileTable


@cache
def shapes() -> tuple[Shape, ...]:
    """The services whose quantiles are known."""
    content = read_json(LENGTHS_PATH)
    quantile = np.array(content["quantile"])

    def table(tokens: list[float]) -> QuantileTable:
        return QuantileTable(quantile=quantile, tokens=np.array(tokens))

    return tuple(
        Shape(name=name, prompt=table(part["prompt"]), output=table(part["output"]))
        for name, part in content["shapes"].items()
    )


@cache
def traces() -> dict[str, EmpiricalLengths]:
    """Joint samples of real requests by the name of their trace; none of them shapes any training traffic."""
    return {
        name: EmpiricalLengths(prompt=_tokens(part["prompt"]), output=_tokens(part["output"]))
        for name, part in read_json(LENGTHS_PATH)["traces"].items()
    }


def _tokens(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
