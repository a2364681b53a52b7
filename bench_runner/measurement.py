"""What a measured window keeps: tokens received in it, and the requests that completed in it. Times in milliseconds."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import allocating_kernel, kernel

TOKENS, COMPLETED, WITH_TPOT, LOGGED, DELAYED = 0, 1, 2, 3, 4


class Recorder(NamedTuple):
    """Observations of the window [start_ms, end_ms). `counts` holds TOKENS, COMPLETED, WITH_TPOT, LOGGED
    and DELAYED.

    ttft_ms and tpot_ms hold one value per completed request in their first COMPLETED and WITH_TPOT places; an answer
    of one token has a TTFT and no TPOT. log holds (client, sent, first token, last token) of every request of the run,
    inside the window or not, as long as it has room.
    """

    start_ms: float
    end_ms: float
    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    log: NDArray[np.float64]
    counts: NDArray[np.int64]


def new_recorder(*, start_ms: float, end_ms: float, capacity: int, logged: int = 0) -> Recorder:
    """An empty recorder; `grown` makes room when it is nearly full. logged: requests that the log has room for."""
    return Recorder(
        start_ms=start_ms,
        end_ms=end_ms,
        ttft_ms=np.zeros(capacity),
        tpot_ms=np.zeros(capacity),
        log=np.zeros((logged, 4)),
        counts=np.zeros(5, dtype=np.int64),
    )


@allocating_kernel
def grown(recorder: Recorder) -> Recorder:
    """The same observations with twice the room."""
    room = np.zeros(len(recorder.ttft_ms))
    return Recorder(
        recorder.start_ms,
        recorder.end_ms,
        np.concatenate((recorder.ttft_ms, room)),
        np.concatenate((recorder.tpot_ms, room)),
        recorder.log,
        recorder.counts,
    )


@kernel
def record_token(recorder: Recorder, now_ms: float) -> None:
    """An output token received inside the window counts for the throughput, whichever request it belongs to."""
    if recorder.start_ms <= now_ms < recorder.end_ms:
        recorder.counts[TOKENS] += 1


@kernel
def record_delay(recorder: Recorder, due_ms: float, sent_ms: float) -> None:
    """A request of an open loop that was due inside the window and waited at the client side for a free slot.

    sent_ms is infinite where there was no further request.
    """
    if due_ms < sent_ms < np.inf and recorder.start_ms <= due_ms < recorder.end_ms:
        recorder.counts[DELAYED] += 1


@kernel
def record_completion(
    recorder: Recorder, client: int, sent_ms: float, first_ms: float, last_ms: float, tokens: int
) -> None:
    """A request counts for the percentiles if its last token arrives inside the window."""
    row = recorder.counts[LOGGED]
    if row < len(recorder.log):
        recorder.log[row, 0], recorder.log[row, 1] = client, sent_ms
        recorder.log[row, 2], recorder.log[row, 3] = first_ms, last_ms
        recorder.counts[LOGGED] += 1
    if not recorder.start_ms <= last_ms < recorder.end_ms:
        return
    recorder.ttft_ms[recorder.counts[COMPLETED]] = first_ms - sent_ms
    recorder.counts[COMPLETED] += 1
    if tokens > 1:
        recorder.tpot_ms[recorder.counts[WITH_TPOT]] = (last_ms - first_ms) / (tokens - 1)
        recorder.counts[WITH_TPOT] += 1


def percentile(values: NDArray[np.float64], share: float) -> float | None:
    """Linear interpolation between order statistics; None where there is nothing."""
    return float(np.percentile(values, share)) if len(values) else None
