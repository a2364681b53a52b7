"""The estimator as an ONNX graph: transform, members, their mean, and calibration, all inside."""

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from offline.onnx_graph import IR_VERSION, OPSET_VERSION, PARITY_TOLERANCE
from offline.robust.estimator import HEAD, EstimatorNetwork, Predicted
from offline.robust.network import Transform
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES
from service.domain.manifest import (
    CHANCES,
    ESTIMATOR_CHANCES,
    ESTIMATOR_QUANTILES,
    ESTIMATOR_RATIOS,
    ONNX_INPUT,
    QUANTITIES,
)

_ROWS = "rows"
# The graph's outputs in their order, and how many numbers each has of a row.
OUTPUTS = {
    ESTIMATOR_QUANTILES: 3 * len(QUANTITIES),
    ESTIMATOR_RATIOS: 3 * len(QUANTITIES),
    ESTIMATOR_CHANCES: len(CHANCES),
}


def constant(name: str, values: NDArray[np.generic]) -> onnx.NodeProto:
    """A node, not an initialiser: what is not learnt is no parameter."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(values), f"{name}_value"))


def transform_nodes(transform: Transform) -> list[onnx.NodeProto]:
    """linear · x + log(1 + logged · x), from the graph's input to "transformed"."""
    return [
        constant("linear", transform.linear),
        constant("logged", transform.logged),
        constant("one", np.ones(1, dtype=np.float32)),
        helper.make_node("Mul", [ONNX_INPUT, "linear"], ["kept"]),
        helper.make_node("Mul", [ONNX_INPUT, "logged"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["shifted"]),
        helper.make_node("Log", ["shifted"], ["logarithm"]),
        helper.make_node("Add", ["kept", "logarithm"], ["transformed"]),
    ]


def build_estimator_graph(network: EstimatorNetwork) -> bytes:
    """The serialised model. Input [rows, 12]; outputs as in OUTPUTS; equal networks give equal bytes."""
    nodes = transform_nodes(network.transform)
    initialisers: list[TensorProto] = []
    for number in range(len(network.members)):
        _member(network, number, nodes, initialisers)
    nodes.append(helper.make_node("Mean", [f"member_{n}" for n in range(len(network.members))], ["outputs"]))
    nodes += _calibrated(network)
    graph = helper.make_graph(
        nodes,
        "estimator",
        [helper.make_tensor_value_info(ONNX_INPUT, TensorProto.FLOAT, [_ROWS, NUM_FEATURES])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ROWS, width]) for name, width in OUTPUTS.items()],
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
    return content


def _member(
    network: EstimatorNetwork, number: int, nodes: list[onnx.NodeProto], initialisers: list[TensorProto]
) -> None:
    """Gemm, Relu, …, Gemm of one member; the normalisation is folded into its first layer in float64."""
    layers = network.members[number]
    source = "transformed"
    for depth, (weight, bias) in enumerate(layers):
        if depth == 0:
            scaled = weight.astype(np.float64) / network.std
            bias = (bias.astype(np.float64) - scaled @ network.mean).astype(np.float32)
            weight = scaled.astype(np.float32)
        names = f"weight_{number}_{depth}", f"bias_{number}_{depth}"
        last = depth == len(layers) - 1
        output = f"member_{number}" if last else f"linear_{number}_{depth}"
        initialisers += [
            numpy_helper.from_array(np.ascontiguousarray(weight.T), names[0]),
            numpy_helper.from_array(bias, names[1]),
        ]
        nodes.append(helper.make_node("Gemm", [source, *names], [output]))
        if not last:
            source = f"hidden_{number}_{depth}"
            nodes.append(helper.make_node("Relu", [output], [source]))


def _calibrated(network: EstimatorNetwork) -> list[onnx.NodeProto]:
    """From the mean of the members' outputs to what EstimatorNetwork.predict has."""
    make = helper.make_node
    nodes = [
        constant("sizes", np.array(HEAD, dtype=np.int64)),
        make("Split", ["outputs", "sizes"], ["medians", "below", "above", "logits"], axis=1),
        constant("scale", network.scale),
        constant("centre", network.centre),
        make("Mul", ["medians", "scale"], ["spread"]),
        make("Add", ["spread", "centre"], ["middle"]),
        constant("last_axis", np.array([2], dtype=np.int64)),
        make("Unsqueeze", ["middle", "last_axis"], ["q50"]),
    ]
    for side, (name, combine, level) in enumerate((("below", "Sub", "q05"), ("above", "Add", "q95"))):
        nodes += [
            make("Softplus", [name], [f"{name}_soft"]),
            make("Mul", [f"{name}_soft", "scale"], [f"{name}_wide"]),
            constant(f"{name}_offset", network.offset[:, side]),
            make("Add", [f"{name}_wide", f"{name}_offset"], [f"{name}_moved"]),
            make("Relu", [f"{name}_moved"], [f"{name}_distance"]),
            make(combine, ["middle", f"{name}_distance"], [f"{name}_quantile"]),
            make("Unsqueeze", [f"{name}_quantile", "last_axis"], [level]),
        ]
    return [
        *nodes,
        make("Concat", ["q05", "q50", "q95"], ["stacked"], axis=2),
        constant("flat", np.array([0, 6 * len(QUANTITIES)], dtype=np.int64)),
        make("Reshape", ["stacked", "flat"], ["numbers"]),
        constant("halves", np.array([3 * len(QUANTITIES)] * 2, dtype=np.int64)),
        make("Split", ["numbers", "halves"], [ESTIMATOR_QUANTILES, ESTIMATOR_RATIOS], axis=1),
        constant("slope", network.slope),
        constant("shift", network.shift),
        make("Mul", ["logits", "slope"], ["steeper"]),
        make("Add", ["steeper", "shift"], ["calibrated"]),
        make("Sigmoid", ["calibrated"], [ESTIMATOR_CHANCES]),
    ]


def run_estimator_graph(content: bytes, features: NDArray[np.float32]) -> Predicted:
    """Of features [n, 16, 12], by ONNX Runtime on one thread as the service runs it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rows = {ONNX_INPUT: features.reshape(-1, features.shape[-1])}
    found = [
        np.asarray(output, dtype=np.float32).reshape(*features.shape[:2], -1) for output in session.run(None, rows)
    ]
    levels = (*features.shape[:2], len(QUANTITIES), 3)
    return Predicted(found[0].reshape(levels), found[1].reshape(levels), found[2])


def check_estimator_parity(network: EstimatorNetwork, content: bytes, features: NDArray[np.float32]) -> float:
    """The largest difference, relative above 1, between network and graph; ArtefactError above the tolerance."""
    worst = 0.0
    for expected, exported in zip(network.predict(features), run_estimator_graph(content, features), strict=True):
        scale = np.maximum(1.0, np.abs(expected))
        worst = max(worst, float((np.abs(exported.astype(np.float64) - expected) / scale).max()))
    if not worst <= 10 * PARITY_TOLERANCE:
        raise ArtefactError(f"the exported estimator differs by {worst:.3g}, above {10 * PARITY_TOLERANCE:.0e}")
    return worst
