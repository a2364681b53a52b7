"""Scores candidates with the bundle's network in ONNX Runtime, on one thread."""

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.bundle import RESTORE
from service.domain.candidate import CANDIDATES
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES
from service.domain.manifest import ONNX_INPUT, ONNX_OUTPUT

FATAL_ONLY = 4


class Scorer:
    """One inference session. Refuses a graph whose ends are not those that the manifest's format prescribes."""

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        # The default thread pool spins between calls: at a call per millisecond it burns 14 times the CPU.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        # A refused graph becomes one ArtefactError; the runtime's own log would say it a second time on stderr.
        options.log_severity_level = FATAL_ONLY
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        # The runtime's errors have no common base but Exception.
        except Exception as error:
            raise ArtefactError(f"model.onnx: ONNX Runtime cannot load it ({_one_line(error)}); {RESTORE}") from error
        self._outputs = [ONNX_OUTPUT]
        self._check_ends()
        probe = self.score(np.zeros((len(CANDIDATES), NUM_FEATURES), dtype=np.float32))
        if not np.isfinite(probe).all():
            raise ArtefactError(f"model.onnx: its scores are not finite; {RESTORE}")

    def _check_ends(self) -> None:
        """ArtefactError unless the graph is features [rows, 12] float32 -> scores [rows, 1] float32, rows free."""
        found = tuple(
            (end.name, end.type, tuple("rows" if not isinstance(size, int) else size for size in end.shape))
            for end in (*self._session.get_inputs(), *self._session.get_outputs())
        )
        expected = (
            (ONNX_INPUT, "tensor(float)", ("rows", NUM_FEATURES)),
            (ONNX_OUTPUT, "tensor(float)", ("rows", 1)),
        )
        if found != expected:
            raise ArtefactError(f"model.onnx: input and output are {found}, expected {expected}; {RESTORE}")

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[15, 12] -> [15] or [n, 15, 12] -> [n, 15], float32; unnormalised features in, higher is better."""
        if features.ndim not in (2, 3) or features.shape[-2:] != (len(CANDIDATES), NUM_FEATURES):
            raise ValueError(f"features of shape {features.shape}, expected [15, 12] or [n, 15, 12]")
        return self.score_rows(features.reshape(-1, NUM_FEATURES)).reshape(features.shape[:-1])

    def score_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, 12] -> [n]: any configurations, each scored by itself."""
        scores: NDArray[np.float32] = self._session.run(self._outputs, {ONNX_INPUT: rows})[0]
        return scores.reshape(-1)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
