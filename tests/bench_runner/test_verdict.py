import math

import pytest

from bench_runner.verdict import Visit, is_narrow, mean_interval, throughput_ratio, verdict


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


def test_a_drift_that_both_sides_share_cancels_in_pairs() -> None:
    ratio = throughput_ratio(visits(110, 220, 440), visits(100, 200, 400))
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.mean == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)


def test_a_pair_in_which_one_side_failed_has_no_ratio() -> None:
    ratio = throughput_ratio(visits(0, 110), visits(100, 100))
    assert ratio is not None
    assert ratio.n == 1


def test_narrow_is_a_width_whatever_the_sign() -> None:
    assert is_narrow(throughput_ratio(visits(90, 90, 90), visits(100, 100, 100)), precision=0.02)
    assert not is_narrow(throughput_ratio(visits(90, 110, 100), visits(100, 100, 100)), precision=0.02)
    assert not is_narrow(throughput_ratio(visits(90), visits(100)), precision=0.02)


@pytest.mark.parametrize(
    ("recommended", "default", "answer"),
    [
        (visits(110, 111, 110), visits(100, 100, 100), "confirmed"),
        # 1 % better or worse by less than the precision is "not worse"
        (visits(100, 101, 100), visits(100, 100, 100), "confirmed"),
        (visits(90, 91, 90), visits(100, 100, 100), "contradicted"),
        (visits(80, 130, 100), visits(100, 100, 100), "too noisy"),
        (visits(50, 50, 50), visits(100, 100, 100, slo_met=False), "confirmed"),
        (visits(200, 200, 200, slo_met=False), visits(100, 100, 100), "contradicted"),
        (visits(100, 100), visits(100, 100), "too noisy"),
        (visits(100, 100) + visits(100, slo_met=False), visits(100, 100, 100), "too noisy"),
    ],
)
def test_the_verdict_follows_the_slo_first_and_the_interval_second(
    recommended: list[Visit], default: list[Visit], answer: str
) -> None:
    assert verdict(recommended, default, precision=0.02, least_pairs=3)[0] == answer


def test_the_reason_names_the_numbers() -> None:
    _, reason = verdict(visits(90, 91, 90), visits(100, 100, 100), precision=0.02, least_pairs=3)
    assert reason.startswith("throughput is 0.903 [")
