"""Streams against an engine whose every step takes 10 ms, or looked at on their own. Blocks hold 16 tokens."""

from collections.abc import Callable

import numpy as np
import pytest

from bench_runner.engine import run_engine
from bench_runner.lengths import EmpiricalLengths, QuantileLengths, QuantileTable
from bench_runner.measurement import LOGGED, new_recorder
from bench_runner.request_stream import (
    RequestStream,
    SharedContents,
    closed_stream,
    longest,
    most_outstanding_tokens,
    nothing_shared,
    open_stream,
)
from bench_runner.scheduler import HIT_TOKENS
from bench_runner.simulator import Observed, Window, new_engine, simulate
from bench_runner.traces import HashBlocks, RequestTrace
from bench_runner.traffic import Prefixes, closed_loop, conversations, open_loop, replay
from service.domain.candidate import CANDIDATES
from service.domain.errors import InvalidInputError
from tests.bench_runner.test_simulator import IDEAL, constant_table


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def fixed(prompt: int, output: int) -> EmpiricalLengths:
    return EmpiricalLengths(prompt=ints(prompt), output=ints(output))


def logged(stream: RequestStream, *, blocks: int = 1000, until_ms: float = 1000.0) -> tuple[list[list[float]], int]:
    """Rows (client, sent, first token, last token) of every request, and prompt tokens that hit the prefix cache."""
    engine = new_engine(stream, CANDIDATES[0], kv_blocks=blocks, table=constant_table(10.0), settings=IDEAL, seed=1)
    recorder = new_recorder(start_ms=0.0, end_ms=until_ms, capacity=1024, logged=1024)
    recorder = run_engine(engine, recorder)
    return recorder.log[: recorder.counts[LOGGED]].tolist(), int(engine.requests.totals[HIT_TOKENS])


def observed(stream: RequestStream, *, length_ms: float = 1000.0) -> Observed:
    return simulate(
        stream,
        CANDIDATES[0],
        kv_blocks=1000,
        table=constant_table(10.0),
        settings=IDEAL,
        window=Window(warm_up_ms=0.0, length_ms=length_ms),
        seed=1,
    )


def one_client(*, prompt: list[int], output: list[int], think_ms: list[float]) -> RequestStream:
    count = len(prompt)
    return closed_stream(
        prompt=ints(*prompt),
        output=ints(*output),
        shared=nothing_shared(count),
        think_ms=np.array(think_ms),
        queue_start=ints(0, count),
    )


def test_a_think_time_shifts_the_next_request_and_every_request_has_its_own_length() -> None:
    rows, _ = logged(one_client(prompt=[16, 16, 16], output=[1, 3, 2], think_ms=[5.0, 100.0, 0.0]))
    # Sent at 5, one token at 15; 100 ms later three tokens; then two at once. Then the client stops.
    assert rows == [[0, 5, 15, 15], [0, 115, 125, 145], [0, 145, 155, 165]]


def test_of_two_thinking_clients_the_one_that_is_due_first_sends_first() -> None:
    stream = closed_stream(
        prompt=ints(16, 16, 16, 16),
        output=ints(1, 1, 1, 1),
        shared=nothing_shared(4),
        think_ms=np.array([0.0, 200.0, 0.0, 30.0]),
        queue_start=ints(0, 2, 4),
    )
    rows, _ = logged(stream)
    assert [row[:2] for row in rows] == [[0, 0], [1, 0], [1, 40], [0, 210]]


def test_who_thinks_at_the_end_neither_waits_nor_runs() -> None:
    thinking = observed(one_client(prompt=[16, 16], output=[1, 1], think_ms=[0.0, 5000.0]))
    assert (thinking.waiting_at_end, thinking.running_at_end) == (0, 0)
    ended = observed(one_client(prompt=[16], output=[1], think_ms=[0.0]))
    assert (ended.waiting_at_end, ended.running_at_end, ended.tokens) == (0, 0, 1)


def test_the_second_turn_of_a_conversation_hits_the_whole_blocks_that_its_first_computed() -> None:
    two_turns = closed_stream(
        prompt=ints(40, 40 + 24 + 30),
        output=ints(24, 1),
        shared=SharedContents(ints(4, 6), ints(0, 0), np.arange(6)),
        think_ms=np.zeros(2),
        queue_start=ints(0, 2),
    )
    # 40 + 24 = 64 tokens would be 4 blocks, but the last token was never computed: 3 blocks hit.
    assert logged(two_turns)[1] == 48


def test_conversations_grow_by_answer_and_new_tokens_and_share_nothing_between_them() -> None:
    stream = conversations(
        np.random.default_rng(3), clients=2, per_client=2, mean_turns=40.0, lengths=fixed(20, 12), most_tokens=160
    )
    starts = np.flatnonzero(stream.prompt == 20)
    assert len(starts) == 4
    for first, end in zip(starts, [*starts[1:], len(stream.prompt)], strict=True):
        assert stream.prompt[first:end].tolist() == [20 + 32 * turn for turn in range(end - first)]
        assert len(set(stream.content_start[first:end])) == 1
    assert longest(stream) == 160
    assert len(set(stream.contents)) == len(stream.contents)
    # A turn hits the whole blocks of all but the last of the tokens before it.
    expected = sum((int(p) - 20 - 1) // 16 * 16 for p in stream.prompt if p > 20)
    assert logged(stream, until_ms=1e6)[1] == expected


def test_conversations_of_one_prefix_share_it_and_it_counts_towards_every_prompt() -> None:
    stream = conversations(
        np.random.default_rng(3),
        clients=1,
        per_client=2,
        mean_turns=1.0,
        lengths=fixed(20, 2),
        most_tokens=1000,
        prefixes=Prefixes.zipf(count=1, tokens=40, exponent=1.0),
    )
    assert stream.prompt.tolist() == [60, 60]
    # The prefix has 2 whole blocks; its last 8 tokens share a block with what the user wrote.
    assert logged(stream)[1] == 32


def test_a_conversation_that_cannot_even_begin_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="first turn has 32 tokens"):
        conversations(
            np.random.default_rng(0), clients=1, per_client=1, mean_turns=2.0, lengths=fixed(20, 12), most_tokens=31
        )


def test_two_prefixes_do_not_hit_each_other_and_the_same_one_hits() -> None:
    def hits(second: int) -> int:
        stream = closed_stream(
            prompt=ints(40, 40),
            output=ints(1, 1),
            shared=SharedContents(ints(2, 2), ints(0, second), np.arange(4)),
            think_ms=np.zeros(2),
            queue_start=ints(0, 2),
        )
        return logged(stream)[1]

    assert (hits(0), hits(2)) == (32, 0)


def test_a_private_block_is_not_hit_by_the_next_request_of_its_slot() -> None:
    assert logged(one_client(prompt=[64, 64], output=[1, 1], think_ms=[0.0, 0.0]))[1] == 0


def test_zipf_prefixes_are_as_popular_as_their_rank_says() -> None:
    prefixes = Prefixes.zipf(count=3, tokens=32, exponent=1.0)
    # 1 : 1/2 : 1/3
    assert prefixes.share.tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    drawn = np.bincount(prefixes.draw(np.random.default_rng(0), 30_000))
    assert drawn / 30_000 == pytest.approx(prefixes.share, abs=0.015)


def test_every_request_of_a_closed_loop_has_a_draw_of_its_own_behind_its_prefix() -> None:
    lengths = EmpiricalLengths(prompt=ints(10, 20, 30), output=ints(1, 2, 3))
    stream = closed_loop(
        np.random.default_rng(0),
        clients=2,
        requests_per_client=50,
        lengths=lengths,
        mean_think_ms=40.0,
        prefixes=Prefixes.zipf(count=2, tokens=32, exponent=0.0),
    )
    assert set(stream.prompt[:50]) == {42, 52, 62}
    assert (stream.prompt == 32 + 10 * stream.output).all()
    assert stream.think_ms.mean() == pytest.approx(40.0, rel=0.3)
    assert set(stream.content_start) == {0, 2}


def test_a_trace_is_replayed_at_its_own_times_or_faster() -> None:
    trace = RequestTrace(
        arrival_ms=np.array([0.0, 25.0, 400.0]), prompt=ints(16, 16, 16), output=ints(1, 3, 1), hashes=None
    )
    rows, _ = logged(replay(trace, slots=3))
    assert sorted(row[1] for row in rows) == [0, 25, 400]
    assert [row[2:] for row in rows] == [[10, 10], [35, 55], [410, 410]]
    faster, _ = logged(replay(trace, slots=3, speed=2.0))
    assert sorted(row[1] for row in faster) == [0, 12.5, 200]


def test_hash_blocks_of_512_tokens_are_hit_as_32_blocks_of_16() -> None:
    trace = RequestTrace(
        arrival_ms=np.array([0.0, 100.0, 200.0]),
        prompt=ints(1100, 1100, 1030),
        output=ints(1, 1, 1),
        hashes=HashBlocks(ids=ints(7, 8, 9, 7, 8, 10, 7, 8, 9), start=ints(0, 3, 6, 9), block_tokens=512),
    )
    # The second shares two hash blocks. The third's last block is named 9 like the first's, but only its 6 tokens
    # count, and they fill no block of 16.
    assert logged(replay(trace, slots=1))[1] == 2 * 1024
    # Sent again, the first hits its 68 whole blocks of 16: 1,088 of its 1,100 tokens.
    same = RequestTrace(
        arrival_ms=np.array([0.0, 100.0]),
        prompt=ints(1100, 1100),
        output=ints(1, 1),
        hashes=HashBlocks(ids=ints(7, 8, 9, 7, 8, 9), start=ints(0, 3, 6), block_tokens=512),
    )
    assert logged(replay(same, slots=1))[1] == 1088


def open_of(arrival_ms: list[float], *, output: int, slots: int) -> RequestStream:
    count = len(arrival_ms)
    return open_stream(
        prompt=np.full(count, 16),
        output=np.full(count, output),
        shared=nothing_shared(count),
        arrival_ms=np.array(arrival_ms),
        slots=slots,
    )


def test_what_arrives_while_no_slot_is_free_waits_at_the_client_and_is_counted() -> None:
    stream = open_of([0.0, 10.0, 200.0], output=10, slots=1)
    rows, _ = logged(stream)
    # The second is due at 10 and gets the slot at 100: its TTFT of 100 ms says so.
    assert [row[1:3] for row in rows] == [[0, 10], [10, 110], [200, 210]]
    assert observed(stream).delayed == 1


def test_an_overloaded_open_loop_ends_with_its_backlog_waiting() -> None:
    # 100 arrivals in 1 s, one slot, 100 ms each. The tenth gets its last token as the window ends, too late to count;
    # then the eleventh is sent, and 89 have no slot yet. The second to the eleventh were sent late.
    result = observed(open_of([10.0 * n for n in range(100)], output=10, slots=1), length_ms=1000.0)
    assert (result.tokens, result.delayed) == (99, 10)
    assert (result.waiting_at_end, result.running_at_end) == (90, 0)


def test_an_open_loop_sends_at_its_arrivals_whatever_the_seed_of_the_engine() -> None:
    arrival_ms = np.array([3.0, 4.0, 90.0])
    stream = open_loop(np.random.default_rng(0), arrival_ms=arrival_ms, slots=8, lengths=fixed(16, 2))
    assert [row[1] for row in logged(stream)[0]] == [3, 4, 90]


def test_the_front_end_has_room_for_the_largest_answers_that_can_be_out_together() -> None:
    assert most_outstanding_tokens(one_client(prompt=[1, 1], output=[5, 9], think_ms=[0.0, 0.0])) == 9
    assert most_outstanding_tokens(open_of([0.0, 1.0, 2.0], output=7, slots=2)) == 14


def test_equal_generators_give_equal_streams_and_other_seeds_others() -> None:
    def drawn(seed: int) -> RequestStream:
        table = QuantileTable(quantile=np.array([0.0, 1.0]), tokens=np.array([1.0, 200.0]))
        return conversations(
            np.random.default_rng(seed),
            clients=3,
            per_client=4,
            mean_turns=3.0,
            lengths=QuantileLengths(prompt=table, output=table),
            most_tokens=4000,
            mean_think_ms=10.0,
            prefixes=Prefixes.zipf(count=5, tokens=64, exponent=1.2),
        )

    first, second, other = drawn(1), drawn(1), drawn(2)
    for one, same in zip(first, second, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(same))
    assert not np.array_equal(first.prompt, other.prompt)
    assert logged(first) == logged(second)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: one_client(prompt=[0], output=[1], think_ms=[0.0]), r"prompt\[0\]: 0"),
        (lambda: one_client(prompt=[5, 5], output=[1, 0], think_ms=[0.0, 0.0]), r"output\[1\]: 0"),
        (lambda: one_client(prompt=[5], output=[1], think_ms=[-1.0]), r"think_ms\[0\]: -1"),
        (lambda: one_client(prompt=[], output=[], think_ms=[]), "0 requests"),
        (lambda: open_of([2.0, 1.0], output=1, slots=1), r"arrival_ms\[1\]: 1.0"),
        (lambda: open_of([0.0], output=1, slots=0), "0 clients"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_with_the_request(build: Callable[[], RequestStream], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        build()


def test_a_request_that_the_kv_cache_can_never_hold_is_refused_instead_of_waiting_for_ever() -> None:
    with pytest.raises(InvalidInputError, match="longest request has 41 tokens"):
        logged(one_client(prompt=[40], output=[1], think_ms=[0.0]), blocks=3)
