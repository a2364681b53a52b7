"""The header `traceparent`: which trace a request belongs to (W3C Trace Context, version 00)."""

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """trace_id: 32 hex digits, parent_id: 16, flags: 2."""

    trace_id: str
    parent_id: str
    flags: str


def read_traceparent(value: bytes | None) -> TraceContext | None:
    """None where there is none, or where it is not one: a broken header starts no trace and fails no request."""
    match = _TRACEPARENT.fullmatch(value) if value else None
    if match is None:
        return None
    trace_id, parent_id, flags = (part.decode() for part in match.groups())
    return TraceContext(trace_id=trace_id, parent_id=parent_id, flags=flags)
