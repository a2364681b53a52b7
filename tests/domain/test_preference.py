import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES, INDEX_BY_CONFIG_ID
from service.domain.gpu import B200
from service.domain.preference import cautious, distance, prefer
from service.domain.ranking import rank

ALL = [True] * 15


def scores(**by_id: float) -> NDArray[np.float32]:
    """0 for every candidate but those that are named, e.g. s512_b8192_g85_p1."""
    row = np.zeros(15, dtype=np.float32)
    for name, value in by_id.items():
        row[INDEX_BY_CONFIG_ID[name.replace("_", "-").replace("g", "g0.")]] = value
    return row


def first(row: NDArray[np.float32], *, near_tie: float | None = 0.01, shared_gpu: bool = False) -> str:
    order = prefer(
        row,
        ALL,
        near_tie=near_tie,
        low_utilisation_gain=0.02,
        shared_gpu=shared_gpu,
        engine_default=B200.engine_default,
    )
    return CANDIDATES[order[0]].config_id


def test_a_clear_winner_comes_first() -> None:
    assert first(scores(s32_b2048_g85_p1=1.0, s256_b8192_g90_p1=0.98)) == "s32-b2048-g0.85-p1"


def test_within_the_noise_more_memory_comes_first() -> None:
    assert first(scores(s32_b2048_g85_p1=1.0, s256_b8192_g90_p1=0.995)) == "s256-b8192-g0.90-p1"


def test_with_equal_memory_more_sequences_come_first() -> None:
    assert first(scores(s32_b2048_g85_p1=1.0, s512_b2048_g85_p1=0.995)) == "s512-b2048-g0.85-p1"


def test_with_equal_memory_and_sequences_what_is_nearest_to_the_engine_s_default_comes_first() -> None:
    # The B200's default has 16,384 batched tokens and caches prefixes: 8,192 is one factor of two away, 2,048 three.
    assert first(scores(s512_b2048_g85_p1=1.0, s512_b8192_g85_p1=0.995)) == "s512-b8192-g0.85-p1"
    assert first(scores(s128_b2048_g85_p0=1.0, s128_b2048_g85_p1=0.995)) == "s128-b2048-g0.85-p1"


def test_distance_counts_factors_of_two() -> None:
    # 1024/256 = 2², 16384/8192 = 2¹, and caching is off.
    assert distance(CANDIDATES[13], B200.engine_default) == 4.0
    assert distance(CANDIDATES[0], CANDIDATES[0]) == 0.0


def test_a_low_utilisation_comes_first_only_if_it_gains_more_than_the_limit() -> None:
    assert first(scores(s32_b2048_g45_p1=1.0, s32_b2048_g85_p1=0.985), near_tie=None) == "s32-b2048-g0.85-p1"
    assert first(scores(s32_b2048_g45_p1=1.0, s32_b2048_g85_p1=0.975), near_tie=None) == "s32-b2048-g0.45-p1"


def test_on_a_shared_gpu_a_low_utilisation_needs_no_gain_and_wins_near_ties() -> None:
    row = scores(s32_b2048_g45_p1=1.0, s32_b2048_g85_p1=0.985)
    assert first(row, near_tie=None, shared_gpu=True) == "s32-b2048-g0.45-p1"
    row = scores(s32_b2048_g85_p1=1.0, s32_b2048_g45_p1=0.995)
    assert first(row, shared_gpu=True) == "s32-b2048-g0.45-p1"
    assert first(row) == "s32-b2048-g0.85-p1"


def test_a_low_utilisation_put_last_is_no_near_tie_of_the_others() -> None:
    order = prefer(
        scores(s32_b2048_g45_p1=1.0, s512_b2048_g85_p1=0.985, s32_b2048_g85_p1=0.99),
        ALL,
        near_tie=0.01,
        low_utilisation_gain=0.02,
        shared_gpu=False,
        engine_default=B200.engine_default,
    )
    assert CANDIDATES[order[0]].config_id == "s512-b2048-g0.85-p1"
    # Six candidates have the low utilisation; all of them stand behind the nine others.
    assert {CANDIDATES[i].gpu_memory_utilization for i in order[9:]} == {0.45}


def test_the_safe_come_before_the_unsafe_and_what_does_not_start_last() -> None:
    row = scores(s256_b8192_g90_p1=3.0, s32_b2048_g85_p1=2.0, s128_b2048_g85_p1=1.0)
    safe, eligible = [False] * 15, [True] * 15
    safe[INDEX_BY_CONFIG_ID["s32-b2048-g0.85-p1"]] = True
    safe[INDEX_BY_CONFIG_ID["s128-b2048-g0.85-p1"]] = True
    eligible[INDEX_BY_CONFIG_ID["s32-b2048-g0.85-p1"]] = False
    order = prefer(
        row,
        eligible,
        near_tie=0.0,
        low_utilisation_gain=None,
        shared_gpu=False,
        engine_default=B200.engine_default,
        safe=safe,
    )
    assert [CANDIDATES[i].config_id for i in order[:2]] == ["s128-b2048-g0.85-p1", "s256-b8192-g0.90-p1"]
    assert CANDIDATES[order[-1]].config_id == "s32-b2048-g0.85-p1"


@settings(deadline=None)
@given(
    st.lists(st.floats(-2, 2, width=32), min_size=15, max_size=15),
    st.lists(st.booleans(), min_size=15, max_size=15),
    st.booleans(),
)
def test_without_rules_it_is_the_plain_order_and_with_them_all_are_there_once(
    values: list[float], eligible: list[bool], shared_gpu: bool
) -> None:
    row = np.array(values, dtype=np.float32)
    plain = prefer(
        row,
        eligible,
        near_tie=None,
        low_utilisation_gain=None,
        shared_gpu=shared_gpu,
        engine_default=B200.engine_default,
    )
    assert plain == rank(row, eligible)
    ruled = prefer(
        row,
        eligible,
        near_tie=0.05,
        low_utilisation_gain=0.02,
        shared_gpu=shared_gpu,
        engine_default=B200.engine_default,
        safe=eligible[::-1],
    )
    assert sorted(ruled) == list(range(15))
    assert [eligible[i] for i in ruled] == sorted(eligible, reverse=True)


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="14 eligibilities for 15 candidates"):
        prefer(
            np.zeros(15, dtype=np.float32),
            [True] * 14,
            near_tie=None,
            low_utilisation_gain=None,
            shared_gpu=False,
            engine_default=B200.engine_default,
        )


def test_what_may_go_wrong_has_to_gain_more() -> None:
    # Half a percent to be worse than the default costs 0.02 at a price of 4, a tenth to be worse than candidate 0 costs
    # 0.3 at a price of 3; no chance costs nothing.
    not_worse = np.array([[0.995, 1.0], [1.0, 0.9], [0.995, 0.9], [1.0, 1.0]], dtype=np.float32)
    found = cautious(np.ones(4, dtype=np.float32), not_worse, prices=(4.0, 3.0))
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([0.98, 0.7, 0.68, 1.0], abs=1e-6)
    row = scores(s32_b2048_g85_p1=1.0)
    assert (cautious(row, np.zeros((15, 2), dtype=np.float32), prices=(0.0, 0.0)) == row).all()


def test_prices_are_paid_in_each_row_of_many_questions() -> None:
    found = cautious(np.zeros((2, 16), np.float32), np.zeros((2, 16, 2), np.float32), prices=(0.5, 0.25))
    assert (found == np.full((2, 16), -0.75, dtype=np.float32)).all()
