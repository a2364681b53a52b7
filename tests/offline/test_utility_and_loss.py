"""Utility and ListNet on values derived by hand."""

import math

import numpy as np
import pytest
import torch

from offline.losses import listnet_loss
from offline.utility import best_feasible_tps, utilities

THROUGHPUT = np.array([[100.0, 200.0, 400.0], [10.0, 20.0, 30.0]])
MET = np.array([[True, True, False], [False, False, False]])


def test_utility_is_the_share_of_the_best_throughput_that_meets_the_slo() -> None:
    # Best of those that meet the SLO is 200, although 400 is faster; violators get −1, also all at once.
    expected = [[0.5, 1.0, -1.0], [-1.0, -1.0, -1.0]]
    assert utilities(throughput_tps=THROUGHPUT, slo_met=MET).tolist() == expected


def test_the_best_feasible_throughput_of_a_list_without_one_is_undefined() -> None:
    best = best_feasible_tps(throughput_tps=THROUGHPUT, slo_met=MET)
    assert best[0] == 200.0
    assert math.isnan(best[1])


def test_listnet_of_equal_scores_is_the_logarithm_of_the_list_length() -> None:
    # log softmax of equal scores is −ln 2 whatever the target, and the target sums to 1.
    loss = listnet_loss(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), temperature=0.1)
    assert loss.item() == pytest.approx(math.log(2))


def test_listnet_divides_the_utilities_by_the_temperature_and_not_the_scores() -> None:
    # Utilities ln 3 · 0.1 and 0 at temperature 0.1: target 3/4, 1/4. Scores ln 2 and 0: softmax 2/3, 1/3.
    scores = torch.tensor([[math.log(2), 0.0]])
    target = torch.tensor([[0.1 * math.log(3), 0.0]])
    expected = -(0.75 * math.log(2 / 3) + 0.25 * math.log(1 / 3))
    assert listnet_loss(scores, target, temperature=0.1).item() == pytest.approx(expected)


def test_listnet_is_the_mean_over_lists() -> None:
    scores = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    # Equal utilities: target 1/2 each. Second list: −(ln(3/4) + ln(1/4)) / 2.
    expected = (math.log(2) - (math.log(0.75) + math.log(0.25)) / 2) / 2
    assert listnet_loss(scores, torch.zeros(2, 2), temperature=0.1).item() == pytest.approx(expected)


def test_listnet_refuses_shapes_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        listnet_loss(torch.zeros(2, 3), torch.zeros(2, 4), temperature=0.1)
