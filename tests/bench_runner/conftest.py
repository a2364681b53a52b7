"""A scheduler driven by hand: steps without time, so that a test can say who gets how many tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from bench_runner.kv_cache import FREE, BlockPool, new_pool
from bench_runner.scheduler import (
    Limits,
    Requests,
    add_request,
    new_requests,
    new_step,
    number_own_contents,
    schedule,
    update,
)


def share_prefix(requests: Requests, blocks: NDArray[np.int64]) -> int:
    """Numbers the contents so that all slots share a prefix of so many blocks each; returns how many there are."""
    per_slot = requests.contents.shape[1]
    numbers = number_own_contents(requests, shared_numbers=per_slot)
    index = np.arange(per_slot)
    requests.contents[:] = np.where(index < blocks[:, None], index, requests.contents)
    requests.own_from[:] = blocks
    return numbers


@dataclass
class Engine:
    """Schedules and finishes one step at a time (or two in flight) for requests given as (prompt, output, shared)."""

    requests: Requests
    pool: BlockPool
    limits: Limits
    shared: NDArray[np.int64]
    finished: list[int] = field(default_factory=list)

    def add(self, slot: int, *, prompt: int, output: int, shared_tokens: int = 0) -> None:
        self.requests.prompt[slot] = prompt
        self.requests.output[slot] = output
        self.shared[slot] = shared_tokens // 16
        share_prefix(self.requests, self.shared)
        add_request(self.requests, slot)

    def step(self) -> dict[int, int]:
        """One synchronous step: {slot: tokens}."""
        step = new_step(slots=len(self.requests.prompt))
        schedule(self.requests, self.pool, self.limits, step)
        size = int(step.size[0])
        tokens = {int(s): int(n) for s, n in zip(step.slot[:size], step.tokens[:size], strict=True)}
        slots = len(self.requests.prompt)
        emitted, last = np.zeros(slots, np.int64), np.zeros(slots, np.bool_)
        count = update(self.requests, self.pool, step, emitted, last)
        self.finished += [int(s) for s, done in zip(emitted[:count], last[:count], strict=True) if done]
        return tokens

    @property
    def free_blocks(self) -> int:
        return int(self.pool.totals[FREE])


@pytest.fixture
def engine() -> Callable[..., Engine]:
    def build(
        *,
        seqs: int = 8,
        budget: int = 1024,
        blocks: int = 1001,
        slots: int = 4,
        longest: int = 512,
        caching: bool = True,
    ) -> Engine:
        requests = new_requests(slots=slots, max_tokens=longest)
        shared = np.zeros(slots, dtype=np.int64)
        return Engine(
            requests=requests,
            pool=new_pool(blocks=blocks, contents=share_prefix(requests, shared), caching=caching),
            shared=shared,
            limits=Limits(seqs, budget, False),
        )

    return build
