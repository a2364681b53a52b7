import pytest

from bench_runner.bar import Bar


@pytest.mark.parametrize(
    ("bar", "line"),
    [
        (Bar(name="speed", value=310, target=300), "BAR speed 310 >= 300 ok"),
        (Bar(name="speed", value=290, target=300), "BAR speed 290 >= 300 short"),
        (Bar(name="error_ms", value=4.5, target=5, at_most=True), "BAR error_ms 4.5 <= 5 ok"),
        (Bar(name="error_ms", value=5.5, target=5, at_most=True), "BAR error_ms 5.5 <= 5 short"),
        (Bar(name="error_ms", value=5.5, target=5, at_most=True, flagged=True), "BAR error_ms 5.5 <= 5 ok flagged"),
        (Bar(name="error_ms", value=4.5, target=5, at_most=True, flagged=True), "BAR error_ms 4.5 <= 5 ok"),
    ],
)
def test_a_bar_says_what_was_reached_and_whether_that_is_because_it_was_flagged(bar: Bar, line: str) -> None:
    assert bar.line() == line
