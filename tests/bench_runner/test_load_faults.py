"""Whatever the server does, a run of load ends in time and says what happened to each request."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_runner.load import LoadProgress
from bench_runner.request_log import NEVER, Outcome
from tests.bench_runner.scripted_load import free_port, load, serving


@pytest.mark.parametrize(
    ("script", "outcome", "text"),
    [
        ({"refuse_all": True}, Outcome.HTTP_ERROR, "HTTP 500: .*scripted refusal"),
        ({"status": 503}, Outcome.HTTP_ERROR, "HTTP 503"),
        ({"error_event": True}, Outcome.HTTP_ERROR, "the stream reports .*scripted error"),
        ({"garbage": True}, Outcome.GARBAGE, "not a completion event"),
        ({"no_counts": True}, Outcome.GARBAGE, "neither token_ids nor usage"),
        ({"no_tokens": True}, Outcome.NO_TOKENS, "ended without a token"),
        ({"short_by": 3}, Outcome.SHORT, "13 tokens came, 16 were asked for"),
        ({"cut_after_tokens": 5}, Outcome.CUT, "the connection ended before the answer did"),
        ({"hang_all": True}, Outcome.TIMED_OUT, "no byte for 0.2 s"),
        ({"hang_after_tokens": 5}, Outcome.TIMED_OUT, "no byte for 0.2 s"),
    ],
)
def test_each_fault_has_its_name(tmp_path: Path, script: dict[str, Any], outcome: Outcome, text: str) -> None:
    with serving(tmp_path, **script) as server:
        result = load(
            server, warm_up_s=0.0, window_s=0.7, request_timeout_s=0.2 if outcome == Outcome.TIMED_OUT else 5.0
        )
    log = result.log
    assert set(log.outcome) - {Outcome.UNFINISHED} == {outcome}
    assert len(log.errors) == 1
    assert re.search(text, log.errors[0])
    assert result.gave_up is None
    tokenless = log.tokens == 0
    assert np.all(log.first_ns[tokenless] == NEVER)
    assert np.all(np.isnan(log.ttft_ms(from_due=False)[tokenless]))


def test_one_failed_request_in_three_is_one_row_in_three(tmp_path: Path) -> None:
    with serving(tmp_path, status=503, status_every=3) as server:
        result = load(server, clients=1)
    ended = result.log.outcome[result.log.outcome != Outcome.UNFINISHED]
    assert len(ended) >= 6
    assert set(ended[2::3]) == {Outcome.HTTP_ERROR}
    assert set(ended[0::3]) | set(ended[1::3]) == {Outcome.COMPLETED}


def test_where_nobody_listens_the_run_ends_early_and_says_so() -> None:
    result = load(f"http://127.0.0.1:{free_port()}", window_s=60.0)
    assert result.gave_up is not None
    assert "no client has got a connection for 3 s" in result.gave_up
    assert set(result.log.outcome) == {Outcome.REFUSED}
    assert set(result.log.sent_ns) == {NEVER}
    assert result.tokens_in_window == 0


def test_a_server_that_dies_cuts_its_requests_and_ends_the_run(tmp_path: Path) -> None:
    with serving(tmp_path, die_on_request=9) as server:
        result = load(server, window_s=60.0, processes=2)
    assert result.gave_up is not None
    counts = np.bincount(result.log.outcome, minlength=len(Outcome))
    assert 1 <= counts[Outcome.CUT] <= 4
    assert 1 <= counts[Outcome.COMPLETED] <= 8
    assert counts[Outcome.REFUSED] > 0
    assert counts.sum() == counts[[Outcome.CUT, Outcome.COMPLETED, Outcome.REFUSED]].sum()


def test_stopping_ends_the_run_at_once_and_keeps_what_is_known(tmp_path: Path) -> None:
    progress: list[LoadProgress] = []

    def enough() -> bool:
        return bool(progress) and progress[-1].completed >= 4

    with serving(tmp_path) as server:
        result = load(server, should_stop=enough, on_progress=progress.append, window_s=60.0)
    assert result.stopped
    assert result.gave_up is None
    assert np.sum(result.log.outcome == Outcome.COMPLETED) >= 4


def test_a_run_that_is_stopped_before_it_starts_has_no_rows() -> None:
    result = load(f"http://127.0.0.1:{free_port()}", should_stop=lambda: True)
    assert result.stopped
    assert len(result.log) == 0
    assert result.client.cpu_share is None
    assert result.client.loop_lag_p95_ms is None
