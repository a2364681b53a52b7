"""Outcomes are stored once, find their recommendation early or late, and are all or nothing."""

import pytest

from service.db.database import Database
from service.db.outcomes import OutcomeConflictError, add_outcomes, outcomes_since
from service.db.record import insert_records
from service.db.retention import prune
from tests.db.rows import count, ids, outcome, recommendation

MEASURED = {"output_throughput_tps": 5000.0, "slo_met": True}


def test_a_report_is_stored_once_and_read_back_as_it_was(database: Database) -> None:
    report = outcome(1, measured=MEASURED, engine_args={"max_num_seqs": 128}, workload={"concurrency": 4}, pair="a:0")
    assert add_outcomes(database, [report], now_ms=5) == (1, False)
    assert add_outcomes(database, [report], now_ms=6) == (0, False)
    assert outcomes_since(database, 0, project=None) == [(report, None)]


def test_only_what_came_since_then_is_read(database: Database) -> None:
    for number in (1, 2, 3):
        add_outcomes(database, [outcome(number)], now_ms=number)
    assert [report.id for report, _ in outcomes_since(database, 2, project=None)] == ["outcome-2", "outcome-3"]


def test_other_content_under_one_id_stores_nothing_of_its_body(database: Database) -> None:
    add_outcomes(database, [outcome(1, measured=MEASURED)], now_ms=1)
    with pytest.raises(OutcomeConflictError, match="measured"):
        add_outcomes(database, [outcome(2), outcome(1, measured={})], now_ms=2)
    assert ids(database, "outcomes") == {"outcome-1"}


def test_a_report_finds_its_recommendation_by_id_and_by_project_and_endpoint(database: Database) -> None:
    older = recommendation(project="search", endpoint="qwen", created_ms=1)
    newer = recommendation(project="search", endpoint="qwen", created_ms=2)
    other = recommendation(project="chat", endpoint="qwen", created_ms=3)
    insert_records(database, [newer, older, other])
    named = outcome(1, recommendation_id=older.values["id"])
    placed = outcome(2, project="search", endpoint="qwen")
    assert add_outcomes(database, [named, placed], now_ms=9) == (2, True)
    found = outcomes_since(database, 0, project=None)
    assert [asked.id for _, asked in found if asked] == [older.values["id"], newer.values["id"]]
    # What it was about does not change when the endpoint is created anew.
    insert_records(database, [recommendation(project="search", endpoint="qwen", created_ms=10)])
    assert [asked.id for _, asked in outcomes_since(database, 0, project="search") if asked] == [
        older.values["id"],
        newer.values["id"],
    ]
    assert outcomes_since(database, 0, project="chat") == []


def test_a_report_may_come_before_its_recommendation_and_stay_after_it(database: Database) -> None:
    record = recommendation(created_ms=5)
    report = outcome(1, recommendation_id=record.values["id"])
    assert add_outcomes(database, [report], now_ms=10) == (1, False)
    assert outcomes_since(database, 0, project=None) == [(report, None)]
    insert_records(database, [record])
    ((_, asked),) = outcomes_since(database, 0, project=None)
    assert asked is not None
    assert (asked.id, asked.flags, asked.workload["concurrency"]) == (record.values["id"], {"max_num_seqs": 128}, 64)
    prune(database, before_ms=6)
    assert (count(database), count(database, "outcomes")) == (0, 1)
    assert outcomes_since(database, 0, project=None) == [(report, None)]
    # Sent once more, long after, it is still the same report.
    assert add_outcomes(database, [report], now_ms=99) == (0, False)
