"""POST /v1/recommend:batch."""

import asyncio
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.audit import recommendation_record
from service.api.batch import MOST_ITEMS, Answered, answer_items, read_items
from service.api.caller import PARAMETERS, Caller, read_caller
from service.api.examples import BATCH_EXAMPLES
from service.api.json_body import parse_object
from service.api.problem import RefusedError, problem_body
from service.api.response_schemas import BatchAnswer
from service.api.routes import SCHEMAS, JsonBytes, RawRoute, body_of, json_body, problems, put_on_record, require_json
from service.api.state import ApiState, state_of
from service.db.record import Record

BATCH_PATH = "/v1/recommend:batch"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["items"],
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_ITEMS,
            "items": {
                "anyOf": [
                    {"$ref": f"{SCHEMAS}/RecommendRequest"},
                    {"description": "Anything else gets a problem at its place; the others are answered."},
                ]
            },
        }
    },
}

batches = APIRouter(route_class=RawRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    body: bytes
    contents: list[dict[str, Any]]
    records: list[Record]


@batches.post(
    BATCH_PATH,
    tags=["recommend"],
    operation_id="recommend_batch",
    summary="Rank the 15 configurations for up to 256 questions at once",
    response_model=BatchAnswer,
    response_description="An answer or a problem for each question, also where all are refused.",
    responses=problems(
        "invalid_json", "payload_too_large", "unsupported_media_type", "invalid_request", "measured_field", "audit_full"
    ),
    openapi_extra={"parameters": PARAMETERS, "requestBody": json_body(_SCHEMA, BATCH_EXAMPLES)},
)
async def recommend_batch(request: Request) -> Response:
    """Each question is a body of POST /v1/recommend and is answered as there; a wrong one refuses itself only."""
    state = state_of(request)
    require_json(request)
    caller = read_caller(request)
    body = await body_of(request)
    # Milliseconds of work: in a thread, so that whoever asks one question meanwhile does not wait for all of these; in
    # one thread, so that many batches take no more memory and time than one.
    work = partial(_answered, body, state, caller=caller, request_id=request.state.request_id)
    batch = await asyncio.get_running_loop().run_in_executor(state.batches, work)
    if state.memory.journal is not None and batch.records:
        await put_on_record(state.memory.journal, *batch.records)
    for content in batch.contents:
        state.metrics.count_answer("batch", content)
    return JsonBytes(batch.body)


def _answered(body: bytes, state: ApiState, *, caller: Caller, request_id: str) -> _Batch:
    items = read_items(parse_object(body))
    begun_s = perf_counter()
    found = answer_items(
        items, state.policies, default_gpu=state.default_gpu.name, models=state.models, new_id=state.new_id
    )
    seconds = (perf_counter() - begun_s) / len(found)
    for _ in found:
        state.metrics.observe_ranking(seconds)
    now_ms = state.memory.now_ms()
    answered = [one for one in found if isinstance(one, Answered)]
    content = {
        "answered": len(answered),
        "refused": len(found) - len(answered),
        "items": [
            {"index": index, "status": 200, "answer": one.content, "error": None}
            if isinstance(one, Answered)
            else {
                "index": index,
                "status": one.status,
                "answer": None,
                "error": _problem(one, index, request_id=request_id, unix_seconds=now_ms / 1000),
            }
            for index, one in enumerate(found)
        ],
    }
    return _Batch(
        body=to_json(content),
        contents=[one.content for one in answered],
        records=[recommendation_record(one.read, one.content, caller=caller, now_ms=now_ms) for one in answered],
    )


def _problem(refusal: RefusedError, index: int, *, request_id: str, unix_seconds: float) -> dict[str, Any]:
    return problem_body(
        refusal, instance=f"{BATCH_PATH}#/items/{index}", request_id=request_id, unix_seconds=unix_seconds
    )
