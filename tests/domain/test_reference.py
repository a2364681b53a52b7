from collections import Counter
from itertools import product

import pytest

from service.domain.reference import (
    REFERENCE_CONCURRENCIES,
    REFERENCE_MODELS,
    REFERENCE_WORKLOADS,
    TEST_MODELS,
    split_of,
)
from service.domain.scenario import Workload

# The published experiment: name → prompt tokens, output tokens, designed shared-prefix ratio, split.
PUBLISHED = {
    "chat": (512, 256, 0.0, "train"),
    "rag": (6000, 128, 0.7, "train"),
    "longgen": (256, 1024, 0.0, "train"),
    "summarize": (12000, 256, 0.1, "dev"),
    "agent": (3000, 256, 0.9, "test"),
    "codeassist": (1500, 512, 0.5, "test"),
}
SCENARIOS = list(product(REFERENCE_MODELS, (w.name for w in REFERENCE_WORKLOADS), REFERENCE_CONCURRENCIES))


def test_the_workloads_are_the_published_ones() -> None:
    assert {
        w.name: (w.prompt_tokens, w.max_new_tokens, w.shared_prefix_ratio, w.split) for w in REFERENCE_WORKLOADS
    } == PUBLISHED


def test_models_and_concurrencies_are_the_published_ones() -> None:
    assert REFERENCE_MODELS == ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
    assert REFERENCE_CONCURRENCIES == (4, 16, 64, 256)
    assert TEST_MODELS == ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")


def test_there_are_96_scenarios_none_twice() -> None:
    assert len(SCENARIOS) == len(set(SCENARIOS)) == 96


def test_the_splits_hold_48_16_16_and_16_scenarios() -> None:
    sizes = Counter(split_of(model=model, workload=workload) for model, workload, _ in SCENARIOS)
    assert sizes == {"train": 48, "dev": 16, "test": 16, "retired": 16}


def test_retired_is_what_the_invalidated_version_saw_and_nothing_else() -> None:
    retired = {(m, w) for m, w, _ in SCENARIOS if split_of(model=m, workload=w) == "retired"}
    assert retired == {
        ("Qwen/Qwen3-0.6B", "agent"),
        ("Qwen/Qwen3-0.6B", "codeassist"),
        ("Qwen/Qwen3-8B", "agent"),
        ("Qwen/Qwen3-8B", "codeassist"),
    }


def test_no_workload_of_dev_or_test_is_in_train() -> None:
    by_split: dict[str, set[str]] = {}
    for model, workload, _ in SCENARIOS:
        by_split.setdefault(split_of(model=model, workload=workload), set()).add(workload)
    assert by_split == {
        "train": {"chat", "rag", "longgen"},
        "dev": {"summarize"},
        "test": {"agent", "codeassist"},
        "retired": {"agent", "codeassist"},
    }


def test_an_unknown_workload_has_no_split() -> None:
    with pytest.raises(KeyError, match="no-such-workload"):
        split_of(model="Qwen/Qwen3-8B", workload="no-such-workload")


def test_a_named_workload_takes_its_concurrency() -> None:
    agent = next(w for w in REFERENCE_WORKLOADS if w.name == "agent")
    assert agent.at(16) == Workload(prompt_tokens=3000, max_new_tokens=256, shared_prefix_ratio=0.9, concurrency=16)
