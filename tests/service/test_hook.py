"""The endpoint-creation hook fills what is open, leaves what is set, and skips wherever there is doubt."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from service.app import create_app
from service.settings import Settings
from tests.service.conftest import Client
from tests.service.hooking import CREATION, FOUR, creation, decided, post, requesting

QWEN_MOE = {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_experts": 128}
MAPPING = """
schema_version = 1
[clusters.east]
gpu = "NVIDIA-B200"
gpu_memory_gib = 180
engine_version = "0.28.0"
[namespaces.team]
gpu = "B200"
engine_version = "0.28.0"
[profiles.chat]
prompt_tokens = 512
max_new_tokens = 256
shared_prefix_ratio = 0.0
endpoint_concurrency = 100
[profiles.rag]
prompt_tokens = 6000
max_new_tokens = 128
shared_prefix_ratio = 0.7
endpoint_concurrency = 16
[models]
"Qwen/Qwen3-8B" = "chat"
[projects]
archive = "rag"
"""


@pytest.fixture
def own(bundle_dir: Path, tmp_path: Path) -> Client:
    (tmp_path / "mapping.toml").write_text(MAPPING)
    configured = Settings(
        bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000, hook_mapping_file=tmp_path / "mapping.toml"
    )
    return Client(create_app(configured, clock=lambda: 1_700_000_000.5))


def rows(client: Client, table: str) -> list[dict[str, Any]]:
    with client.app.state.api.memory.database.transaction() as connection:
        return [dict(row) for row in connection.execute(text(f"SELECT * FROM {table}")).mappings()]


def test_with_nothing_pinned_all_four_are_set_before_the_user_s_words(client: Client) -> None:
    answer = decided(client, creation("--served-model-name  'my model'"))
    assert (answer["decision"], answer["reason"], answer["pinned"]) == ("apply", None, {})
    assert len(answer["cli_args"]) == 4
    assert answer["request_patch"] == {
        "workload_config": {"extra_args": " ".join([*answer["cli_args"], "--served-model-name  'my model'"])}
    }
    assert answer["selected_rank"] == 1


def test_the_ranking_is_that_of_the_recommendation(client: Client) -> None:
    hook = decided(client, creation("--max-num-seqs 128"))
    question = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "gpu": "NVIDIA-B200",
        "workload": CREATION["workload"],
        "fixed": {"max_num_seqs": 128},
    }
    assert hook["engine_args"] == client.recommend(question).json()["set"]


def test_a_pinned_value_conditions_the_choice_and_is_left_alone(client: Client) -> None:
    answer = decided(client, creation("--no-enable-prefix-caching"))
    # Two candidates have prefix caching off: 256/8192/0.90 and 128/2048/0.85.
    assert answer["engine_args"] in (
        {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9},
        {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.85},
    )
    assert answer["pinned"] == {"enable_prefix_caching": False}
    (left,) = answer["skipped"]
    assert (left["flag"], left["reason"]) == ("enable_prefix_caching", "user_set")


def test_a_null_is_not_set(client: Client) -> None:
    body = requesting(workload_config={"max_num_seqs": None, "extra_args": None})
    assert decided(client, body)["pinned"] == {}


def test_without_a_workload_config_the_patch_makes_one(client: Client) -> None:
    answer = decided(client, requesting(workload_config=None))
    assert answer["request_patch"] == {"workload_config": {"extra_args": " ".join(answer["cli_args"])}}


def test_applying_the_patch_and_asking_again_changes_nothing(client: Client) -> None:
    first = decided(client, creation("--seed 3"))
    again = decided(client, creation(first["request_patch"]["workload_config"]["extra_args"]))
    assert (again["decision"], again["reason"], again["request_patch"]) == ("skip", "all_pinned", {})


def test_the_user_goes_before_the_operator_s_catalogue_and_both_before_us(client: Client) -> None:
    entry = {"vllm_config": {"max_num_seqs": 512, "enable_prefix_caching": True}, "anything": 1}
    answer = decided(client, creation("--max-num-seqs 128", catalog_entry=entry))
    assert answer["pinned"] == {"max_num_seqs": 128, "enable_prefix_caching": True}
    assert {left["flag"]: left["reason"] for left in answer["skipped"]} == {
        "max_num_seqs": "user_set",
        "enable_prefix_caching": "catalog_set",
    }


def test_the_catalogue_may_be_configured_to_win(bundle_dir: Path, tmp_path: Path) -> None:
    own = Client(
        create_app(
            Settings(bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000, hook_precedence="catalog")
        )
    )
    entry = {"vllm_config": {"max_num_seqs": 512}}
    answer = decided(own, creation("--max-num-seqs 128", catalog_entry=entry))
    assert answer["pinned"] == {"max_num_seqs": 512}
    assert answer["skipped"][0]["reason"] == "catalog_set"


def test_shadow_decides_and_records_and_patches_nothing(own: Client) -> None:
    answer = decided(own, creation(mode="shadow"))
    assert (answer["decision"], answer["reason"], answer["request_patch"]) == ("shadow", None, {})
    assert len(answer["engine_args"]) == 4
    (row,) = rows(own, "hook_decisions")
    assert (row["mode"], row["decision"]) == ("shadow", "shadow")


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("unsupported_workload_type", requesting(workload_type="SGLANG")),
        ("unsupported_workload_type", requesting(workload_type=None)),
        ("not_one_gpu", requesting(gpu=2)),
        ("not_one_gpu", creation("-tp 2")),
        ("not_one_gpu", requesting(workload_config={"tensor_parallel": 4})),
        ("unsupported_engine", creation(context={**CREATION["context"], "engine": "sglang"})),
        ("unknown_gpu", creation(context={"engine_version": "0.28.0"})),
        ("unknown_gpu", creation(context={"gpu_product": "TPU", "engine_version": "0.28.0"})),
        ("unknown_engine_version", creation(context={"gpu_product": "B200"})),
        ("unknown_model", requesting(model="nobody/knows-it")),
        ("unknown_model", requesting(model=None)),
        ("unsupported_model", creation(model_arch=QWEN_MOE)),
        ("no_workload", creation(workload=None)),
        ("workload_exceeds_context", requesting(workload_config={"max_model_len": 1000})),
        ("user_config_file", creation("--config engine.yaml")),
        ("unparsable_args", creation("--max-num-seqs '3")),
        ("unparsable_args", creation("sh -c 'vllm serve'")),
        ("unparsable_args", requesting(workload_config=[])),
        ("unparsable_args", requesting(workload_config={"extra_args": 3})),
        ("unparsable_args", creation("x " * 10_000)),
        ("unparsable_args", creation("--a" + ".b" * 4_000 + " 1")),
        ("unsupported_args", creation("--quantization fp8")),
        ("unsupported_args", creation("--performance-mode throughput")),
        ("unsupported_args", creation("--no-enable-chunked-prefill")),
        ("unsupported_args", creation("--block-size 64")),
        ("unsupported_args", creation("--hf-overrides.max_position_embeddings 2048")),
        ("unsupported_args", requesting(workload_config={"attention_backend": "TRITON_ATTN"})),
        ("unsupported_args", creation(catalog_entry={"vllm_config": {"scheduling_policy": "priority"}})),
        ("conflicting_args", creation("--model another/one")),
        ("conflicting_args", requesting(workload_config={"max_num_seqs": 3, "extra_args": "--max-num-seqs 4"})),
        ("all_pinned", creation(FOUR)),
        ("no_candidate_matches_fixed", creation("--max-num-seqs 77")),
        ("out_of_support", creation(context={**CREATION["context"], "gpu_product": "H100"})),
        ("out_of_support", creation(context={**CREATION["context"], "engine_version": "0.27.0"})),
        ("out_of_support", creation(context={**CREATION["context"], "gpu_memory_gib": 90})),
        ("out_of_support", creation(workload={**CREATION["workload"], "concurrency": 4096})),
        # 158.8 GiB of weights and 3.5: more than 0.90 of 178 GiB, less than vLLM's 0.92.
        ("only_engine_default_starts", creation(model_arch={
            "weight_gb": 170.5, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456})),
        ("none_feasible", creation("--gpu-memory-utilization 0.1")),
        ("none_feasible", creation(model_arch={
            "weight_gb": 400.0, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456})),
    ],
)  # fmt: skip
def test_a_doubt_is_a_skip_with_its_reason_and_an_empty_patch(client: Client, reason: str, body: object) -> None:
    answer = decided(client, body)
    assert (answer["decision"], answer["reason"]) == ("skip", reason)
    assert (answer["request_patch"], answer["engine_args"], answer["cli_args"], answer["renders"]) == ({}, {}, [], {})


def test_four_numbers_or_a_config_describe_a_model_that_no_catalogue_has(client: Client) -> None:
    numbers = {"weight_gb": 16.381, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456}
    body = {**requesting(model="ours/private"), "model_arch": numbers}
    assert decided(client, body)["decision"] == "apply"


def test_the_catalogue_s_body_is_ready_to_send(client: Client) -> None:
    rendered = decided(client, creation(catalog_entry={"version": 7}))["renders"]["metis_catalog"]
    assert rendered.keys() == {"model_name", "enabled", "vllm_config", "env", "source", "notes", "version"}
    assert len(rendered["vllm_config"]) == 4


def test_the_mapping_says_what_the_request_does_not(own: Client) -> None:
    body = creation(context=None, workload=None)
    body["request"] |= {"cluster_id": "east", "max_replica": 3}
    assert decided(own, body)["decision"] == "apply"
    (row,) = rows(own, "recommendations")
    question = json.loads(row["request"])
    # 100 clients of the endpoint over 3 replicas are 34 for the busiest.
    assert question["workload"]["concurrency"] == 34
    assert question["gpu"] == "NVIDIA-B200"


def test_a_project_s_profile_goes_before_the_model_s(own: Client) -> None:
    body = creation(context={"namespace": "team"}, workload=None, project_id="archive")
    assert decided(own, body)["decision"] == "apply"
    (row,) = rows(own, "recommendations")
    assert json.loads(row["request"])["workload"]["prompt_tokens"] == 6000


def test_what_the_caller_says_goes_before_the_mapping(own: Client) -> None:
    body = creation(context={**CREATION["context"], "cluster": "east", "gpu_product": "H100"})
    assert decided(own, body)["reason"] == "out_of_support"


def test_the_decision_and_the_ranking_behind_it_are_on_record(own: Client) -> None:
    answer = decided(own, CREATION, X_Caller="metis")
    (decision,) = rows(own, "hook_decisions")
    (recommendation,) = rows(own, "recommendations")
    assert (decision["id"], decision["decision"]) == (answer["decision_id"], "apply")
    assert decision["recommendation_id"] == recommendation["id"] == answer["recommendation_id"]
    assert (decision["caller"], decision["project"], decision["endpoint"]) == ("metis", "search", "my-vllm-endpoint")
    assert json.loads(decision["answer"]) == answer


def test_a_skip_is_on_record_too(own: Client) -> None:
    decided(own, creation("--config x"))
    (decision,) = rows(own, "hook_decisions")
    assert (decision["decision"], decision["reason"], decision["recommendation_id"]) == (
        "skip",
        "user_config_file",
        None,
    )


def test_the_same_content_is_one_decision_however_its_members_are_ordered(own: Client) -> None:
    reordered = dict(reversed(CREATION.items()))
    assert decided(own, CREATION) == decided(own, reordered)
    assert len(rows(own, "hook_decisions")) == 1
    assert len(rows(own, "recommendations")) == 1


def test_a_key_is_answered_the_same_by_a_process_that_never_saw_it(bundle_dir: Path, tmp_path: Path) -> None:
    configured = Settings(bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000)
    first = decided(Client(create_app(configured)), CREATION, Idempotency_Key="k-1")
    again = Client(create_app(configured.model_copy(update={"hook_precedence": "catalog"})))
    assert decided(again, CREATION, Idempotency_Key="k-1") == first
    assert len(rows(again, "hook_decisions")) == 1


def test_a_key_that_was_used_for_another_request_is_refused(own: Client) -> None:
    decided(own, CREATION, Idempotency_Key="k-1")
    problem = post(own, creation("--seed 3"), Idempotency_Key="k-1")
    assert (problem.status_code, problem.json()["error"]) == (409, "idempotency_conflict")
    assert {"error", "message", "request_id", "timestamp", "details"} <= problem.json().keys()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("$.hook_version", {**CREATION, "hook_version": "v2"}),
        ("$.event", {**CREATION, "event": "endpoint.deleting"}),
        ("$.mode", {**CREATION, "mode": "force"}),
        ("$.request", {**CREATION, "request": []}),
        ("$.context.gpus", {**CREATION, "context": {"gpus": 1}}),
        ("$.workload.ttft_p95", {**CREATION, "workload": {**CREATION["workload"], "ttft_p95": 3}}),
        ("$.extra", {**CREATION, "extra": 1}),
    ],
)
def test_an_envelope_that_is_wrong_is_refused_by_its_place(client: Client, path: str, body: object) -> None:
    problem = post(client, body)
    assert (problem.status_code, problem.json()["details"][0]["path"]) == (422, path)
    assert problem.json()["details"][0]["value"] is None


def test_foreign_parts_may_hold_anything(client: Client) -> None:
    body = creation(catalog_entry={"vllm_config": {"ttft_p95": 3}, "x": {"kv_cache_usage": 1}})
    body["request"]["slo_met"] = True
    assert decided(client, body)["decision"] == "apply"


def test_the_catalogue_s_own_extra_args_are_the_operator_s(client: Client) -> None:
    entry = {"vllm_config": {"extra_args": "--max_num_seqs 512 --no-enable-prefix"}}
    answer = decided(client, creation("--enable-prefix-caching", catalog_entry=entry))
    assert answer["pinned"] == {"max_num_seqs": 512, "enable_prefix_caching": True}
    assert [left["reason"] for left in answer["skipped"]] == ["catalog_set", "user_set"]


@pytest.mark.parametrize(
    "extra_args",
    [
        "--max-num-batched-tokens " + "9" * 400 + "k",
        "--max-num-seqs " + "9" * 5000,
        "--hf-overrides.a " + "[" * 5000,
        "--hf-overrides.a " + "9" * 400 + "k",
        "--enable-prefix-cachin " * 400,
        "eyJ-" * 4000,
    ],
)
def test_a_hostile_string_costs_a_skip(client: Client, extra_args: str) -> None:
    assert decided(client, creation(extra_args))["reason"] in ("unparsable_args", "secret_in_args", None)


def test_a_body_beyond_the_limit_is_refused(client: Client) -> None:
    body = requesting(description="x" * 2**20)
    assert (post(client, body).status_code, post(client, body).json()["error"]) == (413, "payload_too_large")


def test_no_call_leaves_the_process(own: Client) -> None:
    connected: list[object] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
            connected.append((event, arguments))

    sys.addaudithook(watch)
    decided(own, CREATION, Idempotency_Key="k")
    decided(own, requesting(model="nobody/knows-it"))
    watching = False
    assert connected == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("-_=.'\" \\abenmqs0129{}[]:,+$") | st.characters(codec="utf-8"), max_size=60))
def test_no_string_of_a_user_is_answered_with_anything_but_a_decision(client: Client, extra_args: str) -> None:
    answer = decided(client, creation(extra_args))
    assert answer["reason"] != "internal"
    if answer["decision"] == "apply":
        assert answer["request_patch"]["workload_config"]["extra_args"].endswith(
            extra_args if extra_args.strip() else ""
        )


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*CREATION["request"], "cluster_id", "max_replica", "hf_token"]),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda x: st.lists(x, max_size=3)
                     | st.dictionaries(st.sampled_from(["extra_args", "max_num_seqs", "max_model_len", "x"]), x)),
    )
)  # fmt: skip
def test_no_request_of_a_platform_is_answered_with_anything_but_a_decision(
    client: Client, request_part: dict[str, Any]
) -> None:
    answer = decided(client, creation(request=request_part))
    assert answer["decision"] in ("apply", "skip")
    assert answer["reason"] != "internal"
