"""POST /v1/hooks/endpoint-creation: answered with 200 also where nothing is to be changed."""

import re
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.caller import HEADERS, Caller, token_name
from service.api.examples import HOOK_EXAMPLES
from service.api.hook import asked_of, digest_of, hook_answer, read_hook
from service.api.hook_decision import HookDecision
from service.api.hook_desk import Case, recordable_name
from service.api.hook_schemas import HookAnswer, HookRequest
from service.api.json_body import parse_object
from service.api.problem import Detail, RefusedError
from service.api.routes import SCHEMAS, JsonBytes, RawRoute, body_of, json_body, problems, require_json
from service.api.secret import without_secrets
from service.api.state import state_of
from service.logs import log_without_values

IDEMPOTENCY_KEY = "Idempotency-Key"
KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,127}$"
_KEY = re.compile(KEY_PATTERN)
_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "description": "The same key is answered with the same decision, also after another policy was activated.",
        "schema": {"type": "string", "pattern": KEY_PATTERN},
    },
    {"name": "X-Caller", "in": "header", "description": HEADERS["X-Caller"], "schema": {"type": "string"}},
]

hooks = APIRouter(route_class=RawRoute)


@hooks.post(
    "/v1/hooks/endpoint-creation",
    tags=["hooks"],
    operation_id="decide_endpoint_creation",
    summary="What to set of what a new endpoint leaves open",
    response_model=HookAnswer,
    response_description="A decision; `skip` with a reason wherever there is any doubt.",
    responses=problems(
        "invalid_json",
        "payload_too_large",
        "unsupported_media_type",
        "invalid_request",
        "measured_field",
        "idempotency_conflict",
    ),
    openapi_extra={
        "parameters": _PARAMETERS,
        "requestBody": json_body({"$ref": f"{SCHEMAS}/HookRequest"}, HOOK_EXAMPLES),
    },
)
async def decide_endpoint_creation(request: Request) -> Response:
    """Never overrides what the user or the operator has set; a failure of the service is a skip, too."""
    state = state_of(request)
    require_json(request)
    key = _key(request)
    body, hook = _read(await body_of(request), request_id=request.state.request_id)
    policies = state.policies

    def render(decision: HookDecision, decision_id: str) -> dict[str, Any]:
        return hook_answer(hook, decision, policies, decision_id=decision_id)

    case = Case(
        door="endpoint-creation",
        digest=digest_of(body),
        asked=lambda: asked_of(hook, state.hooks.mapping),
        render=render,
        caller=Caller(
            caller=token_name(request) or recordable_name(request.headers.get("x-caller")),
            project=recordable_name(hook.project_id),
            endpoint=recordable_name(hook.request.get("name")),
            mode=hook.mode,
        ),
        request_id=request.state.request_id,
        key=key,
    )
    content = await state.desk(policies).settle(case)
    return JsonBytes(to_json(content))


def _read(raw: bytes, *, request_id: str) -> tuple[dict[str, Any], HookRequest]:
    """RefusedError as elsewhere, but without what stood there: it may be a secret."""
    try:
        body = parse_object(raw)
        return body, read_hook(body)
    except RefusedError as error:
        details = [Detail(path=_bare(detail.path), message=_bare(detail.message)) for detail in error.details]
        raise RefusedError(error.error, _bare(error.message), details=details) from None
    except Exception as error:
        log_without_values(error, "the hook", request_id=request_id)
        raise RefusedError("internal_error", "the service failed; its log has the cause under this id") from None


def _bare(text: str) -> str:
    return str(without_secrets(text))


def _key(request: Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None or _KEY.fullmatch(key):
        return key
    message = "use letters, digits and ._:/@+=- only, 128 at most"
    raise RefusedError(
        "invalid_request",
        f"{IDEMPOTENCY_KEY}: {message}",
        details=[Detail(path=IDEMPOTENCY_KEY, message=message)],
    )
