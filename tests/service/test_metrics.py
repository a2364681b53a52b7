"""What /metrics counts, by labels that no request can multiply."""

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import __version__
from service.api.metrics import Metrics
from service.app import create_app
from service.bundle import load_bundle
from service.policies import Policies, load_policy
from service.settings import Settings
from tests.memory.server import PATIENCE_S, Server
from tests.service.bundles import write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import CREATION, creation, decided, post
from tests.service.test_workers import all_started, eventually, replaced, workers

OUTSIDE = {**QUESTION, "workload": {**QUESTION["workload"], "concurrency": 100_000}}


@pytest.fixture
def own(bundle_dir: Path, tmp_path: Path) -> Client:
    """A client of an application that nobody else asks."""
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000)))


def values(text: str, name: str, **labels: str) -> float:
    """The sum of the series of that name with those labels; 0 where there is none."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def read(client: Client, name: str, **labels: str) -> float:
    """The same, of a scrape."""
    return values(client.get("/metrics").text, name, **labels)


def test_requests_are_counted_and_timed_by_route_method_and_status(own: Client) -> None:
    for _ in range(3):
        own.recommend(QUESTION)
    own.recommend(b"no JSON")
    route = "/v1/recommend"
    assert read(own, "memorypolicy_http_requests_total", route=route, method="POST", status="200") == 3
    assert read(own, "memorypolicy_http_requests_total", route=route, method="POST", status="400") == 1
    assert read(own, "memorypolicy_http_request_seconds_count", route=route) == 4
    # A quarter of an hour is more than any of them took, and none took less than nothing.
    assert 0 < read(own, "memorypolicy_http_request_seconds_sum", route=route) < 900


def test_what_a_path_holds_never_becomes_a_label(own: Client) -> None:
    for path in ("/docs/assets/planted-1.css", "/planted-2", "/v1/planted-3?planted=4", "/v1/recommend/planted-5"):
        own.get(path)
    own.request("PLANTED", "/v1/recommend")
    text = own.get("/metrics").text
    assert "lanted" not in text.lower()
    assert values(text, "memorypolicy_http_requests_total", route="/docs/assets/{name}", status="404") == 1
    assert values(text, "memorypolicy_http_requests_total", route="unmatched") == 3
    assert values(text, "memorypolicy_http_requests_total", method="other") == 1


def test_a_request_that_is_refused_before_it_is_routed_is_counted_at_its_route(
    bundle_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(bundle_dir=bundle_dir, data_dir=tmp_path, rate_limit_per_s=0.001)
    client = Client(create_app(settings))
    while client.get("/v1/models").status_code == 200:
        pass
    metrics = client.app.state.api.metrics.exposition().decode()
    assert values(metrics, "memorypolicy_http_requests_total", route="/v1/models", status="429") == 1


def test_decisions_are_counted_by_door_and_reason(own: Client) -> None:
    own.recommend(QUESTION)
    own.recommend(OUTSIDE)
    decided(own, CREATION)
    decided(own, creation(mode="shadow"))
    decided(own, creation(context=None))
    text = own.get("/metrics").text

    def count(**labels: str) -> float:
        return values(text, "memorypolicy_decisions_total", **labels)

    assert count(door="recommend", decision="recommended", reason="none") == 1
    assert count(door="recommend", decision="keep_engine_default", reason="out_of_support") == 1
    assert count(door="endpoint-creation", decision="apply", reason="none") == 1
    assert count(door="endpoint-creation", decision="shadow", reason="none") == 1
    assert count(door="endpoint-creation", decision="skip", reason="unknown_gpu") == 1
    assert count() == 5


def test_the_figures_of_a_reason_are_no_label(own: Client) -> None:
    huge = {"weight_gb": 900, "num_layers": 100, "hidden_size": 16_384, "kv_bytes_per_token": 500_000}
    answer = own.recommend({**QUESTION, "model": huge}).json()
    assert answer["reason"].startswith("kv_cache_too_small: ")
    assert read(own, "memorypolicy_decisions_total", decision="none_feasible", reason="kv_cache_too_small") == 1


def test_the_same_key_again_is_no_new_decision(own: Client) -> None:
    for _ in range(3):
        assert post(own, CREATION, Idempotency_Key="once").status_code == 200
    assert read(own, "memorypolicy_decisions_total", door="endpoint-creation") == 1


def test_a_failure_that_becomes_a_skip_is_counted_once(bundle_dir: Path, tmp_path: Path) -> None:
    # The spool holds nothing, and there is no database: no record can become durable.
    nowhere = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    settings = Settings(
        bundle_dir=bundle_dir, data_dir=tmp_path, database_url=nowhere, spool_max_mib=0.0001, hook_deadline_ms=60_000
    )
    client = Client(create_app(settings))
    answer = decided(client, CREATION)
    assert answer["decision"] == "skip"
    assert read(client, "memorypolicy_decisions_total", decision="skip") == 1
    assert read(client, "memorypolicy_decisions_total", decision="apply") == 0


def test_features_outside_the_training_range_are_counted_by_name(own: Client) -> None:
    own.recommend(QUESTION)
    answers = [own.recommend(OUTSIDE).json() for _ in range(2)]
    names = {entry["feature"] for entry in answers[0]["support"]["out_of_range"]}
    assert names
    text = own.get("/metrics").text
    for name in names:
        assert values(text, "memorypolicy_out_of_support_total", feature=name) == 2
    assert values(text, "memorypolicy_out_of_support_total") == 2 * len(names)


def test_a_ranking_is_timed_and_a_refused_question_is_not(own: Client) -> None:
    own.recommend(QUESTION)
    decided(own, CREATION)
    own.recommend({})
    decided(own, creation(context=None))
    assert read(own, "memorypolicy_rank_seconds_count") == 2


def test_the_bundle_and_the_release_that_answer_are_named(own: Client, bundle_dir: Path) -> None:
    bundle = load_bundle(bundle_dir)
    text = own.get("/metrics").text
    named = {
        "version": bundle.manifest.version,
        "sha256": bundle.sha256,
        "gpu": bundle.manifest.gpu,
        "engine_version": bundle.manifest.engine_version,
        "evidence": bundle.manifest.evidence,
    }
    assert values(text, "memorypolicy_bundle_info", **named) == 1
    assert values(text, "memorypolicy_policy_info", sha256=bundle.sha256) == 1
    assert values(text, "memorypolicy_build_info", version=__version__) == 1


def test_after_a_swap_the_earlier_bundle_is_at_0(own: Client, bundle_dir: Path, tmp_path: Path) -> None:
    own.get("/metrics")
    other = load_policy(write_bundle(tmp_path / "other", version="another"))
    own.app.state.api = own.app.state.api.with_policies(Policies(other))
    text = own.get("/metrics").text
    assert values(text, "memorypolicy_policy_info", sha256=other.bundle.sha256) == 1
    assert values(text, "memorypolicy_policy_info", sha256=load_bundle(bundle_dir).sha256) == 0
    assert values(text, "memorypolicy_policy_info") == values(text, "memorypolicy_bundle_info") == 1


def test_the_spool_is_shown_beside_its_limit(bundle_dir: Path, tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    client = Client(
        create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, database_url=nowhere, spool_max_mib=2))
    )
    client.recommend(QUESTION)
    assert read(client, "memorypolicy_audit_spool_limit_bytes") == 2 * 2**20
    size = sum(file.stat().st_size for file in (tmp_path / "spool").iterdir())
    assert read(client, "memorypolicy_audit_spool_bytes") == size > 0
    assert read(client, "memorypolicy_audit_database_away") == 1


def test_without_an_audit_nothing_is_said_of_one(bundle_dir: Path, tmp_path: Path) -> None:
    text = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, audit=False))).get("/metrics").text
    assert "memorypolicy_audit" not in text
    assert "memorypolicy_policy_swaps_total 0" in text


def test_draining_is_shown(own: Client) -> None:
    assert read(own, "memorypolicy_draining") == 0
    own.app.state.drain.begun = True
    assert read(own, "memorypolicy_draining") == 1


def test_two_applications_of_one_process_count_apart(own: Client, bundle_dir: Path, tmp_path: Path) -> None:
    other = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path / "other")))
    own.recommend(QUESTION)
    assert read(own, "memorypolicy_rank_seconds_count") == 1
    assert read(other, "memorypolicy_rank_seconds_count") == 0


def test_a_ranking_is_told_to_whoever_asked_for_it() -> None:
    told: list[float] = []
    Metrics(on_ranking=told.append).observe_ranking(0.25)
    assert told == [0.25]


def test_any_of_several_processes_tells_what_all_of_them_counted(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    # Inherited by both: what the parent of several workers sets.
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(shared))
    settings: dict[str, Any] = {"bundle_dir": bundle_dir}
    with Server(tmp_path / "a", **settings) as first, Server(tmp_path / "b", **settings) as second:
        for server, requests in ((first, 3), (second, 2)):
            for _ in range(requests):
                ask(server)
        # Requests are counted at once, what is read off the journal within a second or so.
        expected = {
            'memorypolicy_http_requests_total{method="POST",route="/v1/recommend",status="200"}': 5,
            "memorypolicy_rank_seconds_count": 5,
            'memorypolicy_audit_records_total{outcome="committed"}': 5,
            # Sums of sizes, but one bundle for both.
            "memorypolicy_audit_spool_limit_bytes": 2 * 64 * 2**20,
            f'memorypolicy_policy_info{{sha256="{load_bundle(bundle_dir).sha256}"}}': 1,
            "memorypolicy_policy_refused": 0,
        }
        for server in (first, second):
            deadline = time.monotonic() + PATIENCE_S
            while (found := {name: server.counter(name) for name in expected}) != expected:
                assert time.monotonic() < deadline, found
                time.sleep(0.1)


@pytest.mark.parametrize("told", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_gone_leaves_its_counts_and_takes_its_state_along(
    bundle_dir: Path, tmp_path: Path, told: signal.Signals
) -> None:
    expected = {
        'memorypolicy_http_requests_total{method="POST",route="/v1/recommend",status="200"}': 6,
        'memorypolicy_audit_records_total{outcome="committed"}': 6,
        "memorypolicy_audit_spool_limit_bytes": 2 * 64 * 2**20,
        f'memorypolicy_policy_info{{sha256="{load_bundle(bundle_dir).sha256}"}}': 1,
        "memorypolicy_draining": 0,
    }

    def as_expected() -> bool:
        return {name: server.counter(name) for name in expected} == expected

    with workers(tmp_path, bundle_dir=bundle_dir, drain_s=0.2) as server:
        eventually(lambda: all_started(server), server)
        for _ in range(6):
            ask(server)
        eventually(as_expected, server)
        replaced(server, told)
        eventually(as_expected, server)


def ask(server: Server) -> None:
    """One question to a real process."""
    response = httpx.post(f"http://127.0.0.1:{server.port}/v1/recommend", json=QUESTION, timeout=PATIENCE_S)
    assert response.status_code == 200
