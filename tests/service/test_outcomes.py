"""Outcomes come in once however often and late they are sent; the report says what is known, and what is not."""

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.examples import OUTCOME_EXAMPLES
from service.api.outcome import summarise
from service.api.outcome_schemas import OutcomeAnswer, OutcomeSummary
from service.app import create_app
from service.db.outcomes import Asked
from service.settings import Settings
from tests.db.rows import outcome
from tests.service.conftest import QUESTION, Client

REPORT: dict[str, Any] = {
    "arm": "recommended",
    "engine_args": {"max_num_seqs": 128},
    "measured": {"output_throughput_tps": 5000.0, "ttft_p95_ms": 800.0, "slo_met": True},
}


@pytest.fixture
def own(bundle_dir: Path, tmp_path: Path) -> Client:
    """An application with a database of its own."""
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path), clock=lambda: 1_700_000_000.0))


def report(client: Client, body: dict[str, Any]) -> httpx.Response:
    return client.request("POST", "/v1/outcomes", json=body)


def summary(client: Client, query: str = "") -> dict[str, Any]:
    response = client.get(f"/v1/outcomes/report{query}")
    OutcomeSummary.model_validate_json(response.content)
    content: dict[str, Any] = response.json()
    return content


def ask(
    client: Client,
    *,
    question: dict[str, Any] = QUESTION,
    mode: str = "apply",
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    response = client.request("POST", f"/v1/recommend?mode={mode}", json=question, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def visit(tokens_per_s: float, **more: Any) -> dict[str, Any]:
    """A row of a cell with what a row of verify has beside it."""
    row = {
        "schema_version": 1,
        "status": "ok",
        "completed": 10,
        "error_rate": 0.0,
        "output_throughput_tps": tokens_per_s,
        "ttft_p95_ms": 100.0,
        "tpot_p95_ms": None,
        "slo_met": True,
        "run": {"invalid_cause": None},
        "server": {"command": ["vllm"]},
    }
    return {**row, **more}


def outcome_file(recommended: list[dict[str, Any]], default: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What verify writes, cut to what matters; its own test posts a real one."""
    arms = {"recommended": recommended, "engine_default": default}
    content = {
        "schema_version": 1,
        "recommendation_id": None,
        "policy": None,
        "verdict": "confirmed",
        "reason": "said",
        "evidence": "measured-cpu",
        "gpu": "CPU",
        "model": "tiny",
        "workload": {"prompt_tokens": 64, "max_new_tokens": 8, "shared_prefix_ratio": 0.5, "concurrency": 2},
        "arms": {
            arm: {"arm": arm, "engine_args": {"max_num_seqs": 4}, "measured": {}, "visits": visits}
            for arm, visits in arms.items()
        },
        "machine": {},
    }
    return {**content, **more}


def test_a_report_is_stored_once_however_often_it_is_sent(own: Client) -> None:
    body = {**REPORT, "recommendation_id": ask(own)["recommendation_id"]}
    first, again = report(own, body), report(own, json.loads(json.dumps(body, sort_keys=True)))
    assert (first.status_code, again.status_code) == (200, 200)
    assert (first.json()["accepted"], first.json()["duplicates"], first.json()["matched"]) == (1, 0, True)
    assert (again.json()["accepted"], again.json()["duplicates"]) == (0, 1)
    assert first.json()["outcome_ids"] == again.json()["outcome_ids"]
    assert summary(own)["reports"] == 1


def test_a_later_window_is_another_report(own: Client) -> None:
    about = {**REPORT, "recommendation_id": ask(own)["recommendation_id"]}
    for end in (1_700_000_000, 1_700_000_900, 1_700_000_900):
        report(own, {**about, "measured": {**REPORT["measured"], "window_end_unix": end}})
    assert summary(own)["groups"][0]["observed"]["recommended"]["reports"] == 2


def test_a_report_id_makes_it_one_and_another_content_under_it_is_a_conflict(own: Client) -> None:
    body = {**REPORT, "recommendation_id": ask(own)["recommendation_id"], "report_id": "run-7"}
    assert report(own, body).json()["accepted"] == 1
    assert report(own, body).json()["duplicates"] == 1
    conflict = report(own, {**body, "measured": {"output_throughput_tps": 1.0}})
    assert (conflict.status_code, conflict.json()["error"]) == (409, "outcome_conflict")
    assert "measured" in conflict.json()["detail"]


def test_a_report_may_come_before_its_recommendation_is_on_record(own: Client, bundle_dir: Path) -> None:
    """As after a replay of the spool."""
    early = report(own, {**REPORT, "recommendation_id": "11111111-1111-4111-8111-111111111111"})
    assert early.json()["matched"] is False
    assert summary(own)["unmatched"] == 1
    state = own.app.state.api
    late = create_app(
        Settings(bundle_dir=bundle_dir, data_dir=Path(str(state.memory.database.url.database)).parent),
        new_id=lambda: "11111111-1111-4111-8111-111111111111",
        clock=lambda: 1_700_000_000.0,
    )
    ask(Client(late))
    content = summary(own)
    assert content["unmatched"] == 0
    assert content["groups"][0]["model"] == "Qwen/Qwen3-8B"


def test_project_and_endpoint_name_the_newest_recommendation_for_them(own: Client) -> None:
    headers = {"X-Project-ID": "search", "X-Endpoint-Name": "qwen"}
    ask(own, headers=headers)
    other = {**QUESTION, "model": {"name": "Qwen/Qwen3-4B"}}
    ask(own, question=other, headers=headers)
    ask(own, headers={"X-Project-ID": "search", "X-Endpoint-Name": "another"})
    answer = report(own, {**REPORT, "project": "search", "endpoint": "qwen"}).json()
    assert answer["matched"] is True
    (group,) = summary(own)["groups"]
    assert group["model"] == "Qwen/Qwen3-4B"
    assert summary(own, "?project=search")["reports"] == 1
    assert summary(own, "?project=chat")["reports"] == 0


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"recommendation_id": None}, "$"),
        ({"recommendation_id": None, "project": "search"}, "$"),
        ({"arm": "best"}, "$.arm"),
        ({"measured": {"output_throughput_tps": -1}}, "$.measured.output_throughput_tps"),
        ({"measured": {"error_rate": 1.5}}, "$.measured.error_rate"),
        ({"measured": {"surprise": 1}}, "$.measured.surprise"),
        ({"project": "a b"}, "$.project"),
        ({"surprise": 1}, "$.surprise"),
        ({"engine_args": {"a": [1]}}, "$.engine_args.a"),
    ],
)
def test_a_report_that_cannot_be_used_names_the_place(own: Client, change: dict[str, Any], path: str) -> None:
    problem = report(own, {"recommendation_id": "x", **REPORT, **change})
    assert problem.status_code == 422
    assert problem.json()["details"][0]["path"].startswith(path)


def test_too_few_pairs_are_not_enough_data(own: Client) -> None:
    for tokens_per_s in (5000.0, 6000.0):
        about = {"recommendation_id": ask(own)["recommendation_id"]}
        measured = {"output_throughput_tps": tokens_per_s}
        report(own, {**REPORT, **about, "measured": measured, "engine_args": {}})
        report(own, {**REPORT, **about, "arm": "engine_default", "measured": {"output_throughput_tps": 4000.0}})
    (group,) = summary(own)["groups"]
    assert group["expected"] is None
    assert group["comparison"] == {
        "status": "not enough data",
        "pairs": 2,
        "pairs_needed": 3,
        "throughput_ratio": None,
    }
    # By hand: mean 5500; one degree between two values, half width 12.706 · 707.1 / √2 = 6353.
    observed = group["observed"]["recommended"]["output_throughput_tps"]
    assert observed == pytest.approx({"mean": 5500.0, "low": 5500 - 6353, "high": 5500 + 6353, "n": 2})


def test_enough_pairs_are_compared_with_an_interval(own: Client) -> None:
    """Ratios 1, e^0.1 and e^0.2: mean of logarithms 0.1, deviation 0.1, half width 4.303 · 0.1 / √3 = 0.2484."""
    for exponent in (0.0, 0.1, 0.2):
        about = {"recommendation_id": ask(own)["recommendation_id"], "engine_args": {}}
        for arm, value in (("recommended", 1000 * math.exp(exponent)), ("engine_default", 1000.0)):
            report(own, {**about, "arm": arm, "measured": {"output_throughput_tps": value}})
    (group,) = summary(own)["groups"]
    assert (group["comparison"]["status"], group["recommendations"]) == ("compared", 3)
    ratio = group["comparison"]["throughput_ratio"]
    assert ratio["mean"] == pytest.approx(math.exp(0.1))
    assert ratio["low"] == pytest.approx(math.exp(0.1 - 0.2484), rel=1e-3)
    assert ratio["high"] == pytest.approx(math.exp(0.1 + 0.2484), rel=1e-3)


def test_a_recommended_arm_that_runs_other_arguments_counts_as_other(own: Client) -> None:
    answer = ask(own)
    right = {**REPORT, "recommendation_id": answer["recommendation_id"], "engine_args": answer["set"]}
    wrong = {**right, "engine_args": {**answer["set"], "max_num_seqs": 7}}
    report(own, right)
    report(own, wrong)
    (group,) = summary(own)["groups"]
    assert {arm: side["reports"] for arm, side in group["observed"].items()} == {"recommended": 1, "other": 1}
    assert group["not_as_recommended"] == 1


def test_shadow_mode_is_recorded_and_reported_apart(own: Client) -> None:
    for mode in ("apply", "shadow"):
        about = {"recommendation_id": ask(own, mode=mode)["recommendation_id"]}
        report(own, {**about, "arm": "engine_default", "engine_args": {}, "measured": {"output_throughput_tps": 1.0}})
    assert sorted(group["mode"] for group in summary(own)["groups"]) == ["apply", "shadow"]


def test_an_outcome_file_of_verify_is_accepted_as_it_is(own: Client) -> None:
    """Three visits a side, side by side: ratios 1.1, 1.2 and 1.3."""
    file = outcome_file([visit(1100.0), visit(1200.0), visit(1300.0)], [visit(1000.0)] * 3)
    answer = report(own, file)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["accepted"], answer.json()["matched"]) == (6, False)
    assert report(own, file).json()["duplicates"] == 6
    (group,) = summary(own)["groups"]
    assert (group["model"], group["gpu"], group["workload"]["concurrency"]) == ("tiny", "CPU", 2)
    assert group["comparison"]["pairs"] == 3
    assert group["comparison"]["throughput_ratio"]["mean"] == pytest.approx((1.1 * 1.2 * 1.3) ** (1 / 3))


def test_failed_and_invalid_visits_are_counted_and_not_averaged(own: Client) -> None:
    invalid = visit(9000.0, run={"invalid_cause": "client_saturated"})
    failed = visit(0.0, ttft_p95_ms=None, slo_met=False, status="failed")
    report(own, outcome_file([visit(1000.0), invalid, failed], [visit(1000.0)] * 3))
    (group,) = summary(own)["groups"]
    side = group["observed"]["recommended"]
    assert (side["reports"], side["failed"], side["invalid"]) == (3, 1, 1)
    assert side["output_throughput_tps"]["mean"] == 1000.0
    assert side["slo_met"] == 0.5
    assert group["comparison"]["pairs"] == 1


def test_outcomes_cannot_reach_the_ranker(own: Client) -> None:
    """The contract "What ranks cannot see outcomes" forbids the import; this is what follows from it."""
    before = ask(own)
    for arm, value in (("recommended", 0.0), ("engine_default", 1e9)):
        for number in range(20):
            measured = {"output_throughput_tps": value, "ttft_p95_ms": 1e9, "slo_met": False, "window_s": number}
            about = {"recommendation_id": before["recommendation_id"], "engine_args": before["set"]}
            assert report(own, {**about, "arm": arm, "measured": measured}).json()["accepted"] == 1
    after = ask(own)
    assert {**after, "recommendation_id": None} == {**before, "recommendation_id": None}
    # And a measured field in a question is still refused.
    refused = own.recommend({**QUESTION, "output_throughput_tps": 5.0})
    assert refused.json()["error"] == "measured_field"


def test_without_a_database_a_report_is_sent_again_later(bundle_dir: Path, tmp_path: Path) -> None:
    settings = Settings(bundle_dir=bundle_dir, data_dir=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none")
    away = Client(create_app(settings))
    for response in (report(away, {**REPORT, "recommendation_id": "x"}), away.get("/v1/outcomes/report")):
        assert (response.status_code, response.json()["error"]) == (503, "database_away")
        assert int(response.headers["Retry-After"]) > 0
    assert ask(away)["decision"] == "recommended"
    assert away.get("/readyz").json()["audit"] == "spool"


def test_what_was_expected_stands_beside_what_was_observed() -> None:
    """Two recommendations predicted 5,000 and 6,000 tokens per second; one of them said nothing of TTFT."""
    predicted: list[dict[str, Any]] = [
        {"output_throughput_tps": 5000.0, "ttft_p95_ms": 700.0},
        {"output_throughput_tps": 6000.0},
    ]
    reported = [
        (
            outcome(number, measured={"output_throughput_tps": 4000.0}),
            Asked(
                id=str(number),
                project=None,
                model="m",
                gpu="g",
                mode="apply",
                workload={"concurrency": 4},
                flags={},
                expected=expected,
            ),
        )
        for number, expected in enumerate(predicted)
    ]
    (group,) = summarise(reported, days=1).groups
    assert group.expected is not None
    assert group.expected.model_dump() == {
        "output_throughput_tps": 5500.0,
        "ttft_p95_ms": 700.0,
        "tpot_p95_ms": None,
        "recommendations": 2,
    }
    observed = group.observed["recommended"].output_throughput_tps
    assert observed is not None
    assert observed.mean == 4000.0


@pytest.mark.parametrize("name", OUTCOME_EXAMPLES)
def test_every_example_of_the_document_works_as_it_stands(own: Client, name: str) -> None:
    answer = report(own, OUTCOME_EXAMPLES[name]["value"])
    OutcomeAnswer.model_validate_json(answer.content)
    assert answer.json()["accepted"] == 1
