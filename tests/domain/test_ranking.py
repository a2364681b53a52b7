import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.ranking import rank


def scores(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_the_highest_score_comes_first() -> None:
    assert rank(scores(0.1, 0.9, -0.5)) == [1, 0, 2]


def test_ties_go_to_the_lower_index() -> None:
    assert rank(scores(1.0, 2.0, 2.0, 1.0)) == [1, 2, 0, 3]
    assert rank(scores(*[0.0] * 15)) == list(range(15))


def test_negative_zero_ties_with_zero() -> None:
    assert rank(scores(-0.0, 0.0, -0.0)) == [0, 1, 2]


def test_ineligible_candidates_come_last_in_the_same_order_among_themselves() -> None:
    assert rank(scores(5.0, 4.0, 3.0, 2.0), [False, True, False, True]) == [1, 3, 0, 2]
    assert rank(scores(1.0, 1.0, 1.0), [False, True, False]) == [1, 0, 2]


def test_all_or_none_eligible_is_the_plain_order() -> None:
    assert rank(scores(1.0, 3.0, 2.0), [True] * 3) == [1, 2, 0]
    assert rank(scores(1.0, 3.0, 2.0), [False] * 3) == [1, 2, 0]


def test_an_empty_row_ranks_nothing() -> None:
    assert rank(scores()) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        rank(scores(1.0, bad, 2.0))


def test_more_than_one_row_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        rank(np.zeros((2, 3), dtype=np.float32))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_eligibilities_must_be_as_many_as_scores(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} eligibilities for 3 scores"):
        rank(scores(1.0, 2.0, 3.0), [True] * count)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-1.5, 0.0, 0.25, 7.0]), st.booleans()), max_size=15))
def test_the_order_is_eligibility_then_score_then_index(rows: list[tuple[float, bool]]) -> None:
    order = rank(scores(*(score for score, _ in rows)), [eligible for _, eligible in rows])
    assert sorted(order) == list(range(len(rows)))
    keys = [(not rows[i][1], -rows[i][0], i) for i in order]
    assert keys == sorted(keys)
