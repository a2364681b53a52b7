"""Every failure of the service is a skip with its reason, on a real server; and no secret stays behind anywhere."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from service.bundle import load_bundle
from service.db.database import open_database
from service.db.policies import activate
from service.hook_client import ask, patched
from tests.memory.server import Server
from tests.service.bundles import graph, random_layers, write_bundle
from tests.service.hooking import CREATION, creation
from tests.service.serving import free_port

PATIENCE_S = 60.0
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
SECRET = "hf_PlantedPlantedPlanted"
# Flags are recommended for this one, so that no reason to skip is left but what goes wrong.
MODEL = "Qwen/Qwen3-14B"
WORKLOAD = {"prompt_tokens": 6000, "max_new_tokens": 128, "shared_prefix_ratio": 0.7, "concurrency": 128}


def decide(server: Server, body: object, path: str = "/v1/hooks/endpoint-creation") -> dict[str, Any]:
    """The answer, which must have status 200."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        assert response.status == 200
        answer: dict[str, Any] = json.load(response)
        return answer


def numbered() -> Iterator[dict[str, Any]]:
    """Creations that differ, for as long as anybody wants to wait."""
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    while time.monotonic() < deadline:
        number += 1
        body = creation(f"--seed {number}")
        yield {**body, "request": {**body["request"], "model": MODEL}, "workload": WORKLOAD}


def until(server: Server, reason: str | None, *, among: set[str | None]) -> None:
    """Asks until the answer has that reason; on the way only those others may come."""
    for body in numbered():
        answer = decide(server, body)
        if answer["reason"] == reason:
            assert reason is None or (answer["decision"], answer["request_patch"]) == ("skip", {})
            return
        assert answer["reason"] in among
        time.sleep(0.05)
    raise AssertionError(f"never {reason}:\n{server.log}")


def test_an_unknown_model_is_a_skip(tmp_path: Path) -> None:
    with Server(tmp_path, hook_deadline_ms=60_000) as server:
        answer = decide(server, creation(request={**CREATION["request"], "model": "nobody/knows-it"}))
    assert (answer["decision"], answer["reason"]) == ("skip", "unknown_model")


def test_a_database_that_is_away_is_a_skip(tmp_path: Path) -> None:
    with Server(tmp_path, database_url=NOWHERE) as server:
        # Until the first attempt to connect has failed nothing is known; what is decided then goes to the spool.
        until(server, "database_away", among={None, "deadline"})


def test_a_full_spool_is_a_skip(tmp_path: Path) -> None:
    with Server(tmp_path, database_url=NOWHERE, spool_max_mib=0.07) as server:
        until(server, "audit_full", among={None, "deadline", "database_away"})


def test_a_commit_that_hangs_is_a_skip_at_the_deadline_and_over_when_it_ends(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        until(server, None, among={"deadline", "database_away"})
        database = open_database(None, data_dir=tmp_path)
        with database.transaction() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            until(server, "deadline", among={None, "database_away"})
            # What waits in the moment in which the journal turns to its spool is on record in time.
            until(server, "database_away", among={None, "deadline"})
        database.dispose()
        until(server, None, among={"deadline", "database_away"})


def test_an_activated_bundle_that_does_not_verify_is_a_skip(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", model=graph(random_layers(3)))
    with Server(tmp_path / "server", hook_deadline_ms=60_000) as server:
        server.stop()
        database = open_database(None, data_dir=server.folder)
        activate(database, load_bundle(bundle), now_ms=1, note=None)
        with database.transaction() as connection:
            connection.execute(text("UPDATE policy_bundle_files SET content = x'00' WHERE name = 'model.onnx'"))
        database.dispose()
        server.start()
        answer = decide(server, CREATION)
        assert (answer["decision"], answer["reason"]) == ("skip", "bad_bundle")
        # The policy of its own settings goes on answering questions.
        assert json.loads(server.get("/v1/policy"))["sha256"] == answer["policy_sha256"]


def test_a_server_that_hangs_or_is_gone_leaves_the_caller_s_request_as_it_was(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            hanging = ask(url, CREATION)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
    gone = ask(f"http://127.0.0.1:{free_port()}", CREATION)
    assert (hanging["reason"], gone["reason"]) == ("timeout", "unreachable")
    for answer in (hanging, gone):
        assert patched(CREATION["request"], answer) == CREATION["request"]


def planted() -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, body) of requests with a secret wherever somebody might put one."""
    path, request = "/v1/hooks/endpoint-creation", CREATION["request"]
    for changes in (
        {"hf_token": SECRET},
        {"env": {"HF_TOKEN": SECRET}, "resources": [SECRET]},
        {"model": SECRET},
        {"name": SECRET},
        {"workload_type": SECRET},
        {"cluster_id": SECRET},
        {"workload_config": {"extra_args": f"--hf-token {SECRET}"}},
        {"workload_config": {"extra_args": f"--api-k={SECRET}"}},
        {"workload_config": {"extra_args": f'--hf_overrides \'{{"token": "{SECRET}"}}\''}},
        {"workload_config": {"extra_args": f"--max-num-seqs {SECRET}"}},
        {"workload_config": {"max_num_seqs": SECRET, "hf_token": SECRET}},
    ):
        yield path, creation(request={**request, **changes})
    yield path, creation(project_id=SECRET)
    yield path, creation(catalog_entry={"env": {"HF_TOKEN": SECRET}, "vllm_config": {"max_num_seqs": SECRET}})
    yield path, creation(model_arch={"model_type": SECRET, "hf_token": SECRET})
    yield path, creation(model_arch={"weight_gb": SECRET})
    yield path, creation(context={**CREATION["context"], "gpu_product": SECRET})
    yield path, creation(context={**CREATION["context"], "engine_version": SECRET})
    yield path, creation(workload={**CREATION["workload"], "concurrency": SECRET})
    yield path, {**CREATION, "mode": SECRET}
    yield path, {**CREATION, SECRET: SECRET}
    annotations = {"memorypolicy.io/gpu": SECRET, "memorypolicy.io/workload": SECRET, "memorypolicy.io/mode": SECRET}
    container = {
        "name": "kserve-container",
        "args": ["--hf-token", SECRET],
        "env": [{"name": "HF_TOKEN", "value": SECRET}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    review = {
        "uid": "u",
        "operation": "CREATE",
        "object": {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": SECRET, "annotations": annotations},
            "spec": {"predictor": {"containers": [container]}},
        },
    }
    yield (
        "/webhooks/v1/mutate-inferenceservice",
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review},
    )


@pytest.mark.parametrize("database_url", [None, NOWHERE], ids=["database", "spool"])
def test_a_planted_secret_is_in_no_answer_no_log_no_record_and_no_spool(
    tmp_path: Path, database_url: str | None
) -> None:
    with Server(tmp_path, log_level="debug", hook_deadline_ms=60_000, database_url=database_url or "") as server:
        for number, (path, body) in enumerate(planted()):
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.port}{path}",
                data=json.dumps(body).encode(),
                headers={
                    "Content-Type": "application/json",
                    "Authorization": f"Bearer {SECRET}",
                    "X-Caller": SECRET,
                    "Idempotency-Key": f"{SECRET}-{number}",
                },
            )
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    seen = f"{response.headers} {response.read().decode()}"
            except urllib.error.HTTPError as error:
                seen = f"{error.headers} {error.read().decode()}"
            assert SECRET not in seen, body
        server.stop()
        assert SECRET not in server.log
    if database_url is None:
        database = open_database(None, data_dir=tmp_path)
        with database.transaction() as connection:
            tables = inspect(connection).get_table_names()
            content = repr([connection.execute(text(f"SELECT * FROM {table}")).all() for table in tables])
        database.dispose()
        assert "unknown_model" in content
        assert SECRET not in content
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
