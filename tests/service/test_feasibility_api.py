"""What fits, what does not and what would help, as the API says it. Numbers are worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from service.__main__ import main
from service.api.response_schemas import RecommendAnswer
from service.domain.gpu import GPUS
from tests.service.conftest import Client

Ask = Callable[[object], dict[str, Any]]
# 8,190,735,360 parameters of two bytes.
QWEN_8B_GIB = 16_381_470_720 / 2**30


def configured(answer: dict[str, Any], utilization: float, *, prefix_caching: bool = True) -> list[dict[str, Any]]:
    """Rows of one memory setting."""
    return [
        row
        for row in answer["ranked"]
        if row["engine_args"]["gpu_memory_utilization"] == utilization
        and row["engine_args"]["enable_prefix_caching"] is prefix_caching
    ]


def test_every_row_says_what_it_leaves_for_the_kv_cache_and_how_many_requests_that_holds(
    ask: Ask, question: dict[str, Any]
) -> None:
    answer = ask(question)
    RecommendAnswer.model_validate(answer)
    # 0.85 · 178 − 15.26 − 3.5 GiB; a block of 16 tokens takes 16 · 147,456 B; 512 + 256 tokens take 48 of them.
    free_gib = 0.85 * 178 - QWEN_8B_GIB - 3.5
    blocks = int(free_gib * 2**30 // (16 * 147_456))
    for row in configured(answer, 0.85):
        assert row["capacity"] == {
            "kv_cache_gib": pytest.approx(free_gib),
            "kv_cache_tokens": blocks * 16,
            "requests_that_fit": blocks // 48,
            "full_length_request_fits": True,
        }
    assert answer["memory"] == {
        "gpu_memory_gib": 178.0,
        "weights_gib": pytest.approx(QWEN_8B_GIB),
        "overhead_gib": 3.5,
        "cuda_graphs_gib": 0.75,
        "cuda_graphs": "inside",
        "context_tokens": 40_960,
    }


def test_a_common_prefix_makes_room_where_it_is_cached(ask: Ask, question: dict[str, Any]) -> None:
    question["workload"] = {"prompt_tokens": 3000, "max_new_tokens": 256, "shared_prefix_ratio": 0.9, "concurrency": 16}
    answer = ask(question)
    blocks = int((0.85 * 178 - QWEN_8B_GIB - 3.5) * 2**30 // (16 * 147_456))
    # 3,256 tokens are 204 blocks; 2,700 of them fill 168 in common.
    assert {row["capacity"]["requests_that_fit"] for row in configured(answer, 0.85)} == {(blocks - 168) // 36}
    [without] = configured(answer, 0.85, prefix_caching=False)
    assert without["capacity"]["requests_that_fit"] == blocks // 204


def test_the_case_r2_a_small_device_sinks_the_rows_that_do_not_start(ask: Ask, question: dict[str, Any]) -> None:
    # 8B on 24 GB: at 0.45 of 22 GiB not even the weights and the overhead have room.
    question |= {"gpu": "A10", "model": {"name": "Qwen/Qwen3-4B"}}
    answer = ask(question)
    assert answer["ranked"][0]["feasible"] is True
    low = configured(answer, 0.45)
    assert all(not row["feasible"] and row["capacity"]["full_length_request_fits"] is False for row in low)
    assert [row["rank"] for row in low] == list(range(10, 16))


def test_the_case_r2_70b_on_80_gb_says_what_would_help(ask: Ask, question: dict[str, Any]) -> None:
    question |= {"model": {"name": "meta-llama/Llama-3.1-70B-Instruct"}, "gpu": "H100"}
    answer = ask(question)
    assert answer["decision"] == "none_feasible"
    remedy = answer["shortfall"]["remedy"]
    # 131.4 GiB of weights do not fit in 71.1 whatever the context is. Of them 127.50 are in layers; in 8 bits 63.75 and
    # the other 3.92 leave no room beside 3.5, in 4 bits 38.25 leave 25.43: 5,208 blocks of 16 · 327,680 B.
    assert (remedy["max_model_len"], remedy["configurations"]) == (None, 0)
    assert (remedy["weight_bits"], remedy["weight_bits_max_model_len"]) == (4, 5208 * 16)
    # 131.4 + 40 + 3.5 = 174.9 GiB need 194.4 at 0.90.
    assert remedy["gpus"] == ["NVIDIA-B300-SXM6-AC"]
    said = " ".join(answer["warnings"])
    assert all(word in said for word in ("4 bits", "83,328", "tensor parallelism"))
    # Not every device of that memory knows every number format.
    assert "By memory alone it would fit on NVIDIA-B300-SXM6-AC." in answer["warnings"]


def test_a_cache_of_a_cpu_is_not_shared_by_gpus(ask: Ask, question: dict[str, Any]) -> None:
    # 40,960 tokens of 147,456 B are 5.6 GiB of the 4 that the cache is given.
    answer = ask(question | {"model": {"name": "Qwen/Qwen3-8B"}, "gpu": "CPU", "gpu_memory_gib": 4})
    assert answer["decision"] == "none_feasible"
    assert any("--max-model-len" in text for text in answer["warnings"])
    assert not any("GPUs" in text for text in answer["warnings"])


def test_fewer_bits_shrink_layers_and_no_adapter(ask: Ask, question: dict[str, Any]) -> None:
    question |= {"model": {"name": "meta-llama/Llama-3.1-70B-Instruct"}, "gpu": "H100", "adapter": {"rank": 64}}
    answer = ask(question)
    # 80 layers of q and o 8192², k and v 1024 · 8192, gate, up, down 8192 · 28,672, of which 4 bits take 0.3.
    layers_gib = 2 * 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28_672) / 2**30
    free_gib = 0.9 * 79 - 3.5 - (answer["memory"]["weights_gib"] - 0.7 * layers_gib)
    remedy = answer["shortfall"]["remedy"]
    blocks = int(free_gib * 2**30 // (16 * 327_680))
    assert (remedy["weight_bits"], remedy["weight_bits_max_model_len"]) == (4, blocks * 16)


def test_the_case_r3_a_context_that_does_not_fit_says_which_one_would(ask: Ask, question: dict[str, Any]) -> None:
    workload = {"prompt_tokens": 1800, "max_new_tokens": 200, "shared_prefix_ratio": 0.0, "concurrency": 64}
    question |= {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}, "gpu": "A10", "workload": workload}
    remedy = ask(question)["shortfall"]["remedy"]
    # 0.90 · 22 − 14.957 − 3.5 = 1.343 GiB: 687 blocks of 16 · 131,072 B.
    assert (remedy["max_model_len"], remedy["configurations"]) == (687 * 16, 2)
    # The smallest devices with 34.46 GiB at 0.90: 39 (A100 of 40 GB), and no V100 of 31.7.
    assert remedy["gpus"] == ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-L40S"]


@pytest.mark.parametrize("version", ["0.20.0", "0.21.0"])
def test_the_case_r5_the_version_decides_where_cuda_graphs_are_charged(
    ask: Ask, question: dict[str, Any], version: str
) -> None:
    answer = ask({**question, "engine_version": version})
    newest = ask(question)
    more = answer["engine_default_capacity"]["kv_cache_gib"] - newest["engine_default_capacity"]["kv_cache_gib"]
    assert answer["memory"]["cuda_graphs"] == ("outside" if version == "0.20.0" else "inside")
    assert more == pytest.approx(0.75 if version == "0.20.0" else 0.0)
    assert any("CUDA graphs" in text for text in answer["warnings"]) is (version == "0.20.0")
    assert any(f"engine_default is that of vLLM 0.28.0; {version} may differ" in text for text in answer["warnings"])


def test_the_case_r5_an_unknown_version_is_taken_for_the_newest_and_warned_about(
    ask: Ask, question: dict[str, Any]
) -> None:
    answer = ask({**question, "engine_version": "0.99.0"})
    assert answer["memory"] == ask(question)["memory"]
    assert any("memory rule are those of vLLM 0.28.0; 0.99.0 may differ in both" in text for text in answer["warnings"])


@pytest.mark.parametrize(
    ("gpu", "seqs", "tokens", "memory_gib"),
    [("A100", 256, 2048, 79.0), ("H100", 1024, 8192, 79.0), ("B200", 1024, 16384, 178.0)],
)
def test_the_case_r6_the_default_is_numbers_with_its_version(
    ask: Ask, question: dict[str, Any], gpu: str, seqs: int, tokens: int, memory_gib: float
) -> None:
    answer = ask({**question, "gpu": gpu})
    assert (answer["engine_default"]["max_num_seqs"], answer["engine_default"]["max_num_batched_tokens"]) == (
        seqs,
        tokens,
    )
    default = answer["engine_default_capacity"]
    assert default["engine_version"] == "0.28.0"
    assert default["available_gib"] == pytest.approx(0.92 * memory_gib)
    assert default["kv_cache_gib"] == pytest.approx(0.92 * memory_gib - QWEN_8B_GIB - 3.5)
    assert default["full_length_request_fits"] is True


def test_the_case_r7_without_chunked_prefill_a_budget_below_the_context_does_not_start(
    ask: Ask, question: dict[str, Any]
) -> None:
    question["workload"] = {
        "prompt_tokens": 16_384, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 16,
    }  # fmt: skip
    allowed = ask({**question, "fixed": {"max_num_batched_tokens": 2048}})
    assert allowed["ranked"][0]["feasible"] is True
    refused = ask({**question, "fixed": {"max_num_batched_tokens": 2048, "enable_chunked_prefill": False}})
    RecommendAnswer.model_validate(refused)
    assert (refused["decision"], refused["reason"], refused["shortfall"]) == (
        "none_feasible",
        "too_few_batched_tokens",
        None,
    )
    assert "40,960" in refused["summary"]
    assert refused["ranked"][0]["feasibility"] == {
        "reason": "too_few_batched_tokens",
        "arguments": ["max_num_batched_tokens"],
        "needed_gib": None,
        "available_gib": None,
    }
    assert "Leave chunked prefill on." in refused["warnings"]


def test_without_chunked_prefill_a_short_context_starts(ask: Ask, question: dict[str, Any]) -> None:
    # Numbers only: the context is unknown, and a request of the workload has 768 tokens.
    numbers = {"weight_gb": 16.38147072, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147_456}
    answer = ask({**question, "model": numbers, "fixed": {"enable_chunked_prefill": False}})
    assert answer["ranked"][0]["feasible"] is True
    assert any("keep --no-enable-chunked-prefill" in text for text in answer["warnings"])


def test_fixed_arguments_that_vllm_refuses_together_are_said(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"max_num_seqs": 1024, "max_num_batched_tokens": 512}})
    assert any("vLLM does not start with max_num_batched_tokens 512" in text for text in answer["warnings"])


@pytest.mark.parametrize("fixed", [{}, {"gpu_memory_utilization": None}])
def test_the_case_r4_utilization_left_out_is_null(ask: Ask, question: dict[str, Any], fixed: dict[str, Any]) -> None:
    assert ask({**question, "fixed": fixed})["ranked"] == ask(question)["ranked"]


def test_the_case_r4_all_of_the_memory_is_warned_about(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"gpu_memory_utilization": 1.0}})
    assert any("leaves nothing for the driver" in text for text in answer["warnings"])


def test_a_device_in_no_list_is_answered_for_with_its_memory(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "model": {"name": "Qwen/Qwen3-4B"}, "gpu": "RTX 3090", "gpu_memory_gib": 23.5})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    assert answer["support"]["out_of_range"][0]["value"] == "RTX 3090"
    assert answer["engine_default"]["max_num_batched_tokens"] == 2048
    assert answer["memory"]["gpu_memory_gib"] == 23.5
    # 7.49 GiB of weights, 40,960 tokens · 147,456 B and 3.5 GiB are 16.6: more than 0.45 of it, less than 0.85.
    assert [row["feasible"] for row in answer["ranked"]] == [True] * 9 + [False] * 6
    assert answer["engine_default_capacity"]["needed_gib"] == pytest.approx(8_044_936_192 / 2**30 + 5.625 + 3.5)


@pytest.mark.parametrize(
    ("memory_gib", "outside"),
    [(178.0, []), (161.0, []), (190.0, []), (160.0, ["gpu_memory_gib"]), (90.0, ["gpu_memory_gib"])],
)
def test_the_trained_device_with_another_memory_is_a_slice_of_it_or_another(
    ask: Ask, question: dict[str, Any], memory_gib: float, outside: list[str]
) -> None:
    answer = ask({**question, "gpu_memory_gib": memory_gib})
    assert [entry["feature"] for entry in answer["support"]["out_of_range"]] == outside
    assert answer["memory"]["gpu_memory_gib"] == memory_gib


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"gpu": "RTX 3090"}, "$.gpu"),
        ({"gpu": "x\r\nSet-Cookie: a=b", "gpu_memory_gib": 24.0}, "$.gpu"),
        ({"gpu": "hf_abcdefghijklmnopqrstuvwxyz", "gpu_memory_gib": 24.0}, "$.gpu"),
        ({"gpu_memory_gib": 0}, "$.gpu_memory_gib"),
        ({"gpu_memory_gib": 183_359.0}, "$.gpu_memory_gib"),
        ({"gpu_memory_gib": True}, "$.gpu_memory_gib"),
        ({"fixed": {"enable_chunked_prefill": "no"}}, "$.fixed.enable_chunked_prefill"),
    ],
)
def test_a_device_that_cannot_be_meant_is_refused_by_its_path(
    client: Client, question: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    response = client.recommend({**question, **change})
    assert response.status_code == 422
    assert response.json()["details"][0]["path"] == path


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_what_can_be_chosen_fits_and_what_cannot_comes_last(ask: Ask, question: dict[str, Any], gpu: Any) -> None:
    answer = ask({**question, "gpu": gpu.name, "model": {"name": "Qwen/Qwen3-14B"}})
    feasible = [row["feasible"] for row in answer["ranked"]]
    assert feasible == sorted(feasible, reverse=True)
    for row in answer["ranked"]:
        assert row["feasible"] is row["capacity"]["full_length_request_fits"]
        if not row["feasible"]:
            assert row["feasibility"]["needed_gib"] > row["feasibility"]["available_gib"]
    assert (answer["decision"] == "none_feasible") is not any(feasible)


def test_the_command_line_takes_the_memory_and_prints_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "recommend --model Qwen/Qwen3-8B --gpu MyGPU --gpu-memory-gib 48 --prompt-tokens 512 --max-new-tokens 256 "
        "--shared-prefix-ratio 0 --concurrency 64"
    )
    assert main(arguments.split()) == 0
    printed = capsys.readouterr().out
    # 0.92 · 48 − 15.26 − 3.5 GiB: 11,561 blocks of 16 · 147,456 B, and 48 of them a request.
    assert "engine default (vLLM 0.28.0)" in printed
    assert "starts, 25.4 GiB for 240 requests" in printed
