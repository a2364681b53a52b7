"""GET /metrics."""

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from service.api.gauges import Gauges
from service.api.metrics import MEDIA_TYPE, Metrics
from service.api.routes import problems

metrics = APIRouter()


@metrics.get(
    "/metrics",
    tags=["operations"],
    operation_id="get_metrics",
    response_class=PlainTextResponse,
    responses=problems(),
)
async def get_metrics(request: Request) -> PlainTextResponse:
    """Counters since the process started, and where records go now."""
    refresh(request.app)
    counted: Metrics = request.app.state.api.metrics
    headers = {"Cache-Control": "no-store", "Content-Type": MEDIA_TYPE}
    return PlainTextResponse(counted.exposition(), headers=headers)


def refresh(app: FastAPI) -> None:
    """Reads the application's state into its gauges."""
    gauges: Gauges = app.state.gauges
    gauges.refresh(app.state.api, draining=app.state.drain.begun)
