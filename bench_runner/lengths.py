"""Distributions of request lengths: what is drawn anew for every request. Tokens."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.errors import InvalidInputError


class Lengths(Protocol):
    """Something that lengths of requests can be drawn from."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompt tokens and output tokens of `count` requests, [count] each, all at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalLengths:
    """Observed requests, [requests] each. A draw takes prompt and output of the same request, so they stay related."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.prompt) or self.prompt.shape != self.output.shape:
            value = f"{self.prompt.shape} prompts, {self.output.shape} outputs"
            raise InvalidInputError(path="lengths", value=value, remedy="give one prompt and one output per request")
        for path, tokens in (("prompt", self.prompt), ("output", self.output)):
            if tokens.min() < 1:
                raise InvalidInputError(path=path, value=int(tokens.min()), remedy="a request has at least one token")

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """With replacement."""
        rows = rng.integers(0, len(self.prompt), count)
        return self.prompt[rows], self.output[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileTable:
    """An inverse distribution function as points: `tokens` at `quantile`, both ascending, quantiles within 0 … 1."""

    quantile: NDArray[np.float64]
    tokens: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not len(self.quantile) or self.quantile.shape != self.tokens.shape:
            value = f"{self.quantile.shape} quantiles, {self.tokens.shape} tokens"
            raise InvalidInputError(path="quantiles", value=value, remedy="give one number of tokens per quantile")
        if not (self.quantile[0] >= 0 and self.quantile[-1] <= 1) or (np.diff(self.quantile) <= 0).any():
            raise InvalidInputError(path="quantile", value=self.quantile.tolist(), remedy="ascending within 0 … 1")
        if self.tokens[0] < 1 or (np.diff(self.tokens) < 0).any():
            raise InvalidInputError(path="tokens", value=self.tokens.tolist(), remedy="at least 1 and not descending")

    def at(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """Tokens at shares in 0 … 1: linear between points, the end points' own outside them, rounded."""
        return np.rint(np.interp(share, self.quantile, self.tokens)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileLengths:
    """Prompt and output from a table each. Tables of single quantities say nothing of how the two go together."""

    prompt: QuantileTable
    output: QuantileTable

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Independent of one another."""
        return self.prompt.at(rng.random(count)), self.output.at(rng.random(count))
