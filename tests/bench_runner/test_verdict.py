import math

import pytest

from bench_runner.verdict import Visit, is_narrow, throughput_ratio, valid_pairs, verdict
from service.domain.interval import mean_interval


def visits(*throughputs: float, slo_met: bool = True) -> list[Visit]:
    return [
        Visit(output_throughput_tps=value, ttft_p95_ms=100.0, tpot_p95_ms=10.0, slo_met=slo_met)
        for value in throughputs
    ]


def test_the_interval_of_a_mean_is_students() -> None:
    # mean 10, standard deviation 2, n 4: half width 3.182 · 2 / 2
    found = mean_interval([8.0, 12.0, 8.0, 12.0])
    assert found is not None
    assert found.mean == 10
    half = 3.182 * math.sqrt(16 / 3) / 2
    assert found.low == pytest.approx(10 - half)
    assert found.high == pytest.approx(10 + half)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    one = mean_interval([5.0])
    assert one is not None
    assert (one.mean, one.low, one.high) == (5.0, None, None)
    assert mean_interval([]) is None


def pairs(recommended: list[Visit], default: list[Visit]) -> list[tuple[Visit, Visit]]:
    return valid_pairs(recommended, default)


def test_a_drift_that_both_sides_share_cancels_in_pairs() -> None:
    ratio = throughput_ratio(pairs(visits(110, 220, 440), visits(100, 200, 400)))
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.mean == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)


def test_a_failure_has_no_ratio_and_is_not_left_out() -> None:
    assert throughput_ratio(pairs(visits(0, 110, 110), visits(100, 100, 100))) is None


def test_a_pair_with_an_invalid_visit_does_not_count() -> None:
    saturated = Visit(output_throughput_tps=50.0, ttft_p95_ms=1.0, tpot_p95_ms=1.0, slo_met=True, invalid=True)
    assert len(pairs([*visits(100, 100), saturated], visits(100, 100, 100))) == 2


def test_narrow_is_a_width_whatever_the_sign() -> None:
    assert is_narrow(throughput_ratio(pairs(visits(90, 90, 90), visits(100, 100, 100))), precision=0.02)
    assert not is_narrow(throughput_ratio(pairs(visits(90, 110, 100), visits(100, 100, 100))), precision=0.02)
    assert not is_narrow(throughput_ratio(pairs(visits(90), visits(100))), precision=0.02)


OK, MISSED, FAILED = visits(100.0), visits(100.0, slo_met=False), visits(0.0, slo_met=False)


@pytest.mark.parametrize(
    ("recommended", "default", "answer"),
    [
        (visits(110, 111, 110), visits(100, 100, 100), "confirmed"),
        # worse by less than the precision is "not worse", and better measured it stays so
        (visits(100, 101, 100), visits(100, 100, 100), "confirmed"),
        (visits(99, 99.1, 99), visits(100, 100, 100), "confirmed"),
        (visits(90, 91, 90), visits(100, 100, 100), "contradicted"),
        (visits(80, 130, 100), visits(100, 100, 100), "too noisy"),
        (OK * 3, MISSED * 3, "confirmed"),
        (MISSED * 3, OK * 3, "contradicted"),
        # the default does not start: what serves is better, also beyond the SLO
        (MISSED * 3, FAILED * 3, "confirmed"),
        (FAILED * 3, MISSED * 3, "contradicted"),
        (FAILED * 3, FAILED * 3, "too noisy"),
        # a crash in one visit of three is not overlooked
        (MISSED * 2 + FAILED, MISSED * 3, "too noisy"),
        (OK * 2 + MISSED, OK * 3, "too noisy"),
        (OK, OK, "too noisy"),
    ],
)
def test_the_verdict_asks_who_serves_then_who_meets_the_slo_then_who_is_faster(
    recommended: list[Visit], default: list[Visit], answer: str
) -> None:
    assert verdict(pairs(recommended, default), precision=0.02, least_pairs=2)[0] == answer


def test_the_reason_names_the_numbers() -> None:
    _, reason = verdict(pairs(visits(90, 91, 90), visits(100, 100, 100)), precision=0.02, least_pairs=2)
    assert reason.startswith("throughput is 0.903 [")
