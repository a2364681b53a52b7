"""The forms of an answer: each starts the server that was recommended, and no other."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from service.api.hook_decision import Asked, decide
from service.api.launch import Launch, renders
from service.app import create_app
from service.domain.candidate import CANDIDATES, Candidate
from service.engine_args import read_args
from service.policies import Policies, Policy
from service.settings import Settings
from tests.launch_forms import chart_words, command_words, file_words, predictor_words
from tests.service.conftest import Client

Ask = Callable[[object], dict[str, Any]]
FORMS = ["vllm", "yaml", "helm", "kserve", "ray", "metis"]


def of(candidate: Candidate, **changes: Any) -> Launch:
    flags = candidate.engine_args()
    start: dict[str, Any] = {
        "model": "a/b",
        "engine_version": "0.28.0",
        "flags": flags,
        "whole": flags,
        "prefix_caching": candidate.enable_prefix_caching,
    }
    return Launch(**(start | changes))


@pytest.mark.parametrize("candidate", CANDIDATES, ids=[candidate.config_id for candidate in CANDIDATES])
def test_every_form_sets_exactly_the_configuration(candidate: Candidate) -> None:
    forms = renders(of(candidate), ["vllm", "yaml", "helm", "kserve", "ray", "metis"])
    wanted = candidate.engine_args()
    model, *words = command_words(forms["vllm"])
    assert model == "a/b"
    assert read_args(words) == wanted
    assert read_args(chart_words(forms["helm"])) == wanted
    assert read_args(predictor_words(forms["kserve"])) == wanted
    assert read_args(file_words(forms["yaml"])) == {"model": "a/b", **wanted}
    assert forms["ray"] == {"engine_kwargs": wanted}
    assert forms["metis"]["vllm_config"] == wanted
    assert forms["metis"]["notes"].endswith(" ".join(candidate.cli_args()))


def test_an_answer_has_the_forms_that_are_asked_for_and_no_other(ask: Ask, question: dict[str, Any]) -> None:
    assert ask(question)["renders"] == {}
    assert ask({**question, "render": None})["renders"] == {}
    answer = ask({**question, "render": ["helm", "vllm", "helm"]})
    assert list(answer["renders"]) == ["helm", "vllm"]
    assert answer["renders"]["vllm"] == answer["command"]
    config = answer["renders"]["helm"]["vllmConfig"]
    assert config["maxNumSeqs"] == answer["set"]["max_num_seqs"]
    assert config["extraArgs"] == [f"--max-num-batched-tokens={answer['set']['max_num_batched_tokens']}"]


def test_an_unknown_form_is_refused_with_the_known_ones(client: Client, question: dict[str, Any]) -> None:
    response = client.recommend({**question, "render": ["vllm", "docker"]})
    assert response.status_code == 422
    (detail,) = response.json()["details"]
    assert (detail["path"], detail["value"]) == ("$.render[1]", "docker")
    assert all(repr(form) in detail["message"] for form in FORMS)


def test_where_the_default_is_kept_the_forms_set_nothing_and_still_start_it(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "gpu": "H100", "render": FORMS})
    assert answer["decision"] == "keep_engine_default"
    assert answer["renders"] == {
        "vllm": "vllm serve Qwen/Qwen3-8B",
        "yaml": 'model: "Qwen/Qwen3-8B"\n',
        # The chart would turn off what vLLM has on, were it not mentioned.
        "helm": {"vllmConfig": {"enablePrefixCaching": True, "extraArgs": []}},
        "kserve": {"spec": {"predictor": {"model": {"args": []}}}},
        "ray": {"engine_kwargs": {}},
        "metis": {
            "model_name": "Qwen/Qwen3-8B",
            "enabled": True,
            "vllm_config": {},
            "env": {},
            "source": "memorypolicy",
            "notes": "for vLLM 0.28.0: nothing to set",
        },
    }
    # A file without a single entry is one that vLLM cannot read.
    numbers = {"weight_gb": 16.381, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456}
    unnamed = ask({**question, "model": numbers, "gpu": "H100", "render": ["yaml", "vllm", "metis"]})["renders"]
    assert (unnamed["yaml"], unnamed["vllm"]) == ("{}\n", "vllm serve MODEL")
    assert unnamed["metis"]["model_name"] == "MODEL"


def test_where_nothing_starts_there_is_no_form_to_start_it(ask: Ask, question: dict[str, Any]) -> None:
    question |= {"model": {"name": "meta-llama/Llama-3.1-70B-Instruct"}, "gpu": "H100", "render": FORMS}
    answer = ask(question)
    assert answer["decision"] == "none_feasible"
    assert answer["renders"] == dict.fromkeys(FORMS)


def test_the_chart_keeps_what_the_user_has_fixed_about_prefix_caching(ask: Ask, question: dict[str, Any]) -> None:
    for gpu, on in (("B200", False), ("H100", False), ("B200", True)):
        answer = ask({**question, "gpu": gpu, "fixed": {"enable_prefix_caching": on}, "render": ["helm", "vllm"]})
        assert answer["renders"]["helm"]["vllmConfig"]["enablePrefixCaching"] is on
        assert "prefix-caching" not in answer["command"]


def test_the_catalogue_gets_the_whole_configuration_and_the_command_what_is_missing(
    ask: Ask, question: dict[str, Any]
) -> None:
    answer = ask({**question, "fixed": {"max_num_seqs": 128}, "render": ["metis", "ray"]})
    assert answer["renders"]["metis"]["vllm_config"] == answer["ranked"][0]["engine_args"]
    assert answer["renders"]["ray"]["engine_kwargs"] == answer["set"]
    assert "max_num_seqs" not in answer["set"]


def test_the_room_of_an_adapter_is_made_in_every_form(ask: Ask, question: dict[str, Any]) -> None:
    # The smallest rank that the engine knows and that takes 12 is 16.
    answer = ask({**question, "adapter": {"rank": 12, "max_loras": 4}, "render": FORMS})
    forms, room = answer["renders"], {"enable_lora": True, "max_loras": 4, "max_lora_rank": 16}
    assert answer["command"] == "vllm serve Qwen/Qwen3-8B --enable-lora --max-loras=4 --max-lora-rank=16"
    assert read_args(command_words(forms["vllm"])[1:]) == room
    assert read_args(file_words(forms["yaml"])) == {"model": "Qwen/Qwen3-8B", **room}
    assert read_args(chart_words(forms["helm"])) == {"enable_prefix_caching": True, **room}
    assert read_args(predictor_words(forms["kserve"])) == room
    assert forms["ray"] == {"engine_kwargs": room}
    assert forms["metis"]["vllm_config"] == room


@pytest.mark.parametrize(("words", "context"), [("--max-model-len 8k", 8000), ("--max-model-len auto", -1)])
def test_what_was_sized_stands_in_the_forms_that_have_no_place_for_the_user_s_words(
    ask: Ask, question: dict[str, Any], words: str, context: int
) -> None:
    answer = ask({**question, "extra_args": f"{words} --max-num-seqs 128 --seed 3", "render": FORMS})
    forms, top = answer["renders"], answer["ranked"][0]["engine_args"]
    assert answer["decision"] == "recommended"
    assert top["max_num_seqs"] == 128
    assert read_args(file_words(forms["yaml"])) == {"model": "Qwen/Qwen3-8B", **top, "max_model_len": context}
    assert forms["ray"]["engine_kwargs"] == {**top, "max_model_len": context}
    assert forms["metis"]["vllm_config"] == {**top, "max_model_len": context}
    # Where the words stand they say it, and once.
    assert forms["vllm"].count("max-model-len") == forms["vllm"].count("max-num-seqs") == 1
    kept = ask({**question, "gpu": "H100", "extra_args": f"{words} --max-num-seqs 128", "render": FORMS})["renders"]
    assert kept["ray"]["engine_kwargs"] == kept["metis"]["vllm_config"]
    assert kept["metis"]["vllm_config"] == {"max_num_seqs": 128, "max_model_len": context}


def test_a_context_that_is_asked_for_stands_in_every_form(ask: Ask, question: dict[str, Any]) -> None:
    # 1,048,576 tokens of 16,384 bytes are 16 GiB.
    question["model"] = {"weight_gb": 16.0, "num_layers": 32, "hidden_size": 4096, "kv_bytes_per_token": 16_384}
    forms = ask({**question, "max_model_len": 1_048_576, "render": FORMS})["renders"]
    assert forms["vllm"].endswith(" --max-model-len=1048576")
    assert yaml.safe_load(forms["yaml"])["max-model-len"] == 1_048_576
    assert read_args(chart_words(forms["helm"]))["max_model_len"] == 1_048_576
    assert read_args(predictor_words(forms["kserve"]))["max_model_len"] == 1_048_576
    assert forms["ray"]["engine_kwargs"]["max_model_len"] == 1_048_576
    assert forms["metis"]["vllm_config"]["max_model_len"] == 1_048_576


def test_the_user_s_own_arguments_stand_last_where_the_form_has_a_place_for_them(
    ask: Ask, question: dict[str, Any]
) -> None:
    own = "--chat-template 'a b.jinja' --max-num-seqs 128"
    answer = ask({**question, "extra_args": own, "render": FORMS})
    forms = answer["renders"]
    assert forms["vllm"] == f"vllm serve Qwen/Qwen3-8B {' '.join(_set(answer))} {own}"
    assert shlex.split(forms["vllm"])[-4:] == ["--chat-template", "a b.jinja", "--max-num-seqs", "128"]
    assert chart_words(forms["helm"])[-4:] == ["--chat-template", "a b.jinja", "--max-num-seqs", "128"]
    assert predictor_words(forms["kserve"])[-4:] == ["--chat-template", "a b.jinja", "--max-num-seqs", "128"]
    assert "chat-template" not in forms["yaml"]
    # It is the user's and stands in the command already.
    assert not any("keep --max-num-seqs" in warning for warning in answer["warnings"])


def _set(answer: dict[str, Any]) -> list[str]:
    words = answer["ranked"][0]["cli_args"]
    return [word for word in words if not word.startswith("--max-num-seqs")]


def test_a_word_of_the_user_cannot_break_out_of_the_command() -> None:
    hostile = ["--served-model-name", "x; rm -rf /", "$(id)", "`id`", "it's"]
    line = renders(of(CANDIDATES[0], model="a b;c", words=tuple(hostile)), ["vllm"])["vllm"]
    assert shlex.split(line) == ["vllm", "serve", "a b;c", *CANDIDATES[0].cli_args(), *hostile]
    assert yaml.safe_load(renders(of(CANDIDATES[0], model='x"\ny: 1'), ["yaml"])["yaml"])["model"] == 'x"\ny: 1'


def test_the_hook_sets_what_the_command_sets(ask: Ask, question: dict[str, Any], policy: Policy) -> None:
    asked = Asked(
        model="Qwen/Qwen3-8B",
        gpu="NVIDIA-B200",
        engine_version="0.28.0",
        workload=question["workload"],
        words=["--max-num-seqs=128"],
    )
    decision = decide(asked, Policies(policy), recommendation_id="r")
    answer = ask({**question, "extra_args": "--max-num-seqs=128", "render": ["kserve", "metis"]})
    assert [*decision.cli_args, "--max-num-seqs=128"] == predictor_words(answer["renders"]["kserve"])
    assert dict(decision.chosen) == answer["renders"]["metis"]["vllm_config"]


def test_forms_are_no_part_of_the_record(bundle_dir: Path, tmp_path: Path, question: dict[str, Any]) -> None:
    own = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path), clock=lambda: 1.0))
    planted = "--served-model-name planted-name"
    assert own.recommend({**question, "extra_args": planted, "render": FORMS}).status_code == 200
    with own.app.state.api.memory.database.transaction() as connection:
        (row,) = connection.execute(text("SELECT * FROM recommendations")).mappings()
    assert "planted-name" not in json.dumps(dict(row), default=str)
