"""What became of every request of a run: one row each, and the two latencies that are defined on a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class Outcome(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REFUSED = 1  # no connection
    HTTP_ERROR = 2  # another status than 200, or an error in the stream
    GARBAGE = 3  # an answer that cannot be read or counted
    CUT = 4  # the connection ended before the answer did
    TIMED_OUT = 5  # no byte for the time-out
    NO_TOKENS = 6  # ended well, without a token
    SHORT = 7  # ended well, with fewer tokens than asked for
    UNFINISHED = 8  # the run ended first


ROW = np.dtype(
    [
        ("client", np.int32),
        ("due_ns", np.int64),
        ("sent_ns", np.int64),
        ("first_ns", np.int64),
        ("last_ns", np.int64),
        ("tokens", np.int32),
        ("first_chunk_tokens", np.int32),
        ("cached_tokens", np.int32),
        ("outcome", np.uint8),
    ]
)
NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """Arrays [requests], in the order in which requests were due. ns of the monotonic clock, −1 = never.

    client: which one sent it; −1 = the run ended before one had a place for it (open loop). due: when the client wanted
    to send. sent: when the bytes were handed to the socket. first and last: when the first and the last token came.
    first_chunk_tokens: those that came in the same read as the first token. cached_tokens: of the prompt, as the server
    says; −1 = it did not. errors: the first few distinct texts.
    """

    client: NDArray[np.int32]
    due_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    first_ns: NDArray[np.int64]
    last_ns: NDArray[np.int64]
    tokens: NDArray[np.int32]
    first_chunk_tokens: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    outcome: NDArray[np.uint8]
    errors: tuple[str, ...]

    @classmethod
    def of(cls, rows: NDArray[Any], errors: Sequence[str]) -> Self:
        """From rows of dtype ROW in any order."""
        rows = np.sort(rows, order=["due_ns", "client"], kind="stable")
        return cls(**{name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()}, errors=tuple(errors))

    def __len__(self) -> int:
        return len(self.client)

    def ttft_ms(self, *, from_due: bool) -> NDArray[np.float64]:
        """First token − sent (from_due: − due, for an open loop) in ms [requests]; NaN without a token."""
        start_ns = self.due_ns if from_due else self.sent_ns
        return np.where(self.first_ns != NEVER, (self.first_ns - start_ns) / 1e6, np.nan)

    def tpot_ms(self) -> NDArray[np.float64]:
        """(last token − first token) ÷ tokens after the first chunk, in ms [requests]; NaN if there are none."""
        after = self.tokens - self.first_chunk_tokens
        return np.where(after > 0, (self.last_ns - self.first_ns) / 1e6 / np.maximum(after, 1), np.nan)

    def e2el_ms(self) -> NDArray[np.float64]:
        """Last token − sent in ms [requests]; NaN unless completed."""
        return np.where(self.outcome == Outcome.COMPLETED, (self.last_ns - self.sent_ns) / 1e6, np.nan)

    def client_queue_ms(self) -> NDArray[np.float64]:
        """Sent − due in ms [requests]: time spent inside the client, connecting included; NaN if never sent."""
        return np.where(self.sent_ns != NEVER, (self.sent_ns - self.due_ns) / 1e6, np.nan)


def request_id(prompt_seed: int, client: int, number: int) -> str:
    """The X-Request-Id of the number-th request (from 0) that a client sends."""
    return f"{prompt_seed}-{client}-{number}"


def request_ids(log: RequestLog, prompt_seed: int) -> list[str | None]:
    """The X-Request-Id under which each row was sent; None if it never was."""
    sent: dict[int, int] = {}
    ids: list[str | None] = []
    for client, sent_ns in zip(log.client.tolist(), log.sent_ns.tolist(), strict=True):
        if sent_ns == NEVER:
            ids.append(None)
        else:
            ids.append(request_id(prompt_seed, client, sent.setdefault(client, 0)))
            sent[client] += 1
    return ids
