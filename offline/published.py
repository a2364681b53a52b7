"""The published results that ours stand beside, copied as numbers: tables of a dev and a test split of 16 each.

Source: ThakiCloud, MemoryPolicy vLLM ranker (research preview, Apache-2.0), its published evaluation; measured on one
NVIDIA B200 with vLLM 0.28. Keys are the columns of evaluation.json; latencies in milliseconds.
"""

from dataclasses import dataclass

SOURCE = "ThakiCloud, MemoryPolicy vLLM ranker, research preview (Apache-2.0); measured on one NVIDIA B200"

Row = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDifference:
    """policy − FIXED on the published test split, with its 95 % interval."""

    delta: float
    low: float
    high: float


def _dev(violation: float, failure: float, goodput: float, regret: float) -> Row:
    return {
        "slo_violation_rate": violation,
        "failure_rate": failure,
        "goodput_tps": goodput,
        "regret": regret,
    }


def _test(violation: float, throughput: float, goodput: float, ratio: float, ttft_s: float) -> Row:
    return {
        "slo_violation_rate": violation,
        "failure_rate": 0.0,
        "output_throughput_tps": throughput,
        "goodput_tps": goodput,
        "throughput_ratio_both_meet_slo": ratio,
        # The published table leaves failures out of its tail and shows their number, which was 0.
        "ttft_p95_p95_ms_without_failures": ttft_s * 1000,
    }


DEV: dict[str, Row] = {
    "FIXED": _dev(0.5625, 0.375, 593, 0.194),
    "HEUR": _dev(0.500, 0.125, 682, 0.024),
    "LightGBM": _dev(0.375, 0.000, 1049, 0.0091),
    "MLP": _dev(0.375, 0.000, 1054, 0.0063),
}

TEST: dict[str, Row] = {
    "FIXED": _test(0.250, 9483, 5343, 1.000, 10.78),
    "HEUR": _test(0.250, 8172, 4090, 0.765, 13.11),
    "LightGBM": _test(0.1875, 8580, 5811, 0.977, 10.43),
    "MLP": _test(0.250, 9502, 5369, 1.005, 12.99),
}

# By (policy, metric); the base is FIXED.
TEST_DIFFERENCES: dict[tuple[str, str], PublishedDifference] = {
    ("MLP", "slo_violation_rate"): PublishedDifference(delta=0.0, low=0.0, high=0.0),
    ("MLP", "output_throughput_tps"): PublishedDifference(delta=19.0, low=-82.8, high=119.9),
    ("MLP", "goodput_tps"): PublishedDifference(delta=26.0, low=-17.0, high=77.7),
    ("HEUR", "output_throughput_tps"): PublishedDifference(delta=-1311.0, low=-2408.0, high=-417.0),
}
