"""The robust ranker as a bundle: one ONNX graph with transforms and normalisation inside, evaluation and manifest."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from offline.artefacts import canonical_json, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, seal
from offline.onnx_graph import IR_VERSION, OPSET_VERSION, check_parity, count_parameters, run_graph
from offline.robust.lists import Lists
from offline.robust.models import network_sha256
from offline.robust.network import FitSettings, Network
from service.domain.candidate import candidates_fingerprint
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES, NUM_FEATURES, NUM_STATE_FEATURES, feature_schema_hash
from service.domain.gpu import B200, ENGINE_VERSION
from service.domain.manifest import (
    MODEL_FILE,
    ONNX_INPUT,
    ONNX_OUTPUT,
    RANKER_PARAMETERS,
    Abstention,
    Manifest,
)
from service.domain.slo import REFERENCE_SLO


def build_graph(network: Network) -> bytes:
    """linear · x + log(1 + logged · x), then Gemm and Relu; the normalisation is folded into the first Gemm.

    The transform's vectors are constants of nodes, not initialisers: they are not learnt and not parameters.
    """
    nodes = [
        _constant("linear", network.transform.linear),
        _constant("logged", network.transform.logged),
        _constant("one", np.ones(1, dtype=np.float32)),
        helper.make_node("Mul", [ONNX_INPUT, "linear"], ["kept"]),
        helper.make_node("Mul", [ONNX_INPUT, "logged"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["shifted"]),
        helper.make_node("Log", ["shifted"], ["logarithm"]),
        helper.make_node("Add", ["kept", "logarithm"], ["transformed"]),
    ]
    initialisers, source = [], "transformed"
    layers = _folded(network)
    for number, (weight, bias) in enumerate(layers, start=1):
        last = number == len(layers)
        initialisers += [
            numpy_helper.from_array(weight, f"weight_{number}"),
            numpy_helper.from_array(bias, f"bias_{number}"),
        ]
        output = ONNX_OUTPUT if last else f"linear_{number}"
        nodes.append(helper.make_node("Gemm", [source, f"weight_{number}", f"bias_{number}"], [output]))
        if not last:
            nodes.append(helper.make_node("Relu", [output], [f"hidden_{number}"]))
            source = f"hidden_{number}"
    graph = helper.make_graph(
        nodes,
        "ranker",
        [helper.make_tensor_value_info(ONNX_INPUT, TensorProto.FLOAT, ["rows", NUM_FEATURES])],
        [helper.make_tensor_value_info(ONNX_OUTPUT, TensorProto.FLOAT, ["rows", 1])],
        initialisers,
    )
    model = helper.make_model(
        graph,
        producer_name="memorypolicy",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET_VERSION)],
    )
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    count = count_parameters(content)
    if count != RANKER_PARAMETERS:
        raise ArtefactError(f"the graph has {count} parameters, the contract says {RANKER_PARAMETERS}")
    return content


def _constant(name: str, values: NDArray[np.float32]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values, f"{name}_value"))


def _folded(network: Network) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """(weight [in, out], bias [out]) of each layer, the normalisation in the first, as offline.onnx_graph folds it."""
    (weight, bias), *rest = network.layers
    scaled = weight.astype(np.float64) / network.std
    shifted = bias.astype(np.float64) - scaled @ network.mean
    first = (scaled.astype(np.float32), shifted.astype(np.float32))
    return [(np.ascontiguousarray(weight.T), bias) for weight, bias in (first, *rest)]


def export_bundle(
    folder: Path,
    network: Network,
    *,
    train: Lists,
    checked_on: Lists,
    margin: float,
    evaluation: dict[str, Any],
    training: dict[str, Any],
    settings: FitSettings,
    definition: str,
    lists_sha256: str,
) -> tuple[Manifest, float]:
    """Writes the bundle without its card; returns manifest and parity with the trained network over checked_on."""
    content = build_graph(network)
    features = checked_on.features()
    worst = check_parity(network.score(features), run_graph(content, features))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD_FILE).unlink(missing_ok=True)
    write_atomically(folder / MODEL_FILE, content)
    write_atomically(folder / EVALUATION_FILE, canonical_json(evaluation))
    state = train.state.astype(np.float64)
    manifest = Manifest(
        name=folder.name,
        version=f"simulated-{network_sha256(network)[:12]}",
        files={MODEL_FILE: "0" * 64},
        feature_schema=feature_schema_hash(),
        candidates_fingerprint=candidates_fingerprint(),
        parameters=RANKER_PARAMETERS,
        training_range={
            name: (float(column.min()), float(column.max()))
            for name, column in zip(FEATURE_NAMES[:NUM_STATE_FEATURES], state.T, strict=True)
        },
        evidence="simulated",
        gpu=B200.name,
        engine_version=ENGINE_VERSION,
        slo=REFERENCE_SLO,
        cells_sha256=lists_sha256,
        plan_sha256=definition,
        training={**training, "settings": asdict(settings)},
        abstention=Abstention(margin=margin),
    )
    return seal(folder, manifest), worst
