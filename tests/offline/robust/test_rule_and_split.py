"""Who is trained on and who calibrates, how a rule decides, and which rule the data accept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_runner.announced import in_held_out_block
from offline.robust.estimator import FIXED_ROW
from offline.robust.lists import DEFAULT_ROW, Lists, read_lists
from offline.robust.rule import (
    MARGINS,
    NEAR_TIES,
    PRICES,
    Question,
    Rule,
    calibrate,
    choose_margin,
    in_support,
    risk_row,
    upper_bound,
    worse,
)
from offline.robust.split import FAMILY, REGION, block_of, group_of, trained
from service.domain.candidate import INDEX_BY_CONFIG_ID
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload
from tests.offline.robust.made_lists import write

WIDE = INDEX_BY_CONFIG_ID["s512-b8192-g0.85-p1"]
NARROW = INDEX_BY_CONFIG_ID["s32-b2048-g0.85-p1"]
# Two prices of the sequence, one behind the other, and what lies between them.
ACCEPTED, REFUSED = PRICES[4:6]
BETWEEN = (ACCEPTED + REFUSED) / 2
LOW = INDEX_BY_CONFIG_ID["s32-b2048-g0.45-p1"]


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return read_lists(write(tmp_path / "made.parquet", rows=400, draws=1))


def question(lists: Lists) -> Question:
    """Every score 0 and every chance 1 but where a test says otherwise."""
    return Question(
        scores=np.zeros((len(lists), 16), dtype=np.float32),
        not_worse=np.ones((len(lists), 16, 2), dtype=np.float32),
        starts=lists.starts,
        supported=np.ones(len(lists), dtype=np.bool_),
        engine_default=lists.engine_default,
    )


def test_blocks_are_those_that_test_sets_are_cut_from() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        prompt, new, clients = (int(np.exp(rng.uniform(0, np.log(high)))) for high in (32_000, 4_000, 512))
        workload = Workload(prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=0.0, concurrency=clients)
        assert (block_of(prompt, new, clients) == 0) == in_held_out_block(workload)


def test_a_held_out_family_or_region_is_not_trained_on(lists: Lists) -> None:
    group = group_of(lists)
    columns = lists.columns
    for row in range(len(lists)):
        block = block_of(*(int(columns[n][row]) for n in ("prompt_tokens", "max_new_tokens", "concurrency")))
        assert group[row] == (REGION if block == 1 else "")
    assert 0 < (group == REGION).sum() < len(lists)
    columns["family"][:7] = "Phi"
    assert group_of(lists)[:7].tolist() == [FAMILY] * 7
    assert not trained(lists)[:7].any()


def test_risk_has_to_be_paid_for_in_score(lists: Lists) -> None:
    one = question(lists[:3])
    one.scores[:, NARROW] = 0.5
    one.not_worse[:, NARROW, 0] = [1.0, 0.96, 0.94]
    # At a price of 10 the three are worth 0.5, 0.1 and −0.1.
    assert one.choices(Rule(risk_price=10.0)).tolist() == [NARROW, NARROW, DEFAULT_ROW]
    assert one.choices(Rule(risk_price=10.0, margin=0.2)).tolist() == [NARROW, DEFAULT_ROW, DEFAULT_ROW]
    assert one.choices(Rule(risk_price=0.0, threshold=0.95)).tolist() == [NARROW, NARROW, DEFAULT_ROW]


def test_what_is_worse_than_candidate_0_is_paid_for_by_the_default_too(lists: Lists) -> None:
    one = question(lists[:3])
    one.scores[:, :DEFAULT_ROW] = -1.0
    one.scores[:, NARROW] = -0.1
    one.not_worse[:, DEFAULT_ROW, 1] = [0.9, 0.9, 1.0]
    one.not_worse[:, NARROW, 1] = [1.0, 0.9, 1.0]
    # At a price of 2 the default's 0 becomes −0.2 where it is worse than candidate 0 in a tenth of the draws: there
    # NARROW gains 0.1, unless it is worse as often.
    assert one.choices(Rule(fixed_price=2.0)).tolist() == [NARROW, DEFAULT_ROW, DEFAULT_ROW]
    assert one.choices(Rule(fixed_price=2.0, margin=0.09)).tolist() == [NARROW, DEFAULT_ROW, DEFAULT_ROW]
    assert one.choices(Rule(fixed_price=2.0, margin=0.11)).tolist() == [DEFAULT_ROW] * 3
    assert one.choices(Rule()).tolist() == [DEFAULT_ROW] * 3


def test_both_prices_are_paid_and_a_configuration_is_never_worse_than_itself(lists: Lists) -> None:
    one = question(lists[:2])
    one.scores[:, [FIXED_ROW, NARROW]] = [0.30, 0.5]
    one.not_worse[:, NARROW] = [0.99, 0.95]
    one.not_worse[:, FIXED_ROW] = [0.98, 1.0]
    # NARROW costs 10 · 0.01 + 4 · 0.05 = 0.3 of 0.5; candidate 0 costs 10 · 0.02 and nothing against itself: 0.1.
    assert one.choices(Rule(risk_price=10.0, fixed_price=4.0, margin=0.19)).tolist() == [NARROW, NARROW]
    assert one.choices(Rule(risk_price=10.0, fixed_price=4.0, margin=0.21)).tolist() == [DEFAULT_ROW] * 2
    # At a price of 8 for the second, NARROW is left with 0 and candidate 0 is first.
    assert one.choices(Rule(risk_price=10.0, fixed_price=8.0)).tolist() == [FIXED_ROW, FIXED_ROW]


def test_out_of_support_or_without_room_nothing_is_recommended(lists: Lists) -> None:
    one = question(lists[:2])
    one.scores[:, WIDE] = 0.5
    one.supported[0] = False
    one.starts[1, WIDE] = False
    assert one.choices(Rule()).tolist() == [DEFAULT_ROW, DEFAULT_ROW]


def test_a_near_tie_and_a_low_utilisation_are_settled_as_in_the_service(lists: Lists) -> None:
    one = question(lists[:2])
    one.scores[:, [NARROW, WIDE]] = [0.5, 0.49]
    one.scores[1, LOW] = 0.51
    assert one.choices(Rule(near_tie=0.02, low_utilisation_gain=0.02)).tolist() == [WIDE, WIDE]
    assert one.choices(Rule(low_utilisation_gain=0.02)).tolist() == [NARROW, NARROW]
    assert one.choices(Rule(low_utilisation_gain=0.005)).tolist() == [NARROW, LOW]


def test_support_is_every_feature_within_its_range(lists: Lists) -> None:
    clients = lists.columns["concurrency"]
    assert in_support(lists, {"log2_concurrency": (0.0, 6.0)}).tolist() == (clients <= 64).tolist()


def test_the_bound_is_clopper_and_pearson_s() -> None:
    # None of 299: 1 − 0.05^(1/299). One of one may always happen.
    assert upper_bound(0, 299) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert upper_bound(1, 1) == 1.0
    # At the bound, 12 or fewer of 1,986 have a chance of 5 %; the table value of beta(0.95; 13, 1974).
    assert upper_bound(12, 1986) == pytest.approx(0.0097714673)


def risky(lists: Lists, *, worse: int) -> tuple[Question, np.ndarray, np.ndarray]:
    """Every list gains 0.5 by NARROW; in the first `worse` of them it violates what the default keeps."""
    one = question(lists)
    one.scores[:, NARROW] = 0.5
    lists.outcomes.met[:] = True
    lists.outcomes.throughput_tps[:] = 100.0
    lists.outcomes.met[:worse, NARROW] = False
    utility = np.where(lists.outcomes.met, 1.0, -1.0)
    return one, utility, np.array(["all"] * len(lists))


def test_the_lowest_price_is_taken_at_which_the_bound_on_the_risk_holds(lists: Lists) -> None:
    one, utility, groups = risky(lists, worse=4)
    # The chance costs what is gained between two prices; the bound of 4 of 400 is 2.3 %.
    one.not_worse[:4, NARROW, 0] = 1 - 0.5 / BETWEEN
    start = Rule(margin=0.01, fixed_price=0.5, threshold=0.8, low_utilisation_gain=0.04)
    rule, rows = calibrate(one, lists, utility, groups, start=start)
    # The rest stays as it was, but for the widest near tie that costs nothing.
    assert rule == replace(start, risk_price=ACCEPTED, near_tie=NEAR_TIES[-1])
    refused = next(row for row in rows if row.get("risk_price") == REFUSED)
    bound = pytest.approx(upper_bound(4, 400))
    # Candidate 0 keeps the SLO where the default does, so against both the four are worse.
    assert refused["by_group"]["all"] == {
        "worse": {"default": 4, "fixed": 4},
        "n": 400,
        "upper95": {"default": bound, "fixed": bound},
    }
    assert refused["worse"] == {"default": 0.01, "fixed": 0.01}


def test_prices_go_no_lower_when_the_bound_against_candidate_0_is_exceeded_alone(lists: Lists) -> None:
    one, utility, groups = risky(lists, worse=0)
    # In four lists candidate 0 has a tenth more than everyone, and NARROW's chance to be worse than the default costs
    # what it gains between two prices.
    lists.outcomes.throughput_tps[:4, FIXED_ROW] = 110.0
    one.not_worse[:4, NARROW, 0] = 1 - 0.5 / BETWEEN
    rule, rows = calibrate(one, lists, utility, groups, start=Rule())
    assert rule.risk_price == ACCEPTED
    refused = next(row for row in rows if row.get("risk_price") == REFUSED)
    assert refused["by_group"]["all"]["worse"] == {"default": 0, "fixed": 4}
    assert refused["by_group"]["all"]["upper95"]["default"] == pytest.approx(1 - 0.05 ** (1 / 400))
    assert refused["upper95"] == refused["by_group"]["all"]["upper95"]["fixed"] == pytest.approx(upper_bound(4, 400))
    assert not any(row.get("risk_price", REFUSED) < REFUSED for row in rows)


def test_only_draws_in_which_flags_are_set_can_be_made_worse_by_them(lists: Lists) -> None:
    few = lists[:4]
    few.outcomes.met[:] = True
    few.outcomes.throughput_tps[:] = 100.0
    # Everywhere candidate 0 is better than both the default and NARROW by more than a twentieth.
    few.outcomes.throughput_tps[:, FIXED_ROW] = 120.0
    chosen = np.array([DEFAULT_ROW, NARROW, FIXED_ROW, DEFAULT_ROW])
    assert worse(few, chosen, FIXED_ROW).tolist() == [False, True, False, False]
    assert worse(few, chosen).tolist() == [False] * 4
    row = risk_row(chosen, few, np.zeros((4, 16)), np.array(["a", "a", "b", "b"]))
    assert row["worse"] == {"default": 0.0, "fixed": 0.25}
    assert [one["worse"] for one in row["by_group"].values()] == [
        {"default": 0, "fixed": 1},
        {"default": 0, "fixed": 0},
    ]
    assert row["upper95"] == row["by_group"]["a"]["upper95"]["fixed"] == pytest.approx(upper_bound(1, 2))
    assert row["coverage"] == 0.5


def test_of_margins_that_cost_nothing_the_widest_is_taken(lists: Lists) -> None:
    one = question(lists[:10])
    *_, free, dear = MARGINS
    one.scores[:3, NARROW], one.scores[3:, NARROW] = free / 2, (free + dear) / 2
    utility = np.zeros((10, 16))
    utility[3:, NARROW] = 1.0
    # Without the first three nothing is lost, without the others everything.
    assert choose_margin(one, utility, fixed_price=2.5) == free


def test_what_no_price_makes_safe_is_refused(lists: Lists) -> None:
    one, utility, groups = risky(lists, worse=40)
    with pytest.raises(ArtefactError, match=f"not even a price of {PRICES[0]}"):
        calibrate(one, lists, utility, groups, start=Rule())


def test_the_worst_group_decides(lists: Lists) -> None:
    one, utility, groups = risky(lists, worse=4)
    # 4 of 400 all alike would be refused even so; apart from 350 safe ones, they are 4 of 50.
    one = replace(one, supported=np.arange(400) >= 4)
    rule, _ = calibrate(one, lists, utility, groups, start=Rule())
    assert rule.risk_price == PRICES[-1]
    groups = np.where(np.arange(400) < 50, "few", "many")
    with pytest.raises(ArtefactError, match="not even"):
        calibrate(one, lists, utility, groups, start=Rule())
