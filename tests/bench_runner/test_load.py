"""What a run of load measures on a server that behaves, compared with the server's own log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_runner.load import LoadProgress, LoadResult
from bench_runner.request_log import NEVER, Outcome, request_ids
from service.domain.errors import InvalidInputError
from tests.bench_runner.scripted_load import Server, load, serving, spec

# How much later than the server wrote may a token be seen, on a machine that does other things as well?
SLACK_MS = 60.0


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("healthy"), first_token_s=0.05) as server:
        yield server


def served(result: LoadResult, server: Server, prompt_seed: int) -> list[dict[str, Any] | None]:
    """For each row what the server did with it; None if it never arrived."""
    log = server.log_by_id()
    return [log.get(name) if name else None for name in request_ids(result.log, prompt_seed)]


def completed(result: LoadResult) -> Any:
    return result.log.outcome == Outcome.COMPLETED


def test_ttft_counts_from_sending_to_the_first_token_and_not_to_an_empty_event(tmp_path: Path) -> None:
    with serving(tmp_path, empty_first_event_s=0.1, first_token_s=0.5) as server:
        result = load(server, prompt_seed=90_001, window_s=1.4)
        records = served(result, server, 90_001)
    ttft = result.log.ttft_ms(from_due=False)[completed(result)]
    truth = [
        (r["first_ns"] - r["arrived_ns"]) / 1e6 for r, c in zip(records, completed(result), strict=True) if r and c
    ]
    assert len(ttft) >= 4
    assert ttft.min() >= 495
    assert float(np.median(ttft - np.array(truth))) < SLACK_MS


def test_tpot_divides_by_tokens_after_the_first_chunk_and_not_by_chunks(tmp_path: Path) -> None:
    # 4 chunks with 16 tokens, 4 of them in the first: 12 tokens at 10 ms each between first and last.
    with serving(tmp_path, tokens_per_event=4, token_interval_s=0.01) as server:
        result = load(server, prompt_seed=90_004, window_s=0.8)
        records = served(result, server, 90_004)
    # A client that was held up finds two chunks in one read; such rows say nothing here.
    log, done = result.log, completed(result) & (result.log.first_chunk_tokens == 4)
    assert done.sum() >= 4
    assert set(log.tokens[done]) == {16}
    assert log.tpot_ms()[done] == pytest.approx((log.last_ns - log.first_ns)[done] / 12 / 1e6)
    truth = [(r["last_ns"] - r["first_ns"]) / 12e6 for r, c in zip(records, done, strict=True) if r and c]
    assert float(np.median(log.tpot_ms()[done] - truth)) == pytest.approx(0, abs=SLACK_MS / 12)


def test_a_one_token_answer_has_a_ttft_and_no_tpot(healthy: Server) -> None:
    result = load(healthy, max_new_tokens=1)
    done = completed(result)
    assert done.sum() >= 4
    assert np.all(np.isnan(result.log.tpot_ms()))
    assert np.all(result.log.ttft_ms(from_due=False)[done] > 0)


def test_a_known_server_gives_its_known_latency_and_throughput(tmp_path: Path) -> None:
    # 10 tokens in 0.19 s for 4 clients at once: 40 requests in 1.9 s, 210.5 tokens/s.
    with serving(tmp_path, first_token_s=0.1, token_interval_s=0.01) as server:
        result = load(
            server,
            prompt_seed=90_002,
            max_new_tokens=10,
            ramp_s=0.0,
            warm_up_s=0.4,
            window_s=1.9,
            shared_prefix_tokens=0,
        )
        records = served(result, server, 90_002)
    log, done = result.log, completed(result)
    truth = np.array([(r["last_ns"] - r["arrived_ns"]) / 1e6 for r, c in zip(records, done, strict=True) if r and c])
    latency = log.e2el_ms()[done]
    assert latency.min() >= 185
    assert float(np.median(latency - truth)) < SLACK_MS
    assert 200 <= result.tokens_in_window <= 440
    # Requests go out at once when the last has ended, and what the client adds is told apart from the latency.
    assert float(np.median(log.client_queue_ms()[done])) < SLACK_MS
    # The first four left together; nothing that came before the window counts.
    burst = log.due_ns == result.start_ns
    assert burst.sum() == 4
    assert int(log.tokens.sum()) - result.tokens_in_window >= 40


def test_requests_on_their_way_when_the_window_ends_are_unfinished_rows(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-num-seqs=3", first_token_s=0.01, token_interval_s=1.0) as server:
        result = load(server, clients=8)
    assert set(result.log.outcome) == {Outcome.UNFINISHED}
    assert (result.waiting_at_end, result.running_at_end) == (5, 3)
    assert result.gave_up is None
    assert not result.stopped


@pytest.mark.parametrize("script", [{"torn": True, "tokens_per_event": 3}, {"events_per_write": 4}])
def test_events_torn_or_merged_by_the_connection_are_counted_right(tmp_path: Path, script: dict[str, Any]) -> None:
    with serving(tmp_path, **script) as server:
        result = load(server)
    assert completed(result).sum() >= 4
    assert set(result.log.tokens[completed(result)]) == {16}
    # What one write carried comes together; a client that was held up may find two writes in one read.
    assert set(result.log.first_chunk_tokens[completed(result)] % (3 if "torn" in script else 4)) == {0}
    assert result.log.errors == ()


def test_a_server_without_token_ids_is_counted_by_its_continuous_usage(tmp_path: Path) -> None:
    with serving(tmp_path, no_token_ids=True, tokens_per_event=3) as server:
        result = load(server)
    assert completed(result).sum() >= 4
    assert set(result.log.tokens[completed(result)]) == {16}


def test_cached_tokens_are_what_the_server_says_and_unknown_if_it_says_nothing(tmp_path: Path, healthy: Server) -> None:
    with serving(tmp_path, cached_share=0.25) as server:
        said = load(server)
    silent = load(healthy)
    assert set(said.log.cached_tokens[completed(said)]) == {10}
    assert set(silent.log.cached_tokens) == {NEVER}


def test_each_client_keeps_its_connection(healthy: Server) -> None:
    load(healthy, prompt_seed=90_003)
    records = [record for record in healthy.log() if record["request_id"].startswith("90003-")]
    assert len(records) >= 8
    assert len({record["connection"] for record in records}) == 4


def test_clients_start_scattered_over_the_ramp_and_alike_for_equal_seeds(healthy: Server) -> None:
    def starts_ms(**changes: Any) -> list[int]:
        result = load(healthy, clients=8, ramp_s=0.3, warm_up_s=0.0, window_s=0.4, **changes)
        first = [result.log.due_ns[result.log.client == client].min() for client in range(8)]
        return [round((due - result.start_ns) / 1e6) for due in first]

    starts = starts_ms()
    assert len(set(starts)) > 4
    assert all(0 <= start <= 300 for start in starts)
    assert starts_ms(processes=3) == starts
    assert starts_ms(ramp_seed=7) != starts


def test_an_open_loop_sends_when_due_and_counts_who_found_no_place(tmp_path: Path) -> None:
    # 0.2 s each and two places: of four requests due at once two wait, and that counts as their TTFT.
    arrivals = (0.05, 0.5, 0.5, 0.5, 0.5, 1.3, 9.0)
    with serving(tmp_path, first_token_s=0.2, token_interval_s=0.0) as server:
        result = load(server, clients=2, arrivals_s=arrivals, warm_up_s=0.2, window_s=1.7)
    log = result.log
    assert [round((due - result.start_ns) / 1e9, 3) for due in log.due_ns] == list(arrivals[:-1])
    assert set(log.outcome) == {Outcome.COMPLETED}
    assert result.delayed == 2
    waited = sorted(log.ttft_ms(from_due=True)[1:5])
    assert waited[2] >= 395
    assert log.ttft_ms(from_due=False).min() >= 195


def test_requests_that_never_found_a_place_are_rows_too(tmp_path: Path) -> None:
    with serving(tmp_path, first_token_s=30.0) as server:
        result = load(server, clients=1, arrivals_s=(0.1, 0.2, 0.3))
    assert result.log.outcome.tolist() == [Outcome.UNFINISHED] * 3
    assert (result.log.sent_ns == NEVER).tolist() == [False, True, True]
    assert (result.waiting_at_end, result.delayed) == (1, 2)


def test_several_processes_measure_what_one_does(healthy: Server) -> None:
    arrivals = tuple(0.02 * number for number in range(15))

    def run_with(processes: int) -> LoadResult:
        told: list[LoadProgress] = []
        return load(
            healthy,
            arrivals_s=arrivals,
            clients=12,
            processes=processes,
            warm_up_s=0.0,
            window_s=60.0,
            on_progress=told.append,
            should_stop=lambda: bool(told) and told[-1].completed == 15,
        )

    runs = [run_with(1), run_with(3)]
    for run in runs:
        assert run.log.outcome.tolist() == [Outcome.COMPLETED] * 15
        assert np.all(run.log.tokens == 16)
        assert run.tokens_in_window == 240
    assert len(set(runs[1].log.client % 3)) == 3


def test_progress_is_told_while_the_load_runs(healthy: Server) -> None:
    told: list[LoadProgress] = []
    load(healthy, on_progress=told.append, window_s=0.8)
    assert len(told) > 3
    assert [p.completed for p in told] == sorted(p.completed for p in told)
    assert max(p.in_flight for p in told) == 4
    assert max(p.tokens_per_s for p in told) > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 0},
        {"shared_prefix_tokens": 41},
        {"max_new_tokens": 0},
        {"clients": 0},
        {"window_s": 0.0},
        {"token_ids": (5, 5)},
        {"prompt_seed": -1},
        {"arrivals_s": (0.2, 0.1)},
        {"arrivals_s": (-0.1, 0.1)},
        {"base_url": "https://127.0.0.1:1"},
        {"base_url": "http://127.0.0.1"},
    ],
)
def test_a_load_that_cannot_be_run_is_refused_before_it_starts(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(changes))):
        spec(**{"base_url": "http://127.0.0.1:1", **changes})
