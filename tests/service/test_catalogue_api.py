"""What the service says about itself: candidates, models, policy, health."""

import hashlib
import json
from pathlib import Path

import pytest

from service.domain.manifest import MANIFEST_FILE
from tests.service.bundles import EVALUATION
from tests.service.conftest import Client


def test_the_fifteen_configs_come_in_their_order_with_the_engine_default(client: Client) -> None:
    answer = client.get("/v1/configs").json()
    assert [entry["index"] for entry in answer["configs"]] == list(range(15))
    assert answer["configs"][0] == {
        "index": 0,
        "config_id": "s256-b8192-g0.90-p1",
        "engine_args": {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": True,
        },
        "cli_args": [
            *("--max-num-seqs=256", "--max-num-batched-tokens=8192"),
            *("--gpu-memory-utilization=0.9", "--enable-prefix-caching"),
        ],
    }
    assert answer["configs"][14]["cli_args"][-1] == "--no-enable-prefix-caching"
    default = answer["engine_default"]
    assert (default["gpu"], default["engine_version"]) == ("NVIDIA-B200", "0.28.0")
    assert default["engine_args"]["max_num_seqs"] == 1024


def test_the_models_carry_the_published_numbers(client: Client) -> None:
    models = {entry["id"]: entry for entry in client.get("/v1/models").json()["models"]}
    assert len(models) >= 16
    small = models["Qwen/Qwen3-0.6B"]
    assert (small["parameters"], small["num_layers"], small["hidden_size"]) == (596_049_920, 28, 1024)
    assert (small["weight_gb"], small["kv_bytes_per_token"]) == (pytest.approx(1.19209984), 114_688)
    assert small["max_context"] == 40_960
    assert "@" in small["source"]


def found(client: Client, **parameters: object) -> list[str]:
    """Ids that GET /v1/models lists."""
    answer = client.get("/v1/models", params=parameters).json()
    return [entry["id"] for entry in answer["models"]]


@pytest.mark.parametrize("q", ["qwen/qwen3-8b", "QWEN/QWEN3-8B", " qwen/qwen3-8b ", "8b qwen/qwen3-"])
def test_models_are_searched_without_regard_to_case_or_order(client: Client, q: str) -> None:
    ids = found(client, q=q)
    assert ids[0] == "Qwen/Qwen3-8B"
    assert all("qwen3" in name.casefold() and "8b" in name.casefold() for name in ids)


def test_models_are_found_by_family_kind_and_quantisation(client: Client) -> None:
    assert "deepseek-ai/DeepSeek-V3" in found(client, q="mla deepseek_v3 fp8")
    assert "openai/gpt-oss-120b" in found(client, q="mxfp4")
    moe = client.get("/v1/models?q=moe qwen3_moe").json()["models"]
    assert moe
    assert {entry["kind"] for entry in moe} == {"moe"}


def test_a_search_without_a_hit_is_an_empty_list(client: Client) -> None:
    assert client.get("/v1/models?q=no-such-model").json() == {"total": 0, "models": []}


def test_pages_join_to_the_whole_list(client: Client) -> None:
    whole = client.get("/v1/models").json()
    assert whole["total"] == len(whole["models"]) > 100
    pages = [found(client, limit=50, offset=start) for start in range(0, whole["total"], 50)]
    assert [name for page in pages for name in page] == [entry["id"] for entry in whole["models"]]
    assert client.get("/v1/models?limit=1&offset=100000").json() == {"total": whole["total"], "models": []}


def test_an_entry_says_whether_the_policy_was_trained_for_models_like_it(client: Client) -> None:
    entries = {entry["id"]: entry for entry in client.get("/v1/models").json()["models"]}
    assert entries["Qwen/Qwen3-8B"]["support"] == {"in_distribution": True, "out_of_range": []}
    deepseek = entries["deepseek-ai/DeepSeek-V3"]
    assert (deepseek["kind"], deepseek["origin"]) == ("mla", "built_in")
    assert {"architecture", "quantisation", "weight_gb"} <= set(deepseek["support"]["out_of_range"])
    assert deepseek["active_parameters"] < deepseek["parameters"] / 10


def test_the_policy_shows_its_manifest_and_evaluation(client: Client, bundle_dir: Path) -> None:
    answer = client.get("/v1/policy").json()
    manifest = (bundle_dir / MANIFEST_FILE).read_bytes()
    assert answer["sha256"] == hashlib.sha256(manifest).hexdigest()
    assert answer["manifest"] == json.loads(manifest)
    assert answer["evaluation"] == EVALUATION


def test_the_policy_is_not_sent_twice_to_one_who_has_it(client: Client) -> None:
    etag = client.get("/v1/policy").headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get("/v1/policy", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get("/v1/policy", headers={"If-None-Match": '"other"'}).status_code == 200


def test_health_readiness_and_version(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz").json()
    assert ready["status"] == "ready"
    assert ready["policy_sha256"] == client.get("/v1/policy").json()["sha256"]
    version = client.get("/version").json()
    assert (version["engine_version"], version["policy"]) == ("0.28.0", "1.2.3")
