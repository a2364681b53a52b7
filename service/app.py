"""The composition root: settings in, a ready ASGI application out."""

import gc
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from fastapi import FastAPI

from service import __version__
from service.api.admission_routes import admission
from service.api.batch_routes import batches
from service.api.boundary import RequestBoundary
from service.api.direct import Direct
from service.api.docs import docs
from service.api.drain import Drain
from service.api.gate import Gate, gate_of
from service.api.gauges import Gauges, kept_fresh
from service.api.hook_desk import HookSettings
from service.api.hook_routes import hooks
from service.api.mapping import read_mapping
from service.api.metrics import Metrics, is_multiprocess
from service.api.metrics_routes import metrics, refresh
from service.api.model_folder import with_models_dir
from service.api.model_routes import listing, models
from service.api.observer import Observer, templates
from service.api.openapi import document
from service.api.outcome_routes import outcomes, reports
from service.api.page import pages
from service.api.policy_watch import PolicyWatch
from service.api.problem_response import exception_handlers
from service.api.routes import plain, raw
from service.api.state import ApiState, Memory
from service.db.database import Database, DatabaseAwayError, open_database
from service.db.journal import Journal, JournalSettings
from service.db.schema import prepare
from service.db.spool import Spool
from service.logs import access_log, log_without_values
from service.policies import Policies, load_policies
from service.settings import Settings

if TYPE_CHECKING:
    from service.tracing import Tracing

logger = logging.getLogger(__name__)

ROUTERS = (raw, batches, hooks, admission, outcomes, reports, models, listing, plain, metrics, docs, pages)


def create_app(
    settings: Settings, *, clock: Callable[[], float] = time.time, new_id: Callable[[], str] = lambda: str(uuid.uuid4())
) -> FastAPI:
    """The application of these settings. ArtefactError, InvalidInputError: nothing half-ready is ever returned."""
    app = _routed(clock)
    # The one that is added last is the outermost.
    app.add_middleware(Direct, routes=app.routes, clock=clock)
    app.state.drain = Drain()
    tracing = app.state.tracing = _tracing(settings)
    counted = Metrics(on_ranking=tracing.ranked if tracing else None)
    app.state.gauges = Gauges(counted.registry, audit=settings.audit)
    observer = Observer(
        counted, access=access_log(), paths=templates(ROUTERS), trace_id=tracing.trace_id if tracing else None
    )
    app.add_middleware(
        RequestBoundary,
        new_id=new_id,
        clock=clock,
        gate=_gate(settings),
        observer=observer,
        drain=app.state.drain,
        body_timeout_s=settings.body_timeout_s,
    )
    if tracing is not None:
        app.add_middleware(tracing.wrap, route=observer.route)
    catalogue = with_models_dir(settings.models_dir)
    own = load_policies(settings.bundle_dir, settings.further_bundles())
    database, away = _prepared(settings)
    watch = PolicyWatch(database, own, poll_s=settings.policy_poll_s)
    watch.look()
    memory = Memory(database=database, journal=_journal(settings, database, away=away), watch=watch, clock=clock)
    app.state.api = ApiState.create(
        watch.current,
        default_gpu=settings.default_gpu,
        new_id=new_id,
        memory=memory,
        hooks=_hook_settings(settings),
        metrics=counted,
        models=catalogue,
    )

    def swap(policies: Policies) -> None:
        app.state.api = app.state.api.with_policies(policies)

    watch.swap = swap
    # Made when somebody reads it: it takes more memory than all questions together.
    app.state.openapi = cache(lambda: document(app.routes).encode())
    return app


def openapi_text() -> str:
    """The text of openapi.json; needs no bundle."""
    return document(_routed(time.time).routes)


def _tracing(settings: Settings) -> "Tracing | None":
    if settings.otlp_endpoint is None:
        return None
    # A third of a second to import, for who asks for it.
    from service.tracing import Tracing

    return Tracing(endpoint=settings.otlp_endpoint, sample_ratio=settings.trace_sample_ratio)


def _gate(settings: Settings) -> Gate:
    return gate_of(
        host=settings.host,
        auth=settings.auth,
        tokens_file=settings.tokens_file,
        open_routes=settings.open_routes,
        rate_limit_per_s=settings.rate_limit_per_s,
        clock=time.monotonic,
    )


def _hook_settings(settings: Settings) -> HookSettings:
    return HookSettings(
        mapping=read_mapping(settings.hook_mapping_file),
        deadline_s=settings.hook_deadline_ms / 1000,
        precedence=settings.hook_precedence,
        annotation_prefix=settings.annotation_prefix,
    )


def _prepared(settings: Settings) -> tuple[Database, bool]:
    """The database at this release's schema, and whether it is away.

    A server that is away is prepared when it is back; an embedded file must be there.
    """
    database = open_database(settings.database_url, data_dir=settings.data_dir, synchronous=settings.sqlite_synchronous)
    try:
        prepare(database)
    except DatabaseAwayError as error:
        if database.is_sqlite:
            raise
        logger.warning("starting without a database, records go to the spool: %s", error)
        return database, True
    return database, False


def _journal(settings: Settings, database: Database, *, away: bool) -> Journal | None:
    if not settings.audit:
        return None
    spool = Spool(
        settings.spool_dir or settings.data_dir / "spool",
        most_bytes=int(settings.spool_max_mib * 2**20),
        own_name=str(uuid.uuid4()),
    )
    return Journal(
        database,
        spool,
        away=away,
        settings=JournalSettings(group_size=settings.audit_group_size, deadline_s=settings.audit_deadline_ms / 1000),
    )


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    """The threads live as long as the server serves; what waits is made durable before it ends."""
    memory: Memory = app.state.api.memory
    # What was loaded stays as long as the process; a full collection that looked through all of it under load would
    # stop every request meanwhile.
    gc.collect()
    gc.freeze()
    try:
        if memory.journal is not None:
            memory.journal.start()
        memory.watch.start()
    except Exception as error:
        # uvicorn reports a traceback, of which the log keeps no text.
        log_without_values(error, "the start")
        raise
    async with AsyncExitStack() as running:
        if is_multiprocess():
            await running.enter_async_context(kept_fresh(lambda: refresh(app)))
        yield
    memory.watch.close()
    if memory.journal is not None:
        memory.journal.close()
    memory.database.dispose()
    if app.state.tracing is not None:
        app.state.tracing.close()
    gc.unfreeze()


def _routed(clock: Callable[[], float]) -> FastAPI:
    app = FastAPI(
        title="MemoryPolicy",
        version=__version__,
        # The document and its page are our own: a version that the page can render, assets from our origin.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # The framework's own would send messages of exceptions and queries to whatever OTEL_* names.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        exception_handlers=exception_handlers(clock),
        lifespan=_running,
    )
    for router in ROUTERS:
        # Not include_router, which matches every request twice: these have no prefix and nothing else to combine.
        app.router.routes.extend(router.routes)
    return app
