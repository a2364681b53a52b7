"""The context and the further arguments of a question: respected, or refused, or outside of what was learnt."""

from collections.abc import Callable
from typing import Any

import pytest

from service.api.argument_effects import FOREIGN, KNOWN, NEUTRAL, PARALLEL, SAME_QUESTION, WORTH_A_WARNING
from service.recommend import ENGINE_ARGUMENTS
from tests.service.conftest import Client

Ask = Callable[[object], dict[str, Any]]
LONG = {"prompt_tokens": 1800, "max_new_tokens": 200, "shared_prefix_ratio": 0.0, "concurrency": 64}
LLAMA = {"name": "meta-llama/Llama-3.1-8B-Instruct"}


def outside(answer: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {entry["feature"]: (entry["value"], entry["trained_for"]) for entry in answer["support"]["out_of_range"]}


def test_arguments_that_are_ranked_count_as_fixed(ask: Ask, question: dict[str, Any]) -> None:
    fixed = ask({**question, "fixed": {"max_num_seqs": 128, "enable_prefix_caching": False}})
    given = ask({**question, "extra_args": "--max_num-seq 128 --no-enable-prefix-caching"})
    assert given["ranked"] == fixed["ranked"]
    assert given["set"] == fixed["set"]
    assert given["decision"] == fixed["decision"] == "recommended"


def test_an_argument_with_another_value_than_in_fixed_is_refused(client: Client, question: dict[str, Any]) -> None:
    both = {**question, "fixed": {"max_num_seqs": 128}, "max_model_len": 4096}
    for words in ("--max-num-seqs 32", "--max-model-len 8k"):
        response = client.recommend({**both, "extra_args": words})
        assert response.status_code == 422
        (detail,) = response.json()["details"]
        assert detail["path"] == "$.extra_args"
        assert "two values" in detail["message"]
    assert client.recommend({**both, "extra_args": "--max-num-seqs 128 --max-model-len 4096"}).status_code == 200


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--max-num-seqs many", "would refuse"),
        ("--unheard-of 3", "would refuse"),
        ("--served-model-name 'open", "cannot be split"),
        ("--config engine.yaml", "names a file"),
        ("--api-key=planted-value", "looks like a secret"),
        ("--gpu-memory-utilization 1.5", "gpu_memory_utilization"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_at_its_place(
    client: Client, question: dict[str, Any], words: str, why: str
) -> None:
    response = client.recommend({**question, "extra_args": words})
    assert response.status_code == 422
    problem = response.json()
    (detail,) = problem["details"]
    assert (problem["error"], detail["path"]) == ("invalid_request", "$.extra_args")
    assert why in detail["message"]
    assert "planted" not in response.text


def test_eager_execution_is_warned_of_and_what_is_taken_for_granted_is_listed(
    ask: Ask, question: dict[str, Any]
) -> None:
    plain = ask(question)
    answer = ask({**question, "extra_args": "--enforce-eager --dtype=bfloat16"})
    assert any(warning.startswith("--enforce-eager is set") for warning in answer["warnings"])
    assert answer["ranked"] == plain["ranked"]
    assert answer["command"] == f"{plain['command']} --enforce-eager --dtype=bfloat16"
    assumed = {name for name in answer["assumed"] if name.startswith("extra_args.")}
    assert answer["assumed"]["extra_args.enforce_eager"] is False
    assert answer["assumed"]["extra_args.enable_chunked_prefill"] is True
    # The user says so too: nothing is assumed there.
    assert "extra_args.dtype" not in assumed
    assert not any(name.startswith("extra_args.") for name in plain["assumed"])
    same = ask({**question, "extra_args": "--no-enforce-eager --async-scheduling"})
    assert same["warnings"] == plain["warnings"]


@pytest.mark.parametrize(
    ("words", "name", "value", "learnt"),
    [
        ("-q fp8", "quantization", "fp8", None),
        ("--kv-cache-dtype=fp8", "kv_cache_dtype", "fp8", "auto"),
        ("-tp 2", "tensor_parallel_size", 2, 1),
        ("--enable-lora", "enable_lora", True, False),
    ],
)
def test_an_argument_that_nothing_was_learnt_with_is_outside_the_support(
    ask: Ask, question: dict[str, Any], words: str, name: str, value: object, learnt: object
) -> None:
    answer = ask({**question, "extra_args": words})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    assert answer["support"]["in_distribution"] is False
    assert outside(answer) == {f"extra_args.{name}": (value, learnt)}
    assert name in answer["summary"]
    # Nothing is set, and what the user wants is started.
    assert answer["command"] == f"vllm serve Qwen/Qwen3-8B {words}"
    assert any(name in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    "words",
    [
        """--hf-overrides '{"max_position_embeddings": 2048}'""",
        "--hf-overrides.max_position_embeddings 2048",
        "--convert embed",
        "--disable-hybrid-kv-cache-manager",
        "--disable-sliding-window",
        """--compilation-config '{"cudagraph_mode": "NONE"}'""",
        "-cc.cudagraph_mode NONE",
        "--mamba-ssm-cache-dtype float32",
        "--block-size 64",
        "--mamba-cache-mode all",
        "--scheduler-cls a.B",
        "--worker-cls a.B",
        "--scheduling-policy priority",
        "--enable-dbo",
        "--model-impl transformers",
        "--attention-backend TRITON_ATTN",
        "--load-format bitsandbytes",
        "--kv-cache-dtype-skip-layers 0 1",
        "--language-model-only",
        "--no-disable-cascade-attn",
    ],
)
def test_an_argument_whose_effect_is_not_known_to_be_none_is_outside_the_support(
    ask: Ask, question: dict[str, Any], words: str
) -> None:
    answer = ask({**question, "extra_args": words})
    name = words.split()[0].lstrip("-").replace("no-", "").replace("-", "_").partition(".")[0]
    name = {"cc": "compilation_config"}.get(name, name)
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    assert list(outside(answer)) == [f"extra_args.{name}"]
    assert any(name in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    "words",
    [
        "--served-model-name 'a b' c --host 0.0.0.0 --port 80 --ssl-keyfile k --root-path /x",
        "--api-key=$(API_KEY) --hf-token $HF_TOKEN",
        "--chat-template t.jinja --tool-call-parser hermes --enable-auto-tool-choice --reasoning-parser qwen3",
        "--revision main --tokenizer a/b --tokenizer-mode auto --trust-remote-code --seed 7 --download-dir /models",
        "--load-format safetensors --no-use-tqdm-on-load",
        "--uvicorn-log-level warning --disable-log-stats --enable-log-requests --max-log-len 10",
        # The engine's own values change nothing.
        "--scheduling-policy fcfs --no-enable-dbo --model-impl auto --convert none --no-enable-sleep-mode",
        "--attention-backend None --model qwen/qwen3-8B",
    ],
)
def test_an_argument_that_changes_neither_measurement_nor_memory_leaves_the_answer_as_it_is(
    ask: Ask, question: dict[str, Any], words: str
) -> None:
    plain = ask(question)
    answer = ask({**question, "extra_args": words})
    for member in ("decision", "set", "ranked", "support", "warnings"):
        assert answer[member] == plain[member]


@pytest.mark.parametrize(
    "model", [{"name": "Qwen/Qwen3-8B"}, {"same_architecture_as": "Qwen/Qwen3-8B", "name": "acme/chat"}]
)
def test_a_model_in_the_arguments_that_is_not_the_question_s_is_refused(
    client: Client, question: dict[str, Any], model: dict[str, str]
) -> None:
    response = client.recommend({**question, "model": model, "extra_args": "--model meta-llama/planted-70B"})
    assert response.status_code == 422
    (detail,) = response.json()["details"]
    assert detail["path"] == "$.extra_args"
    assert "another one than the question" in detail["message"]
    assert "planted" not in response.text
    same = client.recommend({**question, "model": model, "extra_args": f"--model {model['name']}"})
    assert same.status_code == 200


def test_the_tables_of_effects_name_arguments_that_the_parser_knows_each_in_one_place() -> None:
    tables = [NEUTRAL, FOREIGN, WORTH_A_WARNING.keys(), PARALLEL.keys()]
    ranked_or_asked = {*ENGINE_ARGUMENTS, "max_model_len", "config"}
    assert set().union(*tables, ranked_or_asked) == KNOWN
    assert sum(map(len, tables)) + len(ranked_or_asked) == len(KNOWN)
    assert SAME_QUESTION.keys() <= FOREIGN


def test_without_chunked_prefill_a_prompt_has_to_fit_into_a_step(ask: Ask, question: dict[str, Any]) -> None:
    # Qwen3-8B derives 40,960 tokens, and no candidate has a budget above 8,192.
    question["extra_args"] = "--no-enable-chunked-prefill"
    answer = ask(question)
    # vLLM's own budget is then the whole context.
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "only_engine_default_starts")
    assert answer["engine_default"]["max_num_batched_tokens"] == 40_960
    assert {row["feasibility"]["reason"] for row in answer["ranked"]} == {"too_few_batched_tokens"}
    assert "s1024-b40960-g0.92-p1" in answer["summary"]
    assert not any("keep --no-enable" in warning for warning in answer["warnings"])
    # With 8,192 the eight candidates of that budget can start, but nothing was learnt with it.
    shorter = ask({**question, "max_model_len": 8192})
    assert (shorter["decision"], shorter["reason"]) == ("keep_engine_default", "out_of_support")
    assert outside(shorter) == {"extra_args.enable_chunked_prefill": (False, True)}
    assert sum(row["feasible"] for row in shorter["ranked"]) == 8


def test_empty_arguments_are_none(ask: Ask, question: dict[str, Any]) -> None:
    plain = ask(question)
    for words in (None, "", "  \n"):
        answer = ask({**question, "extra_args": words})
        assert {**answer, "recommendation_id": ""} == {**plain, "recommendation_id": ""}


def test_a_memory_share_that_is_left_out_is_null_and_the_whole_memory_is_flagged(
    client: Client, ask: Ask, question: dict[str, Any]
) -> None:
    left_out = ask({**question, "fixed": {}})
    null = ask({**question, "fixed": {"gpu_memory_utilization": None}})
    assert {**left_out, "recommendation_id": ""} == {**null, "recommendation_id": ""}
    for body in ({"fixed": {"gpu_memory_utilization": 1.0}}, {"extra_args": "--gpu-memory-utilization=1"}):
        answer = ask({**question, **body})
        assert any("may not start" in warning for warning in answer["warnings"])
    assert client.recommend({**question, "fixed": {"gpu_memory_utilization": 1.01}}).status_code == 422


def test_a_shorter_context_makes_room_and_stands_in_the_command(ask: Ask, question: dict[str, Any]) -> None:
    # By hand: 131,072 tokens of 131,072 bytes are 16 GiB beside 14.96 of weights and 3.5; an A10 has 22 GiB in all.
    # With 2,000 tokens it is 18.70 GiB, of which 0.90 · 22 = 19.8 are enough: the two candidates with 0.90.
    question |= {"model": LLAMA, "gpu": "A10", "workload": LONG}
    assert ask(question)["decision"] == "none_feasible"
    answer = ask({**question, "max_model_len": 2000})
    assert answer["decision"] == "keep_engine_default"
    assert answer["command"] == "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len=2000"
    assert sum(row["feasible"] for row in answer["ranked"]) == 2
    own = ask({**question, "extra_args": "--max-model-len 2k"})
    assert own["ranked"] == answer["ranked"]
    # It stands in the user's own words once, and is not repeated.
    assert own["command"] == "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 2k"


def test_configurations_that_only_the_context_excludes_are_named(ask: Ask, question: dict[str, Any]) -> None:
    # H100, 79 GiB: 0.45 grants 35.55, and 14.96 + 16 + 3.5 = 34.46 fit. An L40S has 44 GiB,
    # of which 0.45 grants 19.8 (six candidates): too little for the whole context, enough for 2,000 tokens (18.70).
    question |= {"model": LLAMA, "workload": LONG}
    warnings = ask({**question, "gpu": "L40S"})["warnings"]
    (found,) = [warning for warning in warnings if "whole context" in warning]
    assert found.startswith("6 of 15 configurations")
    assert "131,072" in found
    assert "max_model_len 2000" in found
    assert not any("context" in warning for warning in ask({**question, "gpu": "H100"})["warnings"])
    followed = ask({**question, "gpu": "L40S", "max_model_len": 2000})
    assert all(row["feasible"] for row in followed["ranked"])
    assert not any("whole context" in warning for warning in followed["warnings"])


def test_a_context_shorter_than_a_request_is_refused(client: Client, question: dict[str, Any]) -> None:
    response = client.recommend({**question, "max_model_len": 767})
    assert response.status_code == 422
    assert "768 exceeds the 767-token context" in response.json()["message"]
    assert client.recommend({**question, "max_model_len": 768}).status_code == 200


def test_a_context_longer_than_the_model_s_is_warned_of(ask: Ask, question: dict[str, Any]) -> None:
    # Qwen3-8B derives 40,960.
    own = ask({**question, "max_model_len": 40_960})
    assert not any("more than the 40,960" in warning for warning in own["warnings"])
    longer = ask({**question, "max_model_len": 40_961})
    assert any("40,961 is more than the 40,960" in warning for warning in longer["warnings"])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8k", 10**9])
def test_a_context_that_is_no_number_of_tokens_is_refused(
    client: Client, question: dict[str, Any], value: object
) -> None:
    response = client.recommend({**question, "max_model_len": value})
    assert response.status_code == 422
    assert response.json()["details"][0]["path"] == "$.max_model_len"


def test_an_automatic_context_is_taken_for_one_that_fits(ask: Ask, question: dict[str, Any]) -> None:
    question |= {"model": LLAMA, "gpu": "A10", "workload": LONG}
    answer = ask({**question, "extra_args": "--max-model-len auto"})
    assert answer["decision"] == "keep_engine_default"
    assert answer["command"].endswith(" --max-model-len auto")
