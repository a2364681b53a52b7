"""Ranges: which points stand for one, and which configuration holds over it."""

from typing import Any

import numpy as np
import pytest

from service.domain.ranking import rank
from service.domain.scenario import Workload
from service.load_range import MOST_POINTS, LoadRange, RangeScores, workload_of

CHAT: dict[str, Any] = {
    "prompt_tokens": (512, 512),
    "max_new_tokens": (256, 256),
    "shared_prefix_ratio": (0.0, 0.0),
    "concurrency": (64, 64),
}


def test_without_a_range_one_point_is_all_there_is() -> None:
    points, inside = LoadRange(**CHAT).points()
    load = Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=64)
    assert [workload_of(point) for point in points] == [load]
    assert inside == 1


def test_counts_go_by_factors_and_a_ratio_by_differences() -> None:
    ends = LoadRange(**{**CHAT, "prompt_tokens": (100, 6400), "shared_prefix_ratio": (0.2, 0.8)})
    # 6400 is 64 times 100, whose root is 8; a third of the way is the cube root, 4.
    assert ends.middle.prompt_tokens == 800
    assert ends.middle.shared_prefix_ratio == pytest.approx(0.5)
    assert ends.at([[1 / 3, 0.5, 0.25, 0.5]])[0] == pytest.approx((400, 256, 0.35, 64))
    assert ends.extremes.tolist() == [[100, 256, 0.2, 64], [6400, 256, 0.8, 64]]


def test_a_prefix_in_tokens_is_a_smaller_share_of_a_longer_prompt() -> None:
    ends = LoadRange(
        **{**CHAT, "prompt_tokens": (1000, 4000), "shared_prefix_ratio": (0.2, 0.8)}, prefix_tokens=(800, 800)
    )
    shares = {prompt: ratio for prompt, _, ratio, _ in ends.points()[0].tolist()}
    assert (shares[1000], shares[4000]) == (0.8, 0.2)
    assert ends.middle.shared_prefix_ratio == 800 / 2000


@pytest.mark.parametrize(
    "moving",
    [
        {"prompt_tokens": (16, 4096)},
        {"prompt_tokens": (16, 4096), "concurrency": (1, 256)},
        {"prompt_tokens": (16, 4096), "concurrency": (1, 256), "shared_prefix_ratio": (0.0, 0.9)},
        {
            "prompt_tokens": (16, 4096),
            "concurrency": (1, 256),
            "shared_prefix_ratio": (0.0, 0.9),
            "max_new_tokens": (1, 2048),
        },
    ],
)
def test_the_points_fill_the_inside_evenly_and_hold_every_corner(moving: dict[str, Any]) -> None:
    ends = LoadRange(**{**CHAT, **moving})
    points, inside = ends.points()
    assert len(points) == MOST_POINTS
    assert len(points) - inside == 2 ** len(moving)
    columns = [list(CHAT).index(name) for name in moving]
    corners = [tuple(point) for point in points[inside:, columns].tolist()]
    assert set(corners) == {
        tuple(moving[name][int(bit)] for name, bit in zip(moving, format(n, f"0{len(moving)}b"), strict=True))
        for n in range(2 ** len(moving))
    }
    # Of each range the lower half gets half of the points.
    for name, (low, high) in moving.items():
        middle = low + (high - low) / 2 if name == "shared_prefix_ratio" else (low * high) ** 0.5
        below = (points[:inside, list(CHAT).index(name)] < middle).mean()
        assert below == pytest.approx(0.5, abs=0.1)


def test_reversed_ends_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt_tokens"):
        LoadRange(**{**CHAT, "prompt_tokens": (2, 1)})


def test_a_share_above_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="shared_prefix_ratio"):
        LoadRange(**{**CHAT, "shared_prefix_ratio": (0.0, 1.5)})


def scores_of(*rows: dict[int, float], default: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Scores [points, 16]: so much for some candidates, -9 for the others, `default` for the engine's default."""
    scores = np.full((len(rows), 16), -9.0, dtype=np.float32)
    scores[:, -1] = default
    for scored, row in zip(scores, rows, strict=True):
        for candidate, score in row.items():
            scored[candidate] = score
    return scores


def over(*rows: dict[int, float], inside: int, slope: float = 1.0, default: float = 0.0) -> RangeScores:
    """Those scores as a range of that many points."""
    points = np.array([[512.0, 256.0, 0.0, 64.0]] * len(rows))
    return RangeScores(points=points, scores=scores_of(*rows, default=default), inside=inside, slope=slope)


def test_gain_is_the_mean_over_the_inside_and_regret_the_worst_of_all_points() -> None:
    # Candidate 3 is ahead by 0.4 and 0.2 inside and behind by 0.6 at the corner; scores are ten times utilities.
    found = over({3: 4.0, 5: 0.0}, {3: 2.0, 5: 0.0}, {3: -6.0, 5: 0.0}, inside=2, slope=0.1, default=1.0)
    held = found.held([True] * 15)
    assert tuple(held[3]) == pytest.approx((0.2, 0.6, 2))
    assert tuple(held[5]) == pytest.approx((-0.1, 0.4, 0))
    assert found.mean[3] == pytest.approx(3.0)


def test_the_least_worst_case_comes_before_the_best_mean() -> None:
    # 3 has the better mean, 0.3 against 0; the worst regret of 5 is 0.4, and of 3 it is 0.6.
    found = over({3: 0.4, 5: 0.0}, {3: 0.2, 5: 0.0}, {3: -0.6, 5: 0.0}, inside=2)
    assert found.order([True] * 15, rank)[:2] == [5, 3]


def test_of_worst_cases_that_are_alike_the_best_mean_comes_first() -> None:
    # Worst regrets 0.10 (candidate 5) and 0.11 (candidate 3) are alike; means 0.05 and 0.06.
    found = over({3: 0.23, 5: 0.13}, {3: -0.11, 5: 0.0}, {3: 0.0, 5: 0.0}, inside=2)
    assert [round(found.held([True] * 15)[i].worst_regret, 3) for i in (3, 5)] == [0.11, 0.1]
    assert found.order([True] * 15, rank)[:2] == [5, 3]
    further = over({3: 0.25, 5: 0.15}, {3: -0.11, 5: 0.0}, {3: 0.0, 5: 0.0}, inside=1)
    assert further.order([True] * 15, rank)[:2] == [3, 5]


def test_what_cannot_be_chosen_sets_no_regret_and_comes_last() -> None:
    eligible = [i != 3 for i in range(15)]
    found = over({3: 5.0, 5: 1.0, 6: 0.9}, {3: 5.0, 5: 0.9, 6: 1.0}, inside=2)
    order = found.order(eligible, rank)
    assert order[0] == 5
    assert order[-1] == 3
    assert found.held(eligible)[5].worst_regret == pytest.approx(0.1)
