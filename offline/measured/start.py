"""The ranker of a bundle as a point to start from: its graph's fixed transforms, and its three layers."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from offline.export import read_bundle
from offline.onnx_graph import OPSET_VERSION, folded_layers, run_graph
from offline.ranker import Normalisation, Ranker
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES
from service.domain.manifest import MODEL_FILE, ONNX_INPUT, Manifest

_LAYERS = (1, 2, 3)


class Start:
    """A bundle whose graph is transforms of the 12 features, then Gemm, Relu, Gemm, Relu, Gemm."""

    def __init__(self, content: bytes, manifest: Manifest) -> None:
        self.content = content
        self.manifest = manifest
        self._model = onnx.load_model_from_string(content)
        arrays = {one.name: numpy_helper.to_array(one) for one in self._model.graph.initializer}
        kinds = [node.op_type for node in self._model.graph.node]
        names = {f"{kind}_{number}" for kind in ("weight", "bias") for number in _LAYERS}
        if kinds[-5:] != ["Gemm", "Relu", "Gemm", "Relu", "Gemm"] or arrays.keys() != names:
            raise ArtefactError(f"the graph of {manifest.name} is no ranker of three layers; start from another bundle")
        self._arrays = arrays

    @classmethod
    def read(cls, folder: Path) -> Self:
        """A verified bundle; ArtefactError if its files are not those of its manifest."""
        manifest = read_bundle(folder)
        return cls((folder / MODEL_FILE).read_bytes(), manifest)

    def transformed(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[lists, n, 12] features as the first layer gets them."""
        nodes = list(self._model.graph.node)[:-5]
        if not nodes:
            return features
        output = self._model.graph.node[-5].input[0]
        shape: list[str | int | None] = ["rows", NUM_FEATURES]
        graph = helper.make_graph(
            nodes,
            "transforms",
            [helper.make_tensor_value_info(ONNX_INPUT, onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)],
        )
        model = helper.make_model(
            graph, ir_version=self._model.ir_version, opset_imports=[helper.make_opsetid("", OPSET_VERSION)]
        )
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (found,) = session.run([output], {ONNX_INPUT: features.reshape(-1, NUM_FEATURES)})
        return np.asarray(found, dtype=np.float32).reshape(features.shape)

    def ranker(self, normalisation: Normalisation) -> Ranker:
        """The bundle's own function, written over inputs that are normalised by these statistics.

        w · t + b = (w · std) · (t − mean) / std + (b + w · mean), so training starts from the bundle's scores and
        from inputs of unit scale.
        """
        ranker = Ranker(normalisation)
        with torch.no_grad():
            for number, layer in zip(_LAYERS, (ranker.layer_1, ranker.layer_2, ranker.layer_3), strict=True):
                weight, bias = self._arrays[f"weight_{number}"].T.astype(np.float64), self._arrays[f"bias_{number}"]
                if number == 1:
                    bias = bias + weight @ normalisation.mean
                    weight = weight * normalisation.std
                layer.weight.copy_(torch.from_numpy(weight.astype(np.float32)))
                layer.bias.copy_(torch.from_numpy(np.array(bias, dtype=np.float32)))
        return ranker

    def with_layers_of(self, ranker: Ranker) -> bytes:
        """The bundle's graph with another ranker's layers behind the same transforms."""
        model = onnx.load_model_from_string(self.content)
        del model.graph.initializer[:]
        for number, (weight, bias) in enumerate(folded_layers(ranker), start=1):
            parts: list[tuple[str, NDArray[Any]]] = [(f"weight_{number}", weight), (f"bias_{number}", bias)]
            model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in parts)
        onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def scores(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[lists, n] of [lists, n, 12], as the bundle gives them today."""
        return run_graph(self.content, features)
