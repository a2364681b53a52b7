"""Expectations are worked out by hand from vLLM 0.28's rules; blocks hold 16 tokens."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.kv_cache import EVICTIONS, FREE, BlockPool, new_pool
from bench_runner.scheduler import (
    HIT_TOKENS,
    NUM_RUNNING,
    NUM_WAITING,
    PREEMPTIONS,
    Limits,
    Requests,
    Step,
    add_request,
    new_requests,
    new_step,
    schedule,
    update,
)
from tests.bench_runner.conftest import Engine, share_prefix

Build = Callable[..., Engine]


def test_a_long_prompt_is_chunked_and_the_rest_of_the_budget_goes_to_the_next_request(engine: Build) -> None:
    e = engine(budget=32)
    e.add(0, prompt=40, output=3)
    e.add(1, prompt=40, output=3)
    assert e.step() == {0: 32}
    assert e.step() == {0: 8, 1: 24}
    # Request 0 decodes its second token before request 1 gets the rest of its prompt.
    assert e.step() == {0: 1, 1: 16}


def test_decodes_come_before_prefills_because_running_requests_are_served_first(engine: Build) -> None:
    e = engine(budget=17)
    e.add(0, prompt=16, output=4)
    assert e.step() == {0: 16}
    e.add(1, prompt=64, output=1)
    assert e.step() == {0: 1, 1: 16}


def test_max_num_seqs_makes_the_next_request_wait_until_one_finishes(engine: Build) -> None:
    e = engine(seqs=1)
    e.add(0, prompt=16, output=2)
    e.add(1, prompt=16, output=1)
    assert e.step() == {0: 16}
    assert e.step() == {0: 1}
    assert e.finished == [0]
    assert e.step() == {1: 16}


def test_requests_are_admitted_in_the_order_of_their_arrival(engine: Build) -> None:
    e = engine(seqs=2)
    for slot in (3, 1, 2):
        e.add(slot, prompt=16, output=5)
    assert list(e.step()) == [3, 1]


def test_the_first_request_hits_nothing_and_later_ones_hit_only_the_blocks_of_its_chunks(engine: Build) -> None:
    e = engine(budget=48)
    e.add(0, prompt=80, output=2, shared_tokens=64)
    assert e.step() == {0: 48}
    assert e.requests.totals[HIT_TOKENS] == 0
    # The second chunk of request 0 comes first and completes the fourth shared block: request 1 lacks 80 − 64 tokens.
    e.add(1, prompt=80, output=2, shared_tokens=64)
    assert e.step() == {0: 32, 1: 16}
    assert e.requests.totals[HIT_TOKENS] == 64


def test_a_request_admitted_in_the_same_step_hits_blocks_that_this_step_computes(engine: Build) -> None:
    # The engine caches a block when it is scheduled: both are computed by the same forward pass, layer by layer.
    e = engine()
    e.add(0, prompt=80, output=2, shared_tokens=64)
    e.add(1, prompt=80, output=2, shared_tokens=64)
    assert e.step() == {0: 80, 1: 16}


def test_a_fully_cached_prompt_recomputes_its_last_block_to_have_something_to_sample_from(engine: Build) -> None:
    e = engine()
    e.add(0, prompt=32, output=1, shared_tokens=32)
    e.step()
    e.add(1, prompt=32, output=1, shared_tokens=32)
    assert e.step() == {1: 16}


def test_without_prefix_caching_nothing_is_ever_hit(engine: Build) -> None:
    e = engine(caching=False)
    e.add(0, prompt=64, output=1, shared_tokens=64)
    e.step()
    e.add(1, prompt=64, output=1, shared_tokens=64)
    assert e.step() == {1: 64}


def test_a_finished_request_returns_its_blocks_and_its_own_content_cannot_be_hit_by_the_next(engine: Build) -> None:
    e = engine(blocks=11)
    e.add(0, prompt=64, output=1)
    assert e.step() == {0: 64}
    assert e.free_blocks == 10
    e.add(0, prompt=64, output=1)
    assert e.step() == {0: 64}


def test_when_blocks_run_out_the_newest_request_is_preempted_and_resumes_from_its_cached_blocks(engine: Build) -> None:
    # 3 usable blocks: one each for the prompts; the 17th token of request 0 takes the third.
    e = engine(blocks=4)
    e.add(0, prompt=16, output=3)
    e.add(1, prompt=16, output=3)
    assert e.step() == {0: 16, 1: 16}
    assert e.step() == {0: 1}
    assert e.requests.totals[PREEMPTIONS] == 1
    # Nobody is admitted in the step of a preemption; afterwards request 1 needs 2 blocks and only 1 is free.
    assert e.step() == {0: 1}
    assert e.finished == [0]
    # It knows 17 tokens; the first block is still cached, so one token is left to compute.
    assert e.step() == {1: 1}
    assert e.step() == {1: 1}
    assert e.finished == [0, 1]


def test_a_request_whose_whole_prompt_does_not_fit_now_waits_although_its_first_chunk_would(engine: Build) -> None:
    e = engine(blocks=5, budget=16)
    e.add(0, prompt=16, output=20)
    e.step()
    e.add(1, prompt=64, output=1)
    assert e.step() == {0: 1}
    assert e.requests.totals[NUM_WAITING] == 1


def test_cached_blocks_of_the_least_recently_used_request_are_evicted_first(engine: Build) -> None:
    e = engine(blocks=6, caching=True)
    e.add(0, prompt=48, output=1, shared_tokens=48)
    e.step()
    # 5 usable blocks, 3 of them cached but free; a prompt of 64 tokens takes the 2 empty ones and evicts 2 of those,
    # the tail of the older prompt first.
    e.add(1, prompt=64, output=1)
    e.step()
    assert e.pool.totals[EVICTIONS] == 2
    e.add(2, prompt=48, output=1, shared_tokens=48)
    assert e.step() == {2: 32}


def test_asynchronous_scheduling_does_not_schedule_a_request_whose_last_token_is_in_flight() -> None:
    requests = new_requests(slots=1, max_tokens=64)
    pool = new_pool(blocks=100, contents=share_prefix(requests, np.zeros(1, np.int64)), caching=True)
    limits = Limits(8, 1024, True)
    requests.prompt[0], requests.output[0] = 16, 2
    add_request(requests, 0)
    first, second, third = (new_step(slots=1) for _ in range(3))
    assert schedule(requests, pool, limits, first) == 16
    # The first token is still on the GPU and the second is scheduled already.
    assert schedule(requests, pool, limits, second) == 1
    emitted, last = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    assert update(requests, pool, first, emitted, last) == 1
    assert schedule(requests, pool, limits, third) == 0
    assert update(requests, pool, second, emitted, last) == 1
    assert last[0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(12, 60),
    seqs=st.integers(1, 6),
    budget=st.integers(8, 64),
    caching=st.booleans(),
    depth=st.sampled_from([1, 2]),
)
def test_every_request_ends_with_exactly_its_tokens_and_no_block_is_lost(
    seed: int, blocks: int, seqs: int, budget: int, caching: bool, depth: int
) -> None:
    rng = np.random.default_rng(seed)
    slots, longest = 6, 160
    requests = new_requests(slots=slots, max_tokens=longest)
    limits = Limits(seqs, budget, depth == 2)
    for slot in range(slots):
        requests.prompt[slot], requests.output[slot] = rng.integers(1, 120), rng.integers(1, 40)
        add_request(requests, slot)
    contents = share_prefix(requests, np.minimum(2, requests.prompt // 16))
    pool = new_pool(blocks=blocks, contents=contents, caching=caching)
    received = _run_to_the_end(requests, pool, limits, depth)
    assert received == [int(n) for n in requests.output]
    assert requests.totals[NUM_RUNNING] == requests.totals[NUM_WAITING] == 0
    assert pool.totals[FREE] == blocks - 1
    assert not pool.references.any()


def _run_to_the_end(requests: Requests, pool: BlockPool, limits: Limits, depth: int) -> list[int]:
    slots = len(requests.prompt)
    received = [0] * slots
    emitted, last = np.zeros(slots, np.int64), np.zeros(slots, np.bool_)
    in_flight: list[Step] = []
    for _ in range(5000):
        while len(in_flight) < depth:
            step = new_step(slots=slots)
            tokens = schedule(requests, pool, limits, step)
            assert tokens <= limits.max_num_batched_tokens
            assert requests.totals[NUM_RUNNING] <= limits.max_num_seqs
            if tokens == 0:
                break
            in_flight.append(step)
        if not in_flight:
            return received
        count = update(requests, pool, in_flight.pop(0), emitted, last)
        for slot in emitted[:count]:
            received[int(slot)] += 1
    pytest.fail("the schedule does not end")
