"""The C kernel that the ranking is compared with, compiled on this machine, with the weights of a bundle."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

SOURCE = Path(__file__).with_name("kernel.c")
_LAYERS = ("weight_1", "bias_1", "weight_2", "bias_2", "weight_3", "bias_3")


class _Network(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _LAYERS]


class Kernel:
    """score and order of [n, 15, 12] rows, from the first layer on: a transformation before it is not done."""

    def __init__(self, folder: Path, model: bytes) -> None:
        library = folder / "kernel.so"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        self._run = ctypes.CDLL(str(library)).rank_all
        self._run.restype = None
        self._weights = weights_of(model)
        self._network = _Network(*(array.ctypes.data for array in self._weights))

    def rank_all(self, questions: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Scores and indices best first, [n, 15] each; the loop over questions is in C."""
        count = len(questions)
        scores = np.empty((count, 15), dtype=np.float32)
        best_first = np.empty((count, 15), dtype=np.int32)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (questions, scores, best_first))
        self._run(ctypes.byref(self._network), count, *pointers)
        return scores, best_first


def weights_of(model: bytes) -> list[NDArray[np.float32]]:
    """The layers' weights [inputs, outputs] and biases, as the kernel wants them."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(model).graph.initializer}
    return [np.ascontiguousarray(found[name], dtype=np.float32) for name in _LAYERS]
