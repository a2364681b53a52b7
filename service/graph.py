"""A graph of a bundle in ONNX Runtime, on one thread: opened, checked at its ends, asked many rows or one question."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.bundle import RESTORE
from service.domain.candidate import CANDIDATES
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES, NUM_STATE_FEATURES, encode_candidate
from service.domain.manifest import ONNX_INPUT

FATAL_ONLY = 4
# The candidates, and one configuration beside them that they are compared with.
QUESTION_ROWS = len(CANDIDATES) + 1
Rows = NDArray[np.float32]


class Graph:
    """One inference session. outputs: name -> columns; each is [rows, columns] float32 and so is what is asked."""

    def __init__(self, content: bytes, *, file: str, outputs: Mapping[str, int]) -> None:
        options = onnxruntime.SessionOptions()
        # The default thread pool spins between calls: at a call per millisecond it burns 14 times the CPU.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        # A refused graph becomes one ArtefactError; the runtime's own log would say it a second time on stderr.
        options.log_severity_level = FATAL_ONLY
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        # The runtime's errors have no common base but Exception.
        except Exception as error:
            raise ArtefactError(f"{file}: ONNX Runtime cannot load it ({_one_line(error)}); {RESTORE}") from error
        self._file, self._outputs = file, dict(outputs)
        self._check_ends()
        probe = self.run(np.zeros((QUESTION_ROWS, NUM_FEATURES), dtype=np.float32))
        if not all(np.isfinite(output).all() for output in probe):
            raise ArtefactError(f"{file}: its {', '.join(outputs)} are not finite; {RESTORE}")
        self._rows = _question_rows()
        self._question = _Question(self._session, self._rows.copy(), self._outputs)

    def _check_ends(self) -> None:
        """ArtefactError unless it is features [rows, 12] float32 -> the outputs in their order, rows free."""
        found = tuple(
            (end.name, end.type, tuple("rows" if not isinstance(size, int) else size for size in end.shape))
            for end in (*self._session.get_inputs(), *self._session.get_outputs())
        )
        widths = {ONNX_INPUT: NUM_FEATURES, **self._outputs}
        expected = tuple((name, "tensor(float)", ("rows", width)) for name, width in widths.items())
        if found != expected:
            raise ArtefactError(f"{self._file}: input and output are {found}, expected {expected}; {RESTORE}")

    def run(self, rows: Rows) -> list[Rows]:
        """[n, 12] unnormalised features -> each output, [n, columns]."""
        found: list[Rows] = self._session.run(list(self._outputs), {ONNX_INPUT: rows})
        return found

    def ask(self, state: Sequence[float], beside: Sequence[float]) -> list[Rows]:
        """Each output for the 15 candidates and the configuration beside them. state: 8 features, beside: 4.

        The same bits as `run` of the same 16 rows, for less.
        """
        return self._question.ask(state, beside)

    def ask_all(self, states: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> list[Rows]:
        """[n, 16, columns] each, in one run, rows as in `ask`. states: [n, 8], beside: [n, 4]."""
        rows = np.repeat(self._rows[None], len(states), axis=0)
        rows[:, :, :NUM_STATE_FEATURES] = np.array(states, dtype=np.float32)[:, None]
        rows[:, -1, NUM_STATE_FEATURES:] = beside
        found = self.run(rows.reshape(-1, NUM_FEATURES))
        return [output.reshape(len(states), QUESTION_ROWS, -1) for output in found]


class _Question:
    """One question's input and outputs, bound to the session once, so that a run need not look at them or make any."""

    def __init__(self, session: onnxruntime.InferenceSession, rows: Rows, outputs: Mapping[str, int]) -> None:
        self._session = session
        self._found = [np.empty((QUESTION_ROWS, width), dtype=np.float32) for width in outputs.values()]
        self._state = rows[:, :NUM_STATE_FEATURES]
        self._beside = rows[-1, NUM_STATE_FEATURES:]
        self._binding = session.io_binding()
        # On the CPU the runtime reads and writes the arrays themselves, so they live as long as the binding.
        self._binding.bind_ortvalue_input(ONNX_INPUT, onnxruntime.OrtValue.ortvalue_from_numpy(rows))
        for name, array in zip(outputs, self._found, strict=True):
            self._binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        # A run lets other threads go on, and these arrays are one question's at a time.
        self._lock = threading.Lock()

    def ask(self, state: Sequence[float], beside: Sequence[float]) -> list[Rows]:
        with self._lock:
            self._state[:] = state
            self._beside[:] = beside
            self._session.run_with_iobinding(self._binding)
            return [array.copy() for array in self._found]


def _question_rows() -> Rows:
    """[16, 12]: the candidates' own columns; what a question fills in is 0."""
    rows = np.zeros((QUESTION_ROWS, NUM_FEATURES), dtype=np.float32)
    rows[:-1, NUM_STATE_FEATURES:] = [encode_candidate(candidate) for candidate in CANDIDATES]
    return rows


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
