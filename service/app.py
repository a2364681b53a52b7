"""The composition root: settings in, a ready ASGI application out."""

import time
import uuid
from collections.abc import Callable

from fastapi import FastAPI

from service import __version__
from service.api.boundary import RequestBoundary
from service.api.docs import docs
from service.api.openapi import document
from service.api.problem_response import exception_handlers
from service.api.routes import plain, raw
from service.api.state import ApiState
from service.recommend import load_policy
from service.settings import Settings


def create_app(
    settings: Settings, *, clock: Callable[[], float] = time.time, new_id: Callable[[], str] = lambda: str(uuid.uuid4())
) -> FastAPI:
    """The application of these settings. ArtefactError, InvalidInputError: nothing half-ready is ever returned."""
    app = _routed(clock)
    app.add_middleware(RequestBoundary, new_id=new_id, clock=clock)
    policy = load_policy(settings.bundle_dir)
    app.state.api = ApiState.create(policy, default_gpu=settings.default_gpu, new_id=new_id)
    app.state.openapi = document(app.routes).encode()
    return app


def openapi_text() -> str:
    """The text of openapi.json; needs no bundle."""
    return document(_routed(time.time).routes)


def _routed(clock: Callable[[], float]) -> FastAPI:
    app = FastAPI(
        title="MemoryPolicy",
        version=__version__,
        # The document and its page are our own: a version that the page can render, assets from our origin.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=exception_handlers(clock),
    )
    for router in (raw, plain, docs):
        app.include_router(router)
    return app
