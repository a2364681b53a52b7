"""The ranker as an ONNX graph: Gemm, Relu, Gemm, Relu, Gemm over unnormalised features."""

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from offline.ranker import Ranker
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES
from service.domain.manifest import ONNX_INPUT, ONNX_OUTPUT, RANKER_PARAMETERS
from service.domain.ranking import rank

# Old enough for every onnxruntime that the service allows; pinned, because the bytes must not follow onnx's defaults.
OPSET_VERSION = 17
IR_VERSION = 9
PARITY_TOLERANCE = 1e-5


def folded_layers(ranker: Ranker) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """(weight [in, out], bias [out]) of each layer, the normalisation folded into the first in float64.

    w · (x − mean) / std + b = (w / std) · x + (b − (w / std) · mean)
    """
    (weight, bias), *rest = ranker.layers()
    scaled = weight.astype(np.float64) / ranker.normalisation.std
    shifted = bias.astype(np.float64) - scaled @ ranker.normalisation.mean
    first = (scaled.astype(np.float32), shifted.astype(np.float32))
    return [(np.ascontiguousarray(weight.T), bias) for weight, bias in (first, *rest)]


def build_graph(ranker: Ranker) -> bytes:
    """The serialised model. Input [rows, 12] float32, output [rows, 1] float32; equal rankers give equal bytes."""
    nodes, initialisers, source = [], [], ONNX_INPUT
    layers = folded_layers(ranker)
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


def count_parameters(content: bytes) -> int:
    """Numbers in the initialisers of a serialised model."""
    graph = onnx.load_model_from_string(content).graph
    return sum(int(np.prod(initialiser.dims)) for initialiser in graph.initializer)


def run_graph(content: bytes, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """[lists, 15] scores of features [lists, 15, 12], by ONNX Runtime on one thread as the service runs it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (scores,) = session.run([ONNX_OUTPUT], {ONNX_INPUT: features.reshape(-1, features.shape[-1])})
    return np.asarray(scores, dtype=np.float32).reshape(features.shape[:2])


def check_parity(expected: NDArray[np.float32], exported: NDArray[np.float32]) -> float:
    """The largest |difference| ÷ max(1, |score|) over [lists, 15] scores; ArtefactError above 1e-5.

    Also refuses another order of two candidates whose expected scores lie further apart than the tolerance.
    """
    scale = np.maximum(1.0, np.abs(expected))
    worst = float((np.abs(exported.astype(np.float64) - expected) / scale).max())
    if not worst <= PARITY_TOLERANCE:
        raise ArtefactError(
            f"exported scores differ from torch by {worst:.3g} · max(1, |score|), above {PARITY_TOLERANCE}"
        )
    for scores, other, tolerance in zip(expected, exported, PARITY_TOLERANCE * scale, strict=True):
        position = np.argsort(rank(other))
        ahead = (scores[:, None] - scores[None, :]) > np.maximum(tolerance[:, None], tolerance[None, :])
        if (ahead & (position[:, None] > position[None, :])).any():
            raise ArtefactError("the exported ranker orders candidates differently where scores are clearly apart")
    return worst
