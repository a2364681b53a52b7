import json
from typing import Any

import pytest

from service.domain.errors import ArtefactError
from service.domain.gpu import B200
from service.domain.manifest import MODEL_FILE, RANKER_PARAMETERS, Abstention, HeldOut, Manifest
from service.domain.slo import Slo

STATE = (
    "weight_gb",
    "num_layers",
    "hidden_size",
    "kv_bytes_per_token",
    "prompt_tokens",
    "max_new_tokens",
    "shared_prefix_ratio",
    "log2_concurrency",
)


def content(**changes: Any) -> dict[str, Any]:
    """A manifest.json that is accepted, with changes."""
    valid: dict[str, Any] = {
        "schema_version": 1,
        "name": "small",
        "version": "simulated-0123456789ab",
        "files": {"model.onnx": "a" * 64, "MODEL_CARD.md": "b" * 64},
        "feature_schema": "c" * 64,
        "candidates_fingerprint": "d" * 64,
        "parameters": 9985,
        "training_range": {name: [0.0, 8.0] for name in STATE},
        "evidence": "simulated",
        "gpu": "NVIDIA-B200",
        "engine_version": "0.28.0",
        "slo": {"max_p95_ttft_ms": 3000.0, "max_p95_tpot_ms": 60.0, "max_error_rate": 0.01},
        "cells_sha256": "e" * 64,
        "plan_sha256": "f" * 64,
        "training": {"seed": 0, "grid": [{"learning_rate": 0.001}]},
    }
    return {**valid, **changes}


def ranges(**changes: Any) -> dict[str, Any]:
    return {**content()["training_range"], **changes}


def test_a_manifest_survives_its_file() -> None:
    manifest = Manifest.from_json(content())
    assert json.loads(json.dumps(manifest.to_json(), allow_nan=False)) == content()
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_a_manifest_reads_into_the_domains_own_values() -> None:
    manifest = Manifest.from_json(content())
    assert manifest.slo == Slo()
    assert manifest.training_range["log2_concurrency"] == (0.0, 8.0)
    assert manifest.evidence == "simulated"


def test_reading_leaves_the_content_as_it_was() -> None:
    given = content()
    Manifest.from_json(given)
    assert given == content()


def test_the_ranker_has_9985_parameters_and_one_file() -> None:
    # 12 · 128 + 128, 128 · 64 + 64, 64 · 1 + 1.
    assert RANKER_PARAMETERS == 1664 + 8256 + 65
    assert MODEL_FILE == "model.onnx"


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_version_is_refused_with_both(version: object) -> None:
    with pytest.raises(ArtefactError, match=f"schema_version {version!r}, this program reads 1"):
        Manifest.from_json(content(schema_version=version))


@pytest.mark.parametrize("key", sorted(content()))
def test_a_missing_key_is_refused_by_name(key: str) -> None:
    without = {k: v for k, v in content().items() if k != key}
    with pytest.raises(ArtefactError, match=key):
        Manifest.from_json(without)


def test_a_foreign_key_is_refused_by_name() -> None:
    with pytest.raises(ArtefactError, match="missing or foreign keys: threshold"):
        Manifest.from_json(content(threshold=1))


@pytest.mark.parametrize("evidence", ["guessed", "", None, ["simulated"]])
def test_evidence_is_one_of_three_classes(evidence: object) -> None:
    with pytest.raises(ArtefactError, match="measured, measured-cpu, simulated"):
        Manifest.from_json(content(evidence=evidence))


@pytest.mark.parametrize("key", ["feature_schema", "candidates_fingerprint", "cells_sha256", "plan_sha256"])
@pytest.mark.parametrize("digest", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_what_is_no_sha256_is_refused_by_name(key: str, digest: str) -> None:
    with pytest.raises(ArtefactError, match=f"{key} has .* where a sha256 belongs"):
        Manifest.from_json(content(**{key: digest}))


@pytest.mark.parametrize("key", ["feature_schema", "candidates_fingerprint", "cells_sha256", "plan_sha256"])
@pytest.mark.parametrize("digest", [None, 5, ["a" * 64], {}])
def test_a_digest_that_is_no_text_is_refused(key: str, digest: object) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(content(**{key: digest}))


def test_every_file_has_a_sha256() -> None:
    with pytest.raises(ArtefactError, match=r"MODEL_CARD.md has 'short'"):
        Manifest.from_json(content(files={"model.onnx": "a" * 64, "MODEL_CARD.md": "short"}))


@pytest.mark.parametrize("files", [{}, {"MODEL_CARD.md": "b" * 64}])
def test_the_model_itself_is_among_the_files(files: dict[str, str]) -> None:
    with pytest.raises(ArtefactError, match=r"files must name model\.onnx"):
        Manifest.from_json(content(files=files))


@pytest.mark.parametrize("files", [None, [], ["model.onnx"], "model.onnx", 5])
def test_files_that_are_no_table_are_refused(files: object) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(content(files=files))


@pytest.mark.parametrize("name", STATE)
def test_a_range_for_each_model_and_workload_feature_is_required(name: str) -> None:
    incomplete = {k: v for k, v in ranges().items() if k != name}
    with pytest.raises(ArtefactError, match="training_range must list weight_gb"):
        Manifest.from_json(content(training_range=incomplete))


def test_a_range_for_anything_else_is_refused() -> None:
    with pytest.raises(ArtefactError, match="training_range must list"):
        Manifest.from_json(content(training_range=ranges(log2_max_num_seqs=[5.0, 9.0])))


@pytest.mark.parametrize(
    "bounds",
    [[8.0, 0.0], [float("nan"), 1.0], [0.0, float("nan")], [float("-inf"), float("inf")], [0.0, float("inf")]],
    ids=repr,
)
def test_a_range_runs_upwards_between_finite_numbers(bounds: list[float]) -> None:
    # An infinite range would call everything in distribution.
    with pytest.raises(ArtefactError, match="training_range of num_layers"):
        Manifest.from_json(content(training_range=ranges(num_layers=bounds)))


def test_a_range_of_one_value_is_accepted() -> None:
    manifest = Manifest.from_json(content(training_range=ranges(num_layers=[36, 36])))
    assert manifest.training_range["num_layers"] == (36.0, 36.0)


@pytest.mark.parametrize("bounds", [None, [], [1.0], [1.0, 2.0, 3.0], ["low", "high"], 5, {"low": 0}], ids=repr)
def test_a_range_that_is_no_pair_of_numbers_is_refused(bounds: object) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(content(training_range=ranges(num_layers=bounds)))


@pytest.mark.parametrize("table", [None, [], "all", 5])
def test_ranges_that_are_no_table_are_refused(table: object) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(content(training_range=table))


@pytest.mark.parametrize(
    "slo",
    [
        None,
        5,
        [],
        {"max_p95_ttft_ms": -1.0},
        {"max_error_rate": float("nan")},
        {"max_p95_ttft_ms": "3000"},
        {"max_p99_ttft_ms": 3000.0},
    ],
    ids=repr,
)
def test_an_impossible_slo_is_a_damaged_manifest(slo: object) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(content(slo=slo))


def rich_content(**changes: Any) -> dict[str, Any]:
    """A manifest.json of a bundle with an estimator, with changes."""
    return {
        **content(files={"model.onnx": "a" * 64, "estimator.onnx": "b" * 64}),
        "abstention": {
            "margin": 0.01,
            "threshold": 0.9,
            "near_tie": 0.002,
            "low_utilisation_gain": 0.02,
            "risk_price": 6.0,
            "fixed_price": 1.5,
        },
        "estimator": {
            "file": "estimator.onnx",
            "quantities": ["throughput_tps", "ttft_p95_ms", "tpot_p95_ms"],
            "levels": [0.05, 0.5, 0.95],
            "chances": ["slo_met", "not_worse_than_engine_default", "not_worse_than_fixed"],
            "calibration": {"ece_slo_met": 0.01},
        },
        "confidence": "rough",
        "engine_default": B200.engine_default.engine_args(),
        "score_slope": 0.9,
        **changes,
    }


def test_a_manifest_with_an_estimator_survives_its_file() -> None:
    manifest = Manifest.from_json(rich_content())
    assert json.loads(json.dumps(manifest.to_json(), allow_nan=False)) == rich_content()
    assert manifest.abstention == Abstention(
        margin=0.01, threshold=0.9, near_tie=0.002, low_utilisation_gain=0.02, risk_price=6.0, fixed_price=1.5
    )
    assert manifest.estimator is not None
    assert manifest.estimator.levels == (0.05, 0.5, 0.95)
    assert manifest.engine_default == B200.engine_default


def test_a_manifest_of_before_has_no_estimator_and_is_typical() -> None:
    manifest = Manifest.from_json(content(abstention={"margin": 0.8}))
    assert manifest.abstention == Abstention(margin=0.8, threshold=None, near_tie=None, low_utilisation_gain=None)
    assert (manifest.estimator, manifest.confidence, manifest.engine_default) == (None, "typical", None)
    assert manifest.score_slope == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", 1.5),
        ("threshold", True),
        ("near_tie", -1),
        ("low_utilisation_gain", float("inf")),
        ("risk_price", -2.0),
        ("fixed_price", float("nan")),
        ("fixed_price", -0.5),
        ("fixed_price", "3"),
    ],
)
def test_an_impossible_rule_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ArtefactError, match=f"abstention {name} {value!r}"):
        Manifest.from_json(rich_content(abstention={"margin": 0.0, name: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"levels": [0.05, 0.4, 0.95]},
        {"levels": [0.95, 0.5, 0.05]},
        {"chances": ["x"]},
        # That of bundles before there was a chance against candidate 0: its graph has two outputs.
        {"chances": ["slo_met", "not_worse_than_engine_default"]},
    ],
)
def test_an_estimator_of_something_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="estimator"):
        Manifest.from_json(rich_content(estimator={**rich_content()["estimator"], **change}))


def test_an_estimator_is_a_file_of_the_bundle() -> None:
    with pytest.raises(ArtefactError, match=r"files must name estimator\.onnx"):
        Manifest.from_json(rich_content(files={"model.onnx": "a" * 64}))


@pytest.mark.parametrize("rule", ["threshold", "risk_price", "fixed_price"])
def test_a_rule_about_chances_needs_an_estimator(rule: str) -> None:
    without = rich_content(abstention={"margin": 0.0, rule: 0.5})
    del without["estimator"]
    with pytest.raises(ArtefactError, match=f"a {rule}, and there is no estimator"):
        Manifest.from_json(without)


@pytest.mark.parametrize(
    "change", [{"confidence": "sure"}, {"score_slope": 0.0}, {"engine_default": {"max_num_seqs": 1}}]
)
def test_other_impossible_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="manifest"):
        Manifest.from_json(rich_content(**change))


MEASURED: dict[str, Any] = {
    "configurations": ["s32-b2048-g0.85-p1", "s128-b2048-g0.92-p1"],
    "gpu_memory_gib": 1.0,
    "started_from": "simulated",
    "held_out": {"scenarios": 12, "groups": 6, "advised": 5, "worse_upper95": 0.45},
}


def test_what_was_measured_and_judged_comes_back_as_it_was_written() -> None:
    written = content(evidence="measured-cpu", **MEASURED)
    manifest = Manifest.from_json(written)
    assert manifest.configurations == ("s32-b2048-g0.85-p1", "s128-b2048-g0.92-p1")
    assert manifest.held_out == HeldOut(scenarios=12, groups=6, advised=5, worse_upper95=0.45)
    assert json.loads(json.dumps(manifest.to_json())) == written


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"configurations": []}, "is no list of config_ids"),
        ({"configurations": "s32"}, "is no list of config_ids"),
        ({"gpu_memory_gib": 0}, "gpu_memory_gib 0 is no finite number above 0"),
        ({"started_from": "guessed"}, "started_from 'guessed' is none of"),
        ({"held_out": {**MEASURED["held_out"], "groups": -1}}, "held_out groups -1 is no whole number"),
        ({"held_out": {**MEASURED["held_out"], "worse_upper95": 1.5}}, "worse_upper95 1.5 is no number from 0 to 1"),
        ({"held_out": {"groups": 1}}, "missing"),
    ],
)
def test_what_no_measurement_can_have_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtefactError, match=words):
        Manifest.from_json(content(**change))
