"""One question, asked at every door: the ranking and the choice are the same."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.__main__ import main
from service.api.hook import asked_of, read_hook
from service.api.hook_decision import HookDecision, decide, skipped
from service.api.mapping import NO_MAPPING
from service.api.skip import SkipError
from service.app import create_app
from service.domain.manifest import Abstention
from service.policies import Policies, load_policies
from service.settings import Settings
from tests.engine.argument_strings import HAND_WRITTEN, generated
from tests.service.bundles import graph, random_layers, write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.test_expected import ESTIMATOR

ARGUMENTS = st.sampled_from(
    [
        "--max-num-seqs=128",
        "--max_num_seqs 512",
        "--max-num-seqs 100",
        "--max-num-batched-tokens 8192",
        "--max-num-batched-tokens=2k",
        "--gpu-memory-utilization .85",
        "--gpu-memory-utilization=0.45",
        "--no-enable-prefix-caching",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--seed 3",
        "--max-model-len 30000",
    ]
)
WORKLOADS = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(1, 6000),
        "max_new_tokens": st.integers(1, 2000),
        "shared_prefix_ratio": st.floats(0, 1),
        "concurrency": st.integers(1, 2048),
        "confidence": st.sampled_from(["exact", "typical", "rough"]),
    }
)


def _or_range(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return numbers | st.lists(numbers, min_size=2, max_size=2).map(sorted)


# In the words of who has the load; some of it contradicts itself, and a rate needs a stored latency.
IN_WORDS = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(["chat", "rag", "longgen"]),
        "prompt_tokens": _or_range(st.integers(400, 6000)),
        "output_tokens": _or_range(st.integers(1, 900)),
        "max_output_tokens": st.integers(500, 2000),
        "shared_prefix_tokens": _or_range(st.integers(0, 600)),
        "concurrency": _or_range(st.integers(4, 256)),
        "replicas": st.integers(1, 4),
    },
) | st.fixed_dictionaries(
    {"preset": st.sampled_from(["chat", "rag", "longgen"]), "requests_per_second": _or_range(st.floats(0.01, 900))},
    optional={"replicas": st.integers(1, 4)},
)
CONTEXT = {"gpu_product": "gpu", "engine_version": "engine_version", "gpu_shared": "gpu_shared"}
QUESTIONS = st.fixed_dictionaries(
    {
        # Those with room for the longest of the workloads.
        "model": st.sampled_from(["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B-Instruct"]),
        "gpu": st.sampled_from(["NVIDIA-B200", "H100", "L40S", "A10"]),
        "engine_version": st.sampled_from(["0.28.0", "0.21.0"]),
        "gpu_shared": st.booleans(),
        "explain": st.booleans(),
        "workload": WORKLOADS | IN_WORDS,
        # Not all four: the hook has nothing to rank then.
        "words": st.lists(ARGUMENTS, max_size=3),
    }
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three bundles that expect numbers, and ask for a chance that not every candidate has."""
    folder = tmp_path_factory.mktemp("bundles")
    caution = {"margin": 0.0, "threshold": 0.9, "risk_price": 0.3, "fixed_price": 0.2}
    abstention = Abstention(**caution, near_tie=0.05, low_utilisation_gain=0.1)
    parts: list[dict[str, Any]] = [{}, {"confidence": "rough"}, {"gpu": "NVIDIA-H100-80GB-HBM3"}]
    return [
        write_bundle(
            folder / str(seed),
            version=f"seed {seed}",
            model=graph(random_layers(seed)),
            estimator=ESTIMATOR,
            abstention=abstention,
            **part,
        )
        for seed, part in enumerate(parts)
    ]


@pytest.fixture(scope="module")
def policies(folders: list[Path]) -> Policies:
    return load_policies(folders[0], folders[1:])


@pytest.fixture(scope="module")
def client(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Client:
    more = ",".join(map(str, folders[1:]))
    data = tmp_path_factory.mktemp("data")
    return Client(create_app(Settings(bundle_dir=folders[0], more_bundle_dirs=more, data_dir=data)))


@pytest.fixture(autouse=True)
def _bundles(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(folders[0]))
    monkeypatch.setenv("MEMORYPOLICY_MORE_BUNDLE_DIRS", ",".join(map(str, folders[1:])))


def by_command_line(question: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, None where the question is refused."""
    load = question["workload"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = main(
            [
                *("recommend", "--json", "--model", question["model"], "--gpu", question["gpu"]),
                *("--engine-version", question["engine_version"], f"--extra-args={' '.join(question['words'])}"),
                *(["--gpu-shared"] if question["gpu_shared"] else []),
                *(f"--{name.replace('_', '-')}={_text(value)}" for name, value in load.items()),
                *(["--explain"] if question["explain"] else []),
            ]
        )
    if status == 2:
        return None
    assert status == 0
    answer: dict[str, Any] = json.loads(shown.getvalue())
    return answer


def _text(value: object) -> str:
    return ":".join(map(repr, value)) if isinstance(value, list) else str(value)


def hook_decision(question: dict[str, Any], extra_args: str, policies: Policies) -> HookDecision:
    body = {
        "hook_version": "v1",
        "event": "endpoint.creating",
        "request": {
            "name": "e",
            "model": question["model"],
            "workload_type": "VLLM",
            "workload_config": {"extra_args": extra_args},
        },
        "context": {name: question[key] for name, key in CONTEXT.items() if key in question},
        "workload": question["workload"],
    }
    try:
        return decide(asked_of(read_hook(body), NO_MAPPING), policies, recommendation_id="r")
    except SkipError as error:
        return skipped(error)


def by_hook(question: dict[str, Any], policies: Policies) -> dict[str, Any] | None:
    """The content of its decision, None where the load cannot be used."""
    decision = hook_decision(question, " ".join(question["words"]), policies)
    if decision.reason == "no_workload":
        return None
    assert decision.content is not None, decision.message
    return decision.content


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the door: all but the id, and the limits and arguments that a door fills in or leaves."""
    return {
        name: answer[name]
        for name in ("ranked", "decision", "reason", "set", "support", "engine_default", "expected", "policy", "range")
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=3))
def test_every_door_gives_the_same_ranking(client: Client, policies: Policies, questions: list[dict[str, Any]]) -> None:
    bodies = [
        {
            "model": {"name": question["model"]},
            **{name: question[name] for name in ("gpu", "gpu_shared", "engine_version", "workload", "explain")},
            "extra_args": " ".join(question["words"]),
        }
        for question in questions
    ]
    batch = client.request("POST", "/v1/recommend:batch", json={"items": bodies}).json()["items"]
    for question, body, item in zip(questions, bodies, batch, strict=True):
        response = client.recommend(body)
        by_api, in_batch = response.json(), item["answer"]
        on_command_line, at_hook = by_command_line(question), by_hook(question, policies)
        if response.status_code == 422:
            assert by_api["details"][0]["path"].startswith("$.workload")
            assert item["error"]["details"] == by_api["details"]
            assert on_command_line is at_hook is None
            continue
        assert response.status_code == 200, response.text
        assert on_command_line is not None
        assert at_hook is not None
        assert {**in_batch, "recommendation_id": ""} == {**by_api, "recommendation_id": ""}
        assert {**on_command_line, "recommendation_id": ""} == {**by_api, "recommendation_id": ""}
        assert told(json.loads(json.dumps(at_hook))) == told(by_api)


@pytest.mark.parametrize("text", [*HAND_WRITTEN, *generated(10, 150)])
def test_whatever_stands_in_the_arguments_the_hook_and_the_question_read_it_alike(
    client: Client, policies: Policies, text: str
) -> None:
    response = client.recommend({**QUESTION, "extra_args": text})
    decision = hook_decision(
        {**QUESTION, "model": QUESTION["model"]["name"], "engine_version": "0.28.0"}, text, policies
    )
    refused = {"unparsable_args", "user_config_file", "secret_in_args", "conflicting_args"}
    if decision.reason in refused:
        assert response.status_code == 422
        assert response.json()["details"][0]["path"] == "$.extra_args"
        return
    assert response.status_code == 200, response.text
    answer = response.json()
    if decision.reason in ("unsupported_args", "not_one_gpu"):
        assert answer["decision"] != "recommended"
        assert any(entry["feature"].startswith("extra_args.") for entry in answer["support"]["out_of_range"])
    elif decision.reason != "all_pinned":
        assert decision.content is not None
        assert told(json.loads(json.dumps(decision.content))) == told(answer)
        assert dict(decision.flags) == (answer["set"] or {})
