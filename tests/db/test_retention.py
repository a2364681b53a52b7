"""What is deleted is all of it, and nothing else."""

from service.db.database import Database
from service.db.outcomes import add_outcomes
from service.db.record import insert_records
from service.db.retention import CHUNK, delete_project, prune, row_counts
from tests.db.rows import count, hook_decision, ids, outcome, recommendation


def test_what_is_older_goes_and_the_rest_stays(database: Database) -> None:
    old, new = recommendation(created_ms=999), recommendation(created_ms=1000)
    insert_records(database, [old, new, hook_decision(created_ms=5), hook_decision(created_ms=2000)])
    add_outcomes(database, [outcome(1)], now_ms=999)
    add_outcomes(database, [outcome(2)], now_ms=1000)
    assert prune(database, before_ms=1000) == {"recommendations": 1, "hook_decisions": 1, "outcomes": 1}
    assert ids(database) == {new.values["id"]}
    assert row_counts(database) == {"recommendations": 1, "hook_decisions": 1, "outcomes": 1}


def test_more_than_one_chunk_is_deleted_to_the_end(database: Database) -> None:
    insert_records(database, [recommendation(created_ms=1) for _ in range(CHUNK + 3)])
    assert prune(database, before_ms=2)["recommendations"] == CHUNK + 3
    assert count(database) == 0


def test_a_project_is_deleted_with_every_report_about_its_recommendations(database: Database) -> None:
    mine, other = recommendation(project="search"), recommendation(project="chat")
    nobodys = recommendation()
    insert_records(database, [mine, other, nobodys, hook_decision(project="search"), hook_decision(project="chat")])
    about = [outcome(n, recommendation_id=str(r.values["id"])) for n, r in enumerate((mine, other, nobodys))]
    add_outcomes(database, [*about, outcome(3, project="search"), outcome(4, project="chat")], now_ms=1)
    assert delete_project(database, "search") == {"outcomes": 2, "recommendations": 1, "hook_decisions": 1}
    assert ids(database) == {other.values["id"], nobodys.values["id"]}
    assert ids(database, "outcomes") == {"outcome-1", "outcome-2", "outcome-4"}
    assert delete_project(database, "search") == {"outcomes": 0, "recommendations": 0, "hook_decisions": 0}
