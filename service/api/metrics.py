"""What the memory counts, in the text format that Prometheus reads."""

from collections.abc import Iterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from service.api.routes import problems
from service.api.state import ApiState, state_of

metrics = APIRouter()
_AUDIT = "memorypolicy_audit"
_POLICY = "memorypolicy_policy"


@metrics.get(
    "/metrics",
    tags=["operations"],
    operation_id="get_metrics",
    response_class=PlainTextResponse,
    responses=problems(),
)
async def get_metrics(request: Request) -> PlainTextResponse:
    """Counters since the process started, and where records go now."""
    lines = "\n".join(_lines(state_of(request)))
    return PlainTextResponse(f"{lines}\n", headers={"Cache-Control": "no-store"})


def _lines(state: ApiState) -> Iterator[str]:
    journal, watch = state.memory.journal, state.memory.watch
    if journal is not None:
        counts = journal.counts
        yield f"# HELP {_AUDIT}_records_total Records by what became of them."
        yield f"# TYPE {_AUDIT}_records_total counter"
        for what in ("committed", "spooled", "replayed", "refused", "rejected", "damaged"):
            yield f'{_AUDIT}_records_total{{outcome="{what}"}} {getattr(counts, what)}'
        yield f"# TYPE {_AUDIT}_transactions_total counter"
        yield f"{_AUDIT}_transactions_total {counts.transactions}"
        yield f"# HELP {_AUDIT}_database_away 1 while records go to the spool."
        yield f"# TYPE {_AUDIT}_database_away gauge"
        yield f"{_AUDIT}_database_away {int(journal.away)}"
        yield f"# TYPE {_AUDIT}_spool_bytes gauge"
        yield f"{_AUDIT}_spool_bytes {journal.spool_bytes}"
    yield f"# TYPE {_POLICY}_swaps_total counter"
    yield f"{_POLICY}_swaps_total {watch.swaps}"
    yield f"# HELP {_POLICY}_refusals_total Activated bundles that this replica refused."
    yield f"# TYPE {_POLICY}_refusals_total counter"
    yield f"{_POLICY}_refusals_total {watch.refusals}"
    yield f"# TYPE {_POLICY}_info gauge"
    yield f'{_POLICY}_info{{sha256="{state.policy.bundle.sha256}"}} 1'
