"""The exported graph: its contract, its parity with torch, and a bundle that verifies."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from offline.dataset import Development
from offline.export import read_bundle
from offline.onnx_graph import build_graph, check_parity, count_parameters, run_graph
from offline.pipeline import Run, card_stage, evaluate_stage, export_stage, train_stage
from offline.ranker import Normalisation, Ranker
from service.domain.candidate import candidates_fingerprint
from service.domain.errors import ArtefactError
from service.domain.features import feature_schema_hash
from service.domain.manifest import ONNX_INPUT, ONNX_OUTPUT


@pytest.fixture
def ranker(synthetic_data: Development) -> Ranker:
    """Random weights over real normalisation."""
    torch.manual_seed(3)
    return Ranker(Normalisation.of(synthetic_data.train.questions.features))


def test_the_graph_is_three_gemms_with_9985_numbers(ranker: Ranker) -> None:
    content = build_graph(ranker)
    graph = onnx.load_model_from_string(content).graph
    assert [node.op_type for node in graph.node] == ["Gemm", "Relu", "Gemm", "Relu", "Gemm"]
    assert count_parameters(content) == 9985
    assert [value.name for value in graph.input] == [ONNX_INPUT]
    assert [value.name for value in graph.output] == [ONNX_OUTPUT]


def test_equal_rankers_give_equal_bytes(ranker: Ranker) -> None:
    assert build_graph(ranker) == build_graph(Ranker.from_bytes(ranker.to_bytes()))


@pytest.mark.parametrize("scenarios", [1, 2, 48])
def test_the_graph_scores_any_number_of_rows_as_torch_does(
    ranker: Ranker, synthetic_data: Development, scenarios: int
) -> None:
    features = synthetic_data.train.questions.features[:scenarios]
    scores = run_graph(build_graph(ranker), features)
    assert scores.shape == (scenarios, 15)
    assert check_parity(ranker.score(features), scores) <= 1e-5


def test_parity_allows_1e_minus_5_of_a_large_score_and_no_more() -> None:
    expected = np.array([[1000.0, 0.0]], dtype=np.float32)
    assert check_parity(expected, np.array([[1000.005, 0.0]], dtype=np.float32)) < 1e-5
    with pytest.raises(ArtefactError, match="exported scores differ"):
        check_parity(expected, np.array([[1000.0, 2e-5]], dtype=np.float32))
    with pytest.raises(ArtefactError, match="exported scores differ"):
        check_parity(expected, np.array([[1000.0, math.nan]], dtype=np.float32))


def test_another_order_is_refused_where_scores_are_clearly_apart() -> None:
    # Each score moved by less than 1e-5, together they swap two that were 1.2e-5 apart.
    expected = np.array([[0.0, 1.2e-5]], dtype=np.float32)
    with pytest.raises(ArtefactError, match="orders candidates differently"):
        check_parity(expected, np.array([[0.9e-5, 0.5e-5]], dtype=np.float32))
    # 0.8e-5 apart: either order is right.
    close = np.array([[0.0, 0.8e-5]], dtype=np.float32)
    assert check_parity(close, np.array([[0.9e-5, 0.5e-5]], dtype=np.float32)) < 1e-5


def _bundle(run: Run) -> Path:
    train_stage(run)
    evaluate_stage(run)
    export_stage(run)
    return run.bundle


def test_the_manifest_promises_what_the_service_verifies(quick_run: Run) -> None:
    manifest = read_bundle(_bundle(quick_run))
    assert manifest.feature_schema == feature_schema_hash()
    assert manifest.candidates_fingerprint == candidates_fingerprint()
    assert manifest.parameters == 9985
    assert manifest.evidence == "simulated"
    assert manifest.gpu == "NVIDIA-B200"
    assert manifest.engine_version == "0.28.0"
    # The train split's own range: summarize's 12000 and agent's 0.9 lie outside.
    assert manifest.training_range["prompt_tokens"] == (256.0, 6000.0)
    assert manifest.training_range["shared_prefix_ratio"] == pytest.approx((0.0, 0.7))
    assert manifest.training_range["log2_concurrency"] == (2.0, 8.0)
    assert manifest.training["weights_sha256"].startswith(manifest.version.removeprefix("simulated-"))


def test_the_manifest_records_the_whole_grid(quick_run: Run) -> None:
    manifest = read_bundle(_bundle(quick_run))
    assert [entry["learning_rate"] for entry in manifest.training["grid"]] == [0.001, 0.003]
    assert all("dev_regret" in entry for entry in manifest.training["grid"])
    assert manifest.training["settings"]["training"]["epochs"] == 2


def test_a_damaged_bundle_is_named_with_both_hashes(quick_run: Run) -> None:
    folder = _bundle(quick_run)
    promised = read_bundle(folder).files["model.onnx"]
    (folder / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtefactError, match=rf"model\.onnx has sha256 \w{{64}}, the manifest says {promised}"):
        card_stage(quick_run)


def test_a_new_export_removes_the_card_of_the_old_weights(quick_run: Run) -> None:
    _bundle(quick_run)
    card_stage(quick_run)
    assert (quick_run.bundle / "MODEL_CARD.md").exists()
    export_stage(quick_run)
    assert sorted(path.name for path in quick_run.bundle.iterdir()) == [
        "evaluation.json",
        "manifest.json",
        "model.onnx",
    ]


def test_evaluation_json_is_strict_and_has_the_contracts_members(quick_run: Run) -> None:
    folder = _bundle(quick_run)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    evaluation = json.loads((folder / "evaluation.json").read_bytes(), parse_constant=refuse)
    dev = evaluation["test_sets"]["dev"]
    assert evaluation["evidence"] == "simulated"
    assert dev["n"] == 16
    assert set(dev["policies"]) == {"FIXED", "HEUR", "ENGINE_DEFAULT", "LightGBM", "MLP", "ORACLE"}
    assert dev["policies"]["FIXED"].keys() >= {
        "slo_violation_rate",
        "failure_rate",
        "output_throughput_tps",
        "goodput_tps",
        "regret",
        "slo_regret",
        "ttft_p95_p95_ms",
        "n_no_feasible",
    }
    comparison = dev["comparisons"]["MLP-vs-ENGINE_DEFAULT"]
    assert comparison.keys() >= {"oracle_gain_captured", "coverage"}
    assert comparison["slo_violation_rate"].keys() == {"delta", "ci"}
    assert comparison["unsafe_rate"].keys() == {"value", "upper95"}
    assert dev["policies"]["ORACLE"]["regret"] == 0
