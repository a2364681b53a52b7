"""The robust ranker as a bundle: one ONNX graph with transforms and normalisation inside, evaluation and manifest."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from offline.artefacts import canonical_json, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, seal
from offline.onnx_graph import build_graph as ranker_graph
from offline.onnx_graph import check_parity, run_graph
from offline.ranker import Ranker
from offline.robust.lists import Lists
from offline.robust.models import network_sha256
from offline.robust.network import FitSettings, Network
from service.domain.candidate import candidates_fingerprint
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, feature_schema_hash
from service.domain.gpu import B200, ENGINE_VERSION
from service.domain.manifest import (
    MODEL_FILE,
    ONNX_INPUT,
    RANKER_PARAMETERS,
    Abstention,
    Manifest,
)
from service.domain.slo import REFERENCE_SLO


def build_graph(network: Network) -> bytes:
    """linear · x + log(1 + logged · x) before the graph of offline.onnx_graph, which folds the normalisation.

    The transform's vectors are constants of nodes, not initialisers: they are not learnt and not parameters.
    """
    model = onnx.load_model_from_string(ranker_graph(_as_ranker(network)))
    ranked = list(model.graph.node)
    ranked[0].input[0] = "transformed"
    transform = [
        _constant("linear", network.transform.linear),
        _constant("logged", network.transform.logged),
        _constant("one", np.ones(1, dtype=np.float32)),
        helper.make_node("Mul", [ONNX_INPUT, "linear"], ["kept"]),
        helper.make_node("Mul", [ONNX_INPUT, "logged"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["shifted"]),
        helper.make_node("Log", ["shifted"], ["logarithm"]),
        helper.make_node("Add", ["kept", "logarithm"], ["transformed"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend([*transform, *ranked])
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _constant(name: str, values: NDArray[np.float32]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values, f"{name}_value"))


def _as_ranker(network: Network) -> Ranker:
    """The layers behind the transform; ArtefactError if they are not those of the contract."""
    arrays: dict[str, NDArray[Any]] = {"mean": network.mean, "std": network.std}
    for number, (weight, bias) in enumerate(network.layers, start=1):
        arrays |= {f"weight_{number}": weight, f"bias_{number}": bias}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return Ranker.from_bytes(buffer.getvalue())


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
