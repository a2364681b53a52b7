"""What is noted of every request once it is answered."""

from starlette.types import Scope

from service.api.trace_context import TraceContext


class Observer:
    """Notes nothing."""

    def finished(
        self, scope: Scope, *, status: int, seconds: float, request_id: str, trace: TraceContext | None
    ) -> None:
        """Called once for every request, whatever became of it. status: 0 if the client left before an answer."""
