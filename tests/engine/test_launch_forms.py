"""Every form of an answer, read by vLLM 0.28 itself: it starts with exactly what was recommended."""

import dataclasses
import json
import os
import random
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import SEED
from tests.launch_forms import chart_words, command_words, predictor_words

ROOT = Path(__file__).resolve().parents[2]
SERVICE = Path(os.environ.get("MEMORYPOLICY_TEST_SERVICE_PYTHON", ROOT / ".venv" / "bin" / "python"))
KNOBS = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching")
OWN = (
    "",
    "--enforce-eager",
    "--max-num-seqs 128",
    "--max_num_batched_tokens=8k",
    "--gpu-memory-utilization .85 --seed 3",
    "--no-enable-prefix-caching",
    "--served-model-name 'a b' c --max-model-len 8K",
    "--compilation-config.mode 3 -O2",
)
Values = dict[str, Any]


def questions() -> list[dict[str, Any]]:
    """Drawn at random, with everything that a form depends on."""
    draw = random.Random(SEED)
    drawn = []
    for _ in range(250):
        question: dict[str, Any] = {
            "model": {"name": draw.choice(["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-70B-Instruct"])},
            "gpu": draw.choice(["B200", "B200", "B200", "H100", "A10"]),
            "workload": {
                "prompt_tokens": draw.randint(1, 4000),
                "max_new_tokens": draw.randint(1, 1000),
                "shared_prefix_ratio": draw.choice([0.0, 0.5, 0.9]),
                "concurrency": draw.choice([4, 16, 64, 256]),
            },
            "extra_args": draw.choice(OWN),
        }
        if draw.random() < 0.5 and "max-model-len" not in question["extra_args"]:
            question["max_model_len"] = draw.choice([5000, 8192, 40960])
        if draw.random() < 0.1:
            question["adapter"] = {"rank": 12, "max_loras": 4}
        drawn.append(question)
    return drawn


@pytest.fixture(scope="module")
def serve() -> Callable[[list[str]], Values]:
    """What `vllm serve` understands: its whole command line, with the reading of --config."""
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    commands = parser.add_subparsers(dest="subparser")
    for command in cmd_init():
        command.subparser_init(commands)
    return lambda words: vars(parser.parse_args(["serve", *words]))


@cache
def answers() -> list[tuple[Any, dict[str, Any]]]:
    """Each of the 15 and each question, with its answer."""
    asked: list[Any] = [*range(15), *questions()]
    done = subprocess.run(
        [SERVICE, "-m", "tests.engine.launch_process"],
        cwd=ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(asked, json.loads(done.stdout), strict=True))


def wanted(question: Any, answer: dict[str, Any], serve: Callable[[list[str]], Values], *, own: bool) -> Values:
    """What has to be understood: the user's own words where the form has them, else ours, else vLLM's default."""
    words = shlex.split(question.get("extra_args", "")) if own and isinstance(question, dict) else []
    values = serve(["MODEL", *words])
    context = {"max_model_len": question["max_model_len"]} if "max_model_len" in _members(question) else {}
    room = {"enable_lora": True, "max_loras": 4, "max_lora_rank": 16} if "adapter" in _members(question) else {}
    return {**values, **answer["set"], **context, **room}


def _members(question: Any) -> dict[str, Any]:
    return question if isinstance(question, dict) else {}


def same(found: Values, expected: Values, *, model: str | None, but: tuple[str, ...] = ()) -> None:
    for name in found.keys() | expected.keys():
        if name not in ("model", "model_tag", "config", *but):
            assert str(found.get(name)) == str(expected.get(name)), name
    assert (found.get("model_tag") or found.get("model")) == model


def started() -> list[tuple[Any, dict[str, Any], str]]:
    """Those where anything starts, and the model."""
    return [
        (question, answer, _members(question).get("model", {}).get("name", "Qwen/Qwen3-8B"))
        for question, answer in answers()
        if answer["set"] is not None
    ]


def test_enough_is_started_to_prove_something() -> None:
    with_flags = [answer for _, answer, _ in started() if answer["set"]]
    without = [answer for _, answer, _ in started() if not answer["set"]]
    # Of 265, 32 to 56 over a dozen seeds.
    assert len(with_flags) > 20
    assert len(without) > 10
    assert any(answer["set"].get("enable_prefix_caching") is False for answer in with_flags)


def test_the_command_starts_what_was_recommended(serve: Callable[[list[str]], Values]) -> None:
    for question, answer, model in started():
        found = serve(command_words(answer["renders"]["vllm"]))
        same(found, wanted(question, answer, serve, own=True), model=model)


def test_the_file_starts_what_was_recommended(serve: Callable[[list[str]], Values], tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    for question, answer, model in started():
        file.write_text(answer["renders"]["yaml"])
        expected = wanted(question, answer, serve, own=True)
        sized = {name: expected[name] for name in (*KNOBS, "max_model_len")}
        same(serve(["--config", str(file)]), wanted(question, answer, serve, own=False) | sized, model=model)
        # The user's own arguments on the command line count, as they do beside ours in the command.
        own = shlex.split(_members(question).get("extra_args", ""))
        same(serve(["--config", str(file), *own]), wanted(question, answer, serve, own=True), model=model)


def test_the_chart_s_values_start_what_was_recommended(serve: Callable[[list[str]], Values]) -> None:
    for question, answer, model in started():
        expected = wanted(question, answer, serve, own=True)
        if expected["enable_prefix_caching"] is None:
            # The chart says one or the other, always: it has to be what vLLM would do by itself.
            expected["enable_prefix_caching"] = True
        same(serve([model, *chart_words(answer["renders"]["helm"])]), expected, model=model)


def test_a_predictor_s_arguments_start_what_was_recommended(serve: Callable[[list[str]], Values]) -> None:
    for question, answer, model in started():
        found = serve([model, *predictor_words(answer["renders"]["kserve"])])
        same(found, wanted(question, answer, serve, own=True), model=model)


def test_engine_arguments_are_fields_of_the_engine_s(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    for _question, answer, _ in started():
        for values in (answer["renders"]["ray"]["engine_kwargs"], answer["renders"]["metis"]["vllm_config"]):
            assert values.keys() <= fields
            made = EngineArgs(model=str(tmp_path), **values)
            assert {name: getattr(made, name) for name in values} == values
