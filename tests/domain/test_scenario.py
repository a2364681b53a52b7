from typing import Any

import pytest

from service.domain.errors import InvalidInputError
from service.domain.scenario import ModelArch, Scenario, Workload, check_float, check_int

WORKLOAD: dict[str, Any] = {
    "prompt_tokens": 512,
    "max_new_tokens": 256,
    "shared_prefix_ratio": 0.5,
    "concurrency": 64,
}
MODEL: dict[str, Any] = {"weight_gb": 16.4, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147_456}

WHOLE_NUMBERS = [
    (Workload, WORKLOAD, "prompt_tokens", 10_000_000),
    (Workload, WORKLOAD, "max_new_tokens", 10_000_000),
    (Workload, WORKLOAD, "concurrency", 100_000),
    (ModelArch, MODEL, "num_layers", 1_000),
    (ModelArch, MODEL, "hidden_size", 1_000_000),
    (ModelArch, MODEL, "kv_bytes_per_token", 100_000_000),
    (ModelArch, MODEL, "max_model_len", 100_000_000),
]
REAL_NUMBERS = [
    (Workload, WORKLOAD, "shared_prefix_ratio", 0.0, 1.0),
    (ModelArch, MODEL, "weight_gb", 0.001, 10_000.0),
]


@pytest.mark.parametrize(("kind", "arguments", "field", "high"), WHOLE_NUMBERS)
def test_whole_numbers_run_from_one_to_their_bound(
    kind: type[Workload | ModelArch], arguments: dict[str, Any], field: str, high: int
) -> None:
    for value in (1, high):
        assert getattr(kind(**{**arguments, field: value}), field) == value
    for value in (0, -1, high + 1):
        with pytest.raises(InvalidInputError, match=f"{field}: {value} cannot be used; .* 1 to {high}"):
            kind(**{**arguments, field: value})


@pytest.mark.parametrize(("kind", "arguments", "field", "high"), WHOLE_NUMBERS)
@pytest.mark.parametrize("value", [True, False, 1.0, float("nan"), float("inf"), "1", [1], {"a": 1}, 10**400])
def test_what_is_no_whole_number_is_refused_by_name(
    kind: type[Workload | ModelArch], arguments: dict[str, Any], field: str, high: int, value: object
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(**{**arguments, field: value})
    assert caught.value.path == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("kind", "arguments", "field", "low", "high"), REAL_NUMBERS)
def test_real_numbers_include_both_bounds_and_nothing_beyond(
    kind: type[Workload | ModelArch], arguments: dict[str, Any], field: str, low: float, high: float
) -> None:
    for value in (low, high):
        assert getattr(kind(**{**arguments, field: value}), field) == value
    for value in (low - 0.0001, high + 0.0001):
        with pytest.raises(InvalidInputError, match=field):
            kind(**{**arguments, field: value})


@pytest.mark.parametrize(("kind", "arguments", "field", "low", "high"), REAL_NUMBERS)
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), 10**400, -(10**400), True, False, "0.5", None, [0.5]]
)
def test_what_is_no_finite_number_is_refused_by_name(
    kind: type[Workload | ModelArch], arguments: dict[str, Any], field: str, low: float, high: float, value: object
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(**{**arguments, field: value})
    assert caught.value.path == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", [*WORKLOAD])
def test_null_is_no_workload_number(field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}: None"):
        Workload(**{**WORKLOAD, field: None})


def test_a_request_that_just_fits_the_context_is_a_scenario() -> None:
    model = ModelArch(**MODEL, name="m", max_model_len=40_960)
    workload = Workload(prompt_tokens=40_704, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=1)
    assert workload.sequence_tokens == 40_960
    assert Scenario(model=model, workload=workload).workload is workload


def test_a_request_one_token_longer_than_the_context_is_refused_with_both_lengths() -> None:
    model = ModelArch(**MODEL, name="Qwen/Qwen3-8B", max_model_len=40_960)
    workload = Workload(prompt_tokens=40_705, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=1)
    with pytest.raises(InvalidInputError, match="40961 exceeds the 40960-token context of Qwen/Qwen3-8B") as caught:
        Scenario(model=model, workload=workload)
    assert caught.value.path == "workload.prompt_tokens"
    assert caught.value.value == 40_705


def test_a_model_without_a_name_is_refused_without_one() -> None:
    workload = Workload(**WORKLOAD)
    with pytest.raises(InvalidInputError, match="context of this model"):
        Scenario(model=ModelArch(**MODEL, max_model_len=700), workload=workload)


def test_four_numbers_alone_know_no_context_and_limit_nothing() -> None:
    longest = Workload(**{**WORKLOAD, "prompt_tokens": 10_000_000, "max_new_tokens": 10_000_000})
    assert Scenario(model=ModelArch(**MODEL), workload=longest).model.max_model_len is None


def test_the_checks_hand_back_what_they_accept() -> None:
    assert check_int("n", 5, high=5) == 5
    assert check_int("n", 0, low=0, high=5) == 0
    checked = check_float("x", 1, low=0.0, high=2.0)
    assert checked == 1.0
    assert isinstance(checked, float)
