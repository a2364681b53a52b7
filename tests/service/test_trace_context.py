"""`traceparent` is read as W3C Trace Context defines it; whatever else stands there is no trace."""

import pytest

from service.api.trace_context import TraceContext, read_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{PARENT}-01", "01"),
        (f"00-{TRACE}-{PARENT}-00", "00"),
        (f" 00-{TRACE}-{PARENT}-01\t", "01"),
        # A version to come may append fields, and keeps the first four.
        (f"cc-{TRACE}-{PARENT}-01", "01"),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-brings", "01"),
    ],
)
def test_a_header_names_the_trace_and_the_span_that_called(header: str, flags: str) -> None:
    assert read_traceparent(header.encode()) == TraceContext(trace_id=TRACE, parent_id=PARENT, flags=flags)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01.",
        f"ff-{TRACE}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{'g' * 32}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01",
    ],
)
def test_what_is_no_such_header_is_no_trace(header: str) -> None:
    assert read_traceparent(header.encode()) is None


def test_without_a_header_there_is_no_trace() -> None:
    assert read_traceparent(None) is None
