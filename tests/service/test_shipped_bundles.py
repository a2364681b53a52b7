"""The bundles that come with the service: each answers from its own files for the GPU and confidence that it is for.

What a file says is read here without the service's readers: the graph by ONNX Runtime, the others as JSON.
"""

import gzip
import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from service.api.response_schemas import RankedRow
from service.app import create_app
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.catalogue import model_by_name
from service.domain.features import encode_candidate, encode_state
from service.domain.gpu import gpu_by_name
from service.domain.scenario import Scenario, Workload
from service.forecast_error import RATIOS
from service.policies import load_policy
from service.settings import DEFAULT_BUNDLE_DIR, Settings
from tests.service.conftest import Client

H100 = "NVIDIA-H100-80GB-HBM3"
SHIPPED = [
    ("dense-b200-robust", "NVIDIA-B200", "typical"),
    ("dense-b200-exact", "NVIDIA-B200", "exact"),
    ("dense-b200-rough", "NVIDIA-B200", "rough"),
    ("dense-h200-robust", "NVIDIA-H200", "typical"),
    ("dense-h100-robust", H100, "typical"),
]
MODEL = "Qwen/Qwen3-8B"
# By the regime that the engine's default is in then, since the simulator's errors are told by regime.
LOADS: dict[str, dict[str, Any]] = {
    "decode-bound": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
    "kv-bound": {"prompt_tokens": 8000, "max_new_tokens": 1024, "shared_prefix_ratio": 0.0, "concurrency": 256},
}
QUANTITIES = {"output_throughput_tps": "throughput", "ttft_p95_ms": "ttft", "tpot_p95_ms": "tpot"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The service as it is started without any setting but the folder of its records."""
    return Client(create_app(Settings(data_dir=tmp_path_factory.mktemp("data"))))


def answered(client: Client, gpu: str, confidence: str, load: dict[str, Any]) -> dict[str, Any]:
    body = {"model": {"name": MODEL}, "gpu": gpu, "workload": {**load, "confidence": confidence}, "explain": True}
    return client.answer(body)


def scenario(load: dict[str, Any]) -> Scenario:
    return Scenario(model=model_by_name(MODEL), workload=Workload(**load))


def of_file(folder: Path, name: str) -> dict[str, Any]:
    content = (folder / name).read_bytes()
    read: dict[str, Any] = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    return read


def test_these_are_all_that_come_with_the_service() -> None:
    settings = Settings()
    folders = [settings.bundle_dir.resolve(), *settings.further_bundles()]
    assert {folder.name for folder in folders} == {name for name, *_ in SHIPPED}
    assert {(folder.name, of_file(folder, "manifest.json")["gpu"]) for folder in folders} == {
        (name, gpu) for name, gpu, _ in SHIPPED
    }


@pytest.mark.parametrize("regime", LOADS)
@pytest.mark.parametrize(("name", "gpu", "confidence"), SHIPPED, ids=[name for name, *_ in SHIPPED])
def test_expected_numbers_are_those_of_the_bundle_s_own_network_and_error_bands(
    client: Client, name: str, gpu: str, confidence: str, regime: str
) -> None:
    folder, load = DEFAULT_BUNDLE_DIR.parent / name, LOADS[regime]
    answer = answered(client, gpu, confidence, load)
    policy = answer["policy"]
    assert (policy["version"], policy["gpu"], policy["confidence"]) == (
        of_file(folder, "manifest.json")["version"],
        gpu,
        confidence,
    )
    assert answer["support"]["in_distribution"]
    side = answer["expected"]["engine_default"]
    assert side["regime"] == regime
    features = np.array([[*encode_state(scenario(load)), *encode_candidate(default_of(gpu))]], dtype=np.float32)
    session = onnxruntime.InferenceSession(folder / "estimator.onnx")
    (quantiles,) = session.run(["quantiles"], {"features": features})[0]
    bands = of_file(folder, "error_bands.json")["bands"]["measured"]
    for column, (quantity, metric) in enumerate(QUANTITIES.items()):
        low, median, high = (float(value) for value in quantiles[3 * column : 3 * column + 3])
        band = bands[metric][side["regime"]]
        shown = side[quantity]
        assert shown["value"] == pytest.approx(math.exp(median), rel=1e-4)
        if band["low"] is None:
            assert side["simulator_error_unknown"][_named(quantity)] == band["reason"]
            below, above, moved = median - low, high - median, 0.0
        else:
            # A measurement is the simulated number ÷ (1 + error); distances of independent errors add as squares.
            least, moved, most = (-math.log1p(band[end]) for end in ("high", "bias", "low"))
            below, above = math.hypot(median - low, moved - least), math.hypot(high - median, most - moved)
            assert _named(quantity) not in side["simulator_error_unknown"]
        assert shown["low"] == pytest.approx(math.exp(min(median, median + moved - below)), rel=1e-4)
        assert shown["high"] == pytest.approx(math.exp(max(median, median + moved + above)), rel=1e-4)


@pytest.mark.parametrize("regime", LOADS)
@pytest.mark.parametrize(("name", "gpu", "confidence"), SHIPPED, ids=[name for name, *_ in SHIPPED])
def test_changes_and_chances_are_those_of_the_bundle_s_own_network(
    client: Client, name: str, gpu: str, confidence: str, regime: str
) -> None:
    folder, load = DEFAULT_BUNDLE_DIR.parent / name, LOADS[regime]
    answer = answered(client, gpu, confidence, load)
    state = encode_state(scenario(load))
    features = np.array([[*state, *encode_candidate(one)] for one in (*CANDIDATES, default_of(gpu))], dtype=np.float32)
    ratios, chances = onnxruntime.InferenceSession(folder / "estimator.onnx").run(
        ["ratios", "chances"], {"features": features}
    )
    of_row = {candidate.config_id: number for number, candidate in enumerate(CANDIDATES)}
    first = ratios[of_row[answer["ranked"][0]["config_id"]]].tolist()
    for column, quantity in enumerate(QUANTITIES):
        low, median, high = first[3 * column : 3 * column + 3]
        by_hand = {"low": math.expm1(low), "value": math.expm1(median), "high": math.expm1(high)}
        assert answer["expected"]["change"][quantity] == pytest.approx(by_hand, rel=1e-4, abs=1e-5)
    for row in answer["ranked"]:
        number = of_row[row["config_id"]]
        if row["feasible"]:
            assert row["p_not_worse_than_engine_default"] == pytest.approx(float(chances[number, 1]), abs=1e-5)
            of_fixed = 1.0 if number == 0 else float(chances[number, 2])
            assert row["p_not_worse_than_fixed"] == pytest.approx(of_fixed, abs=1e-5)


@pytest.mark.parametrize("name", [name for name, *_ in SHIPPED])
def test_each_says_how_far_its_numbers_and_its_changes_were_off(name: str) -> None:
    errors = load_policy(DEFAULT_BUNDLE_DIR.parent / name).forecast_errors
    assert set(errors) == {"throughput_tps", "ttft_p95_ms", "tpot_p95_ms", *RATIOS}


def test_the_second_price_is_nothing_where_the_documentation_of_scores_says_so() -> None:
    words = "the second was given and is 0 in the shipped policies for exactly and roughly known workloads"
    assert words in str(RankedRow.model_fields["score"].description)
    rules = {(name, known): load_policy(DEFAULT_BUNDLE_DIR.parent / name).manifest for name, _, known in SHIPPED}
    for (name, known), manifest in rules.items():
        assert manifest.abstention is not None, name
        assert (manifest.abstention.fixed_price == 0) is (known in ("exact", "rough")), name


def default_of(gpu: str) -> Candidate:
    return gpu_by_name(gpu).engine_default


def _named(quantity: str) -> str:
    """As the estimator calls it."""
    return quantity.removeprefix("output_")


@pytest.mark.parametrize("regime", LOADS)
@pytest.mark.parametrize(("name", "gpu", "confidence"), SHIPPED, ids=[name for name, *_ in SHIPPED])
def test_the_nearest_runs_are_the_three_nearest_of_the_bundle_s_own(
    client: Client, name: str, gpu: str, confidence: str, regime: str
) -> None:
    folder, load = DEFAULT_BUNDLE_DIR.parent / name, LOADS[regime]
    shown = answered(client, gpu, confidence, load)["explanation"]["neighbours"]
    content, ranges = of_file(folder, "neighbours.json.gz"), of_file(folder, "manifest.json")["training_range"]
    state = dict(zip(content["features"], encode_state(scenario(load)), strict=True))
    found = sorted(
        (distance(dict(zip(content["features"], row["features"], strict=True)), state, ranges), number)
        for number, row in enumerate(content["rows"])
    )[:3]
    assert [one["distance"] for one in shown] == pytest.approx([one for one, _ in found], rel=1e-6)
    assert shown[0]["distance"] <= shown[1]["distance"] <= shown[2]["distance"]
    for one, (_, number) in zip(shown, found, strict=True):
        row = content["rows"][number]
        assert one["config_id"] == row["config_id"]
        assert list(one["best"].values()) == row["best"]
        assert list(one["engine_default"].values()) == row["engine_default"]


def distance(one: dict[str, float], other: dict[str, float], ranges: dict[str, list[float]]) -> float:
    """As documented: features in units of the trained range, sizes and lengths by factors."""

    def place(name: str, value: float) -> float:
        low, high = ranges[name]
        if name in ("shared_prefix_ratio", "log2_concurrency"):
            return (value - low) / (high - low)
        return math.log(value / low) / math.log(high / low)

    return math.dist([place(name, one[name]) for name in one], [place(name, other[name]) for name in one])


def test_no_two_of_them_expect_the_same_or_were_trained_on_the_same_runs(client: Client) -> None:
    answers = [answered(client, gpu, confidence, LOADS["decode-bound"]) for _, gpu, confidence in SHIPPED]
    for one, other in combinations(answers, 2):
        assert one["policy"]["sha256"] != other["policy"]["sha256"]
        assert one["expected"]["engine_default"]["ttft_p95_ms"] != other["expected"]["engine_default"]["ttft_p95_ms"]
        assert one["explanation"]["neighbours"] != other["explanation"]["neighbours"]
