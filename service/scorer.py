"""Scores candidates with the bundle's network in ONNX Runtime, on one thread."""

import threading
from collections.abc import Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.bundle import RESTORE
from service.domain.candidate import CANDIDATES
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES, NUM_STATE_FEATURES, encode_candidate
from service.domain.manifest import ONNX_INPUT, ONNX_OUTPUT

FATAL_ONLY = 4
# The candidates, and one configuration beside them that they are compared with.
QUESTION_ROWS = len(CANDIDATES) + 1


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
        self._rows = _question_rows()
        self._question = _Question(self._session, self._rows.copy())

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

    def score_question(self, state: Sequence[float], beside: Sequence[float]) -> NDArray[np.float32]:
        """[16]: the 15 candidates, then the configuration beside them. state: 8 features, beside: 4.

        The same bits as score_rows of the same 16 rows, for less.
        """
        return self._question.score(state, beside)

    def score_questions(
        self, states: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]
    ) -> NDArray[np.float32]:
        """[n, 16] in one run, rows as in score_question. states: [n, 8], beside: [n, 4]."""
        rows = np.repeat(self._rows[None], len(states), axis=0)
        rows[:, :, :NUM_STATE_FEATURES] = np.array(states, dtype=np.float32)[:, None]
        rows[:, -1, NUM_STATE_FEATURES:] = beside
        return self.score_rows(rows.reshape(-1, NUM_FEATURES)).reshape(len(states), QUESTION_ROWS)


class _Question:
    """One question's input and output, bound to the session once, so that a run need not look at them or make any."""

    def __init__(self, session: onnxruntime.InferenceSession, rows: NDArray[np.float32]) -> None:
        self._session = session
        self._scores = np.empty((QUESTION_ROWS, 1), dtype=np.float32)
        self._state = rows[:, :NUM_STATE_FEATURES]
        self._beside = rows[-1, NUM_STATE_FEATURES:]
        self._binding = session.io_binding()
        # On the CPU the runtime reads and writes the arrays themselves, so they live as long as the binding.
        self._binding.bind_ortvalue_input(ONNX_INPUT, onnxruntime.OrtValue.ortvalue_from_numpy(rows))
        self._binding.bind_ortvalue_output(ONNX_OUTPUT, onnxruntime.OrtValue.ortvalue_from_numpy(self._scores))
        # A run lets other threads go on, and these arrays are one question's at a time.
        self._lock = threading.Lock()

    def score(self, state: Sequence[float], beside: Sequence[float]) -> NDArray[np.float32]:
        with self._lock:
            self._state[:] = state
            self._beside[:] = beside
            self._session.run_with_iobinding(self._binding)
            return self._scores[:, 0].copy()


def _question_rows() -> NDArray[np.float32]:
    """[16, 12]: the candidates' own columns; what a question fills in is 0."""
    rows = np.zeros((QUESTION_ROWS, NUM_FEATURES), dtype=np.float32)
    rows[:-1, NUM_STATE_FEATURES:] = [encode_candidate(candidate) for candidate in CANDIDATES]
    return rows


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
