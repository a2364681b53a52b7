"""The caller's `traceparent` header, as W3C Trace Context defines it."""

import re
from dataclasses import dataclass

_HEADER = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """trace_id: 32 hexadecimal digits, parent_id: 16; neither is all zeros; flags: 2, whose bit 0 is `sampled`."""

    trace_id: str
    parent_id: str
    flags: str


def read_traceparent(value: bytes | None) -> TraceContext | None:
    """None where there is no header or it is not one: whoever traces starts a trace of its own then."""
    if value is None:
        return None
    found = _HEADER.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    version, trace_id, parent_id, flags, rest = found.groups()
    # A later version may append fields; ff is never one.
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    if not trace_id.strip(b"0") or not parent_id.strip(b"0"):
        return None
    return TraceContext(trace_id=trace_id.decode(), parent_id=parent_id.decode(), flags=flags.decode())
