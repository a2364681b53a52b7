"""The endpoints. Handlers read bytes and return bytes; the declarations around them are the documentation."""

from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import __version__
from service.api.answer import answer, candidate_json
from service.api.audit import recommendation_record
from service.api.caller import PARAMETERS, read_caller
from service.api.examples import RECOMMEND_EXAMPLES
from service.api.json_body import parse_object
from service.api.problem import MEDIA_TYPE, PROBLEMS, RefusedError
from service.api.query import read_query
from service.api.response_schemas import (
    ConfigEntry,
    ConfigsAnswer,
    EngineDefaultEntry,
    Health,
    PolicyAnswer,
    Readiness,
    RecommendAnswer,
    Version,
)
from service.api.state import state_of
from service.db.journal import Journal
from service.db.record import Record
from service.db.spool import SpoolFullError
from service.domain.candidate import CANDIDATES
from service.domain.gpu import ENGINE_VERSION

SCHEMAS = "#/components/schemas"
RETRY_AFTER_S = 5


class RawRoute(APIRoute):
    """A documented route without the framework's parsing: the endpoint takes the request and returns the response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint

        # The framework's wrapping keeps stacks of dependencies and of files, of which there are none here.
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def problems(*errors: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an operation that can be refused so; any operation can fail."""
    by_status: dict[int, list[str]] = {}
    for error in (*errors, "internal_error"):
        by_status.setdefault(PROBLEMS[error][0], []).append(error)
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}/Problem"}}}
    return {status: {"description": ", ".join(errors), "content": content} for status, errors in by_status.items()}


def json_body(schema: Mapping[str, Any], examples: Mapping[str, Any]) -> dict[str, Any]:
    """The `requestBody` of an operation that reads its JSON itself."""
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


raw = APIRouter(route_class=RawRoute)
plain = APIRouter()


@raw.post(
    "/v1/recommend",
    tags=["recommend"],
    operation_id="recommend",
    summary="Rank the 15 configurations for a model and a workload",
    response_model=RecommendAnswer,
    response_description="All 15, best first, and one decision.",
    responses=problems(
        "invalid_json",
        "payload_too_large",
        "unsupported_media_type",
        "invalid_request",
        "measured_field",
        "unknown_name",
        "unsupported_model",
        "audit_full",
    ),
    openapi_extra={
        "parameters": PARAMETERS,
        "requestBody": json_body({"$ref": f"{SCHEMAS}/RecommendRequest"}, RECOMMEND_EXAMPLES),
    },
)
async def recommend(request: Request) -> Response:
    """Takes only what is known before the server is started; a measured quantity is refused by name."""
    state = state_of(request)
    require_json(request)
    caller = read_caller(request)
    body = parse_object(await body_of(request))
    begun_s = perf_counter()
    read = read_query(
        body,
        policies=state.policies,
        default_gpu=state.default_gpu.name,
        models=state.models,
    )
    content = answer(read, recommendation_id=state.new_id())
    state.metrics.observe_ranking(perf_counter() - begun_s)
    if state.memory.journal is not None:
        record = recommendation_record(read, content, caller=caller, now_ms=state.memory.now_ms())
        await put_on_record(state.memory.journal, record)
    state.metrics.count_answer("recommend", content)
    return JsonBytes(to_json(content))


class JsonBytes(Response):
    """JSON that nobody may keep: the headers of nearly every answer, without the general way of making them."""

    media_type = "application/json"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Takes none: there is nothing to choose."""
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
        ]


async def body_of(request: Request) -> bytes:
    """The whole body, which nearly always comes in one piece. ClientDisconnect."""
    message = await request.receive()
    chunks = [message.get("body", b"")]
    while message.get("more_body"):
        message = await request.receive()
        chunks.append(message.get("body", b""))
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def put_on_record(journal: Journal, *records: Record) -> None:
    """Returns once all are durable: what is answered is on record, and what is not on record is not answered."""
    try:
        await journal.record(*records)
    except SpoolFullError as error:
        raise RefusedError(
            "audit_full",
            "the answer cannot be put on record now, so it is not given; try again",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from error


def require_json(request: Request) -> None:
    """RefusedError unless the body is announced as JSON in UTF-8, and as itself."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("identity", ""):
        raise RefusedError(
            "unsupported_media_type",
            f"Content-Encoding is {encoding[:100]!r}; send the body as it is",
            headers={"Accept-Encoding": "identity"},
        )
    content_type = request.headers.get("content-type", "")
    essence, _, parameters = content_type.lower().partition(";")
    essence = essence.strip()
    charset = parameters.partition("charset=")[2].partition(";")[0].strip(' "') or "utf-8"
    is_json = essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))
    if not is_json or charset not in ("utf-8", "utf8"):
        raise RefusedError(
            "unsupported_media_type",
            f"Content-Type is {content_type[:100]!r}; send JSON in UTF-8 as application/json",
            headers={"Accept-Post": "application/json"},
        )


@raw.get(
    "/v1/policy",
    tags=["catalogue"],
    operation_id="get_policy",
    summary="The loaded policy: manifest and evaluation",
    response_model=PolicyAnswer,
    responses={304: {"description": "It is the one named in If-None-Match."}, **problems()},
)
async def get_policy(request: Request) -> Response:
    """Everything that the bundle promises about itself; unchanged until another one is activated."""
    state = state_of(request)
    headers = {"ETag": state.policy_etag, "Cache-Control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if state.policy_etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(state.policy_body, media_type="application/json", headers=headers)


@plain.get("/v1/configs", tags=["catalogue"], operation_id="list_configs", responses=problems())
async def list_configs(request: Request) -> ConfigsAnswer:
    """The 15 configurations, and what vLLM starts with when nothing is set."""
    gpu = state_of(request).default_gpu
    configs = [ConfigEntry(index=i, **candidate_json(candidate)) for i, candidate in enumerate(CANDIDATES)]
    default = EngineDefaultEntry.model_validate(
        {"gpu": gpu.name, "engine_version": ENGINE_VERSION, "engine_args": gpu.engine_default.engine_args()}
    )
    return ConfigsAnswer(configs=configs, engine_default=default)


@plain.get("/healthz", tags=["operations"], operation_id="get_health", responses=problems())
async def get_health() -> Health:
    """Liveness."""
    return Health(status="ok")


@plain.get("/readyz", tags=["operations"], operation_id="get_readiness", responses=problems("audit_full", "draining"))
async def get_readiness(request: Request) -> Readiness:
    """Readiness: the process does not listen before its policy is verified, so what is left is room for records.

    A database that is away is no reason to be unready: answers go on while there is a spool for them.
    """
    state = state_of(request)
    if request.app.state.drain.begun:
        raise RefusedError("draining", "this process is stopping; ask another")
    journal = state.memory.journal
    if journal is not None and journal.full:
        raise RefusedError(
            "audit_full", "the database is away and the spool is full", headers={"Retry-After": str(RETRY_AFTER_S)}
        )
    return Readiness(
        status="ready",
        policy_sha256=state.policy.bundle.sha256,
        audit="off" if journal is None else "spool" if journal.away else "database",
    )


@plain.get("/version", tags=["operations"], operation_id="get_version", responses=problems())
async def get_version(request: Request) -> Version:
    """What is running."""
    manifest = state_of(request).policy.bundle.manifest
    return Version(service=__version__, engine_version=ENGINE_VERSION, policy=manifest.version)
