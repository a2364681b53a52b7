import pytest

from service.domain.errors import (
    ArtefactError,
    InvalidInputError,
    LeakageError,
    MemoryPolicyError,
    UnknownNameError,
    UnsupportedModelError,
    shorten,
)


@pytest.mark.parametrize("error", [InvalidInputError, LeakageError, ArtefactError])
def test_every_error_is_below_one_root(error: type[Exception]) -> None:
    assert issubclass(error, MemoryPolicyError)


def test_refused_names_and_models_are_invalid_input() -> None:
    assert issubclass(UnknownNameError, InvalidInputError)
    assert issubclass(UnsupportedModelError, InvalidInputError)


def test_a_message_says_what_the_value_and_the_remedy() -> None:
    error = InvalidInputError(path="prompt_tokens", value=0, remedy="give a whole number from 1 to 10")
    assert str(error) == "prompt_tokens: 0 cannot be used; give a whole number from 1 to 10"
    assert (error.path, error.value, error.remedy) == ("prompt_tokens", 0, "give a whole number from 1 to 10")


def test_an_unknown_name_lists_the_known_ones_even_from_an_iterator() -> None:
    error = UnknownNameError(path="gpu", value="X1", known=iter(["A", "B"]))
    assert str(error) == "gpu: 'X1' cannot be used; known: A, B"
    assert error.known == ("A", "B")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (None, "None"),
        ("a", "'a'"),
        ([1, 2], "[1, 2]"),
        (True, "True"),
        # 58 letters and two quotes are 60 characters; one letter more is cut to 59 and an ellipsis.
        ("x" * 58, "'" + "x" * 58 + "'"),
        ("x" * 59, "'" + "x" * 58 + "…"),
        # Control characters are escaped, so a value cannot forge a line of a log.
        ("a\nb\x1b", r"'a\nb\x1b'"),
        (2**256 - 1, "115792089237316195423570985008687907853269984665640564039457…"[:59] + "…"),
        (2**256, "an integer of 257 bits"),
        (-(2**256), "an integer of 257 bits"),
        (10**400, "an integer of 1329 bits"),
    ],
)
def test_a_value_is_shown_short(value: object, text: str) -> None:
    assert shorten(value) == text


@pytest.mark.parametrize("limit", [1, 2, 10, 59, 60])
def test_the_limit_is_never_exceeded(limit: int) -> None:
    assert len(shorten("y" * 1000, limit=limit)) == limit


def test_an_integer_too_long_to_print_is_shown_by_its_size_wherever_it_stands() -> None:
    for value in (10**5000, [10**5000], {"a": {"b": 10**5000}}):
        assert len(shorten(value)) <= 60


def test_a_value_nested_too_deep_to_print_is_shown_all_the_same() -> None:
    value: list[object] = []
    for _ in range(5000):
        value = [value]
    assert len(shorten(value)) <= 60


def test_a_hostile_value_cannot_flood_a_message() -> None:
    error = InvalidInputError(path="a", value=["x" * 100_000] * 10, remedy="give less")
    assert len(str(error)) < 120
