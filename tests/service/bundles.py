"""Builds real bundles: a graph of the ranker's shape, its manifest and an evaluation, all hashes right."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from service.domain.candidate import candidates_fingerprint
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, encode_candidate, feature_schema_hash
from service.domain.gpu import B200
from service.domain.manifest import (
    CHANCES,
    ESTIMATOR_CHANCES,
    ESTIMATOR_FILE,
    ESTIMATOR_QUANTILES,
    ESTIMATOR_RATIOS,
    MANIFEST_FILE,
    MODEL_FILE,
    ONNX_INPUT,
    ONNX_OUTPUT,
    QUANTITIES,
    RANKER_PARAMETERS,
    Estimator,
    Manifest,
)
from service.domain.slo import Slo

WIDTHS = (12, 128, 64, 1)
# Of a test's estimator: the 95th percentile is a quarter above the median, and that of a ratio a tenth.
SPREAD, RATIO_SPREAD = math.log(1.25), math.log(1.1)
EVALUATION = {"schema_version": 1, "evidence": "simulated", "test_sets": {}}

# The range of the reference's training split, by hand: four Qwen3 models; chat, rag and longgen; 4 to 256 clients.
TRAINING_RANGE = {
    "weight_gb": (1.19209984, 16.38147072),
    "num_layers": (28.0, 36.0),
    "hidden_size": (1024.0, 4096.0),
    "kv_bytes_per_token": (114688.0, 147456.0),
    "prompt_tokens": (256.0, 6000.0),
    "max_new_tokens": (128.0, 1024.0),
    "shared_prefix_ratio": (0.0, 0.7),
    "log2_concurrency": (2.0, 8.0),
}


def random_layers(seed: int = 0) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """(weights [out, in], bias [out]) per layer; inputs scaled down so that raw features give sensible scores."""
    generator = np.random.default_rng(seed)
    layers = []
    for fan_in, fan_out in pairwise(WIDTHS):
        weights = generator.normal(0, fan_in**-0.5, (fan_out, fan_in)).astype(np.float32)
        layers.append((weights, generator.normal(0, 0.1, fan_out).astype(np.float32)))
    scale = np.array([0.1, 0.03, 3e-4, 1e-5, 3e-4, 2e-3, 1, 0.2, 0.2, 0.1, 1, 1], dtype=np.float32)
    layers[0] = (layers[0][0] * scale, layers[0][1])
    return layers


def only_sequences(slope: float) -> bytes:
    """A ranker whose score is slope · log2(max_num_seqs): the default, 1024, has 10 · slope, the best of 15 has 9."""
    layers = [
        (np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.float32))
        for shape in ((128, 12), (64, 128), (1, 64))
    ]
    layers[0][0][0, FEATURE_NAMES.index("log2_max_num_seqs")] = 1.0
    layers[1][0][0, 0] = 1.0
    layers[2][0][0, 0] = slope
    return graph(layers)


def graph(
    layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]],
    *,
    input_name: str = ONNX_INPUT,
    output_name: str = ONNX_OUTPUT,
    rows: str | int = "rows",
) -> bytes:
    """Gemm, Relu, Gemm, Relu, Gemm as the exporter writes it."""
    nodes, initialisers, current = [], [], input_name
    for number, (weights, bias) in enumerate(layers):
        names = f"w{number}", f"b{number}"
        initialisers += [
            numpy_helper.from_array(array, name) for array, name in zip((weights, bias), names, strict=True)
        ]
        last = number == len(layers) - 1
        out = output_name if last else f"h{number}"
        nodes.append(helper.make_node("Gemm", [current, *names], [out], transB=1))
        current = out
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"a{number}"]))
            current = f"a{number}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
        for name, width in ((input_name, layers[0][0].shape[1]), (output_name, 1))
    ]
    made = helper.make_graph(nodes, "ranker", [ends[0]], [ends[1]], initialisers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """at + Σ slope · feature: a number that can be worked out by hand. by: slopes by feature."""

    at: float
    by: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> list[float]:
        """The 12 slopes."""
        return [self.by.get(name, 0.0) for name in FEATURE_NAMES]

    def against_default(self) -> "Linear":
        """What it is more than that of a B200's engine default under the same model and workload."""
        base = dict(zip(FEATURE_NAMES[NUM_STATE_FEATURES:], encode_candidate(B200.engine_default), strict=True))
        by = {name: slope for name, slope in self.by.items() if name in base}
        return Linear(at=-sum(slope * base[name] for name, slope in by.items()), by=by)


def estimator_graph(
    *,
    throughput: Linear,
    ttft: Linear,
    tpot: Linear,
    chances: tuple[Linear, Linear],
    not_worse_than_fixed: Linear | None = None,
    ratio: Linear | None = None,
    ttft_ratio: Linear | None = None,
) -> bytes:
    """Throughput, TTFT and TPOT are logarithms of medians; the outer quantiles lie SPREAD to both sides.

    chances: of the SLO and of not being worse than the engine's default; not to be worse than candidate 0 is certain by
    default. ratio, ttft_ratio: to the engine default's, by default what the medians have; RATIO_SPREAD to both sides.
    """
    medians = (throughput, ttft, tpot)
    ratios = (
        ratio or throughput.against_default(),
        ttft_ratio or ttft.against_default(),
        tpot.against_default(),
    )
    columns = {
        ESTIMATOR_QUANTILES: [(one, shift) for one in medians for shift in (-SPREAD, 0.0, SPREAD)],
        ESTIMATOR_RATIOS: [(one, shift) for one in ratios for shift in (-RATIO_SPREAD, 0.0, RATIO_SPREAD)],
        ESTIMATOR_CHANCES: [(one, 0.0) for one in (*chances, not_worse_than_fixed or Linear(at=1.0))],
    }
    nodes, initialisers, ends = [], [], []
    for name, of in columns.items():
        weights = np.array([one.row() for one, _ in of], dtype=np.float32)
        bias = np.array([one.at + shift for one, shift in of], dtype=np.float32)
        initialisers += [numpy_helper.from_array(weights, f"{name}_w"), numpy_helper.from_array(bias, f"{name}_b")]
        nodes.append(helper.make_node("Gemm", [ONNX_INPUT, f"{name}_w", f"{name}_b"], [name], transB=1))
        ends.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", len(of)]))
    asked = helper.make_tensor_value_info(ONNX_INPUT, TensorProto.FLOAT, ["rows", len(FEATURE_NAMES)])
    made = helper.make_graph(nodes, "estimator", [asked], ends, initialisers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def write_bundle(
    directory: Path,
    *,
    model: bytes | None = None,
    estimator: bytes | None = None,
    more: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> Path:
    """A bundle that verifies, unless `changes` to the manifest say otherwise. more: further files, by name."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {MODEL_FILE: model or graph(random_layers()), "evaluation.json": json.dumps(EVALUATION).encode()}
    contents |= more or {}
    if estimator is not None:
        contents[ESTIMATOR_FILE] = estimator
        changes["estimator"] = Estimator(
            file=ESTIMATOR_FILE, quantities=QUANTITIES, levels=(0.05, 0.5, 0.95), chances=CHANCES, calibration={}
        )
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    manifest = Manifest(
        name="test-bundle",
        version="1.2.3",
        files={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        feature_schema=feature_schema_hash(),
        candidates_fingerprint=candidates_fingerprint(),
        parameters=RANKER_PARAMETERS,
        training_range=TRAINING_RANGE,
        evidence="simulated",
        gpu="NVIDIA-B200",
        engine_version="0.28.0",
        slo=Slo(),
        cells_sha256="1" * 64,
        plan_sha256="2" * 64,
        training={"seed": 0},
    )
    (directory / MANIFEST_FILE).write_text(
        json.dumps(replace(manifest, **changes).to_json(), indent=2), encoding="utf-8"
    )
    return directory
