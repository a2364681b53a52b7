"""The reader of engine arguments and the hook's merging, against vLLM 0.28's own parser."""

import argparse
import contextlib
import io
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service import engine_options
from service.api.argument_effects import SAME_QUESTION
from service.domain.gpu import GPUS, Gpu
from service.engine_args import ConfigFileError, UnparsableArgsError, read_args, split_words
from tests.engine.argument_strings import HAND_WRITTEN, generated
from tests.engine.conftest import SEED
from tests.requalify.installed import batch_default, options_of, serve_parser
from tests.requalify.verdict import known_options

ROOT = Path(__file__).resolve().parents[2]
SERVICE = Path(os.environ.get("MEMORYPOLICY_TEST_SERVICE_PYTHON", ROOT / ".venv" / "bin" / "python"))
STRINGS = (*HAND_WRITTEN, *generated(SEED, 400))
KNOBS = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching")
Values = dict[str, Any]


@pytest.fixture(scope="module")
def real() -> argparse.ArgumentParser:
    """The parser of `vllm serve`, saying only what was given."""
    parser = serve_parser()
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    return parser


def parsed(parser: argparse.ArgumentParser, text: str) -> Values | None:
    """What vLLM understands; None where it refuses."""
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            values = vars(parser.parse_args(["MODEL", *shlex.split(text)]))
    # It ends the process for what argparse refuses, and raises whatever its own preparation stumbles over.
    except (SystemExit, Exception):
        return None
    return {name: value for name, value in values.items() if name != "model_tag"}


@pytest.fixture(scope="module")
def decisions() -> list[dict[str, Any]]:
    """The hook's answer for every string, and again for every string as it was patched."""
    return _decided(list(STRINGS))


def _decided(texts: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [SERVICE, "-m", "tests.engine.hook_process"],
        cwd=ROOT,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def patched(text: str, answer: dict[str, Any]) -> str:
    """extra_args after the merge patch."""
    patch = answer["request_patch"]
    return str(patch["workload_config"]["extra_args"]) if patch else text


def test_there_are_as_many_strings_as_promised() -> None:
    assert len(set(HAND_WRITTEN)) >= 60
    assert len(STRINGS) - len(HAND_WRITTEN) >= 300


def test_the_table_of_options_is_the_parser_s(real: argparse.ArgumentParser) -> None:
    found, shorts = options_of(real)
    assert known_options() == found
    assert shorts == engine_options.SHORT_FORMS


def test_the_value_that_leaves_the_question_as_it_was_is_the_engine_s_own() -> None:
    parser = serve_parser()
    defaults = {name: parser.get_default(name) for name in SAME_QUESTION}
    # What is left open there is decided later: chunked prefill is then on, LoRA off.
    left_open = {name for name, default in defaults.items() if default is None}
    assert left_open == {"enable_chunked_prefill", "enable_lora"}
    assert {name: default for name, default in defaults.items() if name not in left_open} == {
        name: same[0] for name, same in SAME_QUESTION.items() if name not in left_open
    }


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_engine_starts_on_a_gpu_as_the_table_says(gpu: Gpu) -> None:
    default = gpu.engine_default
    assert batch_default(gpu.name, gpu.memory_gib) == (default.max_num_seqs, default.max_num_batched_tokens)


@pytest.mark.parametrize("text", STRINGS)
def test_the_reader_says_what_vllm_s_parser_says(real: argparse.ArgumentParser, text: str) -> None:
    theirs = parsed(real, text)
    try:
        ours: Values | None = read_args(split_words(text))
    except ConfigFileError:
        assert "--conf" in text
        return
    except UnparsableArgsError:
        ours = None
    if theirs is None or "--" in shlex.split(text):
        # Which words an option takes (a dtype, a JSON schema) is the engine's business: it will refuse them itself.
        return
    assert ours is not None, f"vLLM reads {theirs}"
    assert ours.keys() == theirs.keys()
    for name in (*KNOBS, "max_model_len", "tensor_parallel_size", "seed", "cohere_format"):
        # nan is a number that vLLM accepts here and that is not equal to itself.
        assert str(ours.get(name)) == str(theirs.get(name))


def test_a_patched_string_keeps_every_value_of_the_user_and_adds_ours(
    real: argparse.ArgumentParser, decisions: list[dict[str, Any]]
) -> None:
    applied = 0
    for text, answer in zip(STRINGS, decisions, strict=True):
        before = parsed(real, text)
        after = parsed(real, patched(text, answer))
        if before is None:
            # Nothing that vLLM refuses becomes something that it starts with.
            assert after is None, text
            continue
        assert after is not None, text
        assert {name: after[name] for name in before if str(before[name]) != str(after.get(name))} == {}, text
        assert {name: value for name, value in after.items() if name not in before} == answer["engine_args"], text
        applied += answer["decision"] == "apply"
    # A third at least must have been patched, or this proves little.
    assert applied > len(STRINGS) / 4


def test_what_the_hook_takes_for_pinned_is_what_vllm_reads(
    real: argparse.ArgumentParser, decisions: list[dict[str, Any]]
) -> None:
    for text, answer in zip(STRINGS, decisions, strict=True):
        before = parsed(real, text)
        if before is not None and answer["decision"] == "apply":
            assert answer["pinned"] == {name: before[name] for name in KNOBS if name in before}, text


def test_applying_twice_changes_nothing(decisions: list[dict[str, Any]]) -> None:
    texts = [patched(text, answer) for text, answer in zip(STRINGS, decisions, strict=True)]
    again = _decided(texts)
    for text, first, second in zip(texts, decisions, again, strict=True):
        assert second["request_patch"] == {}, text
        if first["decision"] == "apply":
            assert second["reason"] == "all_pinned"
