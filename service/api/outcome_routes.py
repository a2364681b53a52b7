"""Where outcomes come in, and the report of them goes out. Measured quantities are labels here, so they are welcome."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.caller import NAME_PATTERN
from service.api.examples import OUTCOME_EXAMPLES
from service.api.json_body import parse_object
from service.api.outcome import read_outcomes, summarise
from service.api.outcome_schemas import OutcomeAnswer, OutcomeSummary
from service.api.problem import RefusedError
from service.api.routes import RETRY_AFTER_S, SCHEMAS, JsonBytes, RawRoute, body_of, json_body, problems, require_json
from service.api.state import state_of
from service.db.database import DatabaseAwayError
from service.db.outcomes import OutcomeConflictError, add_outcomes, outcomes_since

DAY_MS = 24 * 3600 * 1000

outcomes = APIRouter(route_class=RawRoute)
reports = APIRouter()


@outcomes.post(
    "/v1/outcomes",
    tags=["outcomes"],
    operation_id="report_outcome",
    summary="What really ran, and what was measured",
    response_model=OutcomeAnswer,
    responses=problems(
        "invalid_json",
        "outcome_conflict",
        "payload_too_large",
        "unsupported_media_type",
        "invalid_request",
        "database_away",
    ),
    openapi_extra={
        "requestBody": json_body(
            {"oneOf": [{"$ref": f"{SCHEMAS}/OutcomeReport"}, {"$ref": f"{SCHEMAS}/VerifiedOutcome"}]}, OUTCOME_EXAMPLES
        )
    },
)
async def report_outcome(request: Request) -> Response:
    """One report, or the outcome file of `bench_runner verify`. Sent twice it is stored once; it may come late."""
    require_json(request)
    memory = state_of(request).memory
    reported = read_outcomes(parse_object(await body_of(request)))
    try:
        added, matched = await run_in_threadpool(add_outcomes, memory.database, reported, now_ms=memory.now_ms())
    except OutcomeConflictError as error:
        raise RefusedError("outcome_conflict", str(error)) from error
    except DatabaseAwayError as error:
        raise database_away() from error
    content: dict[str, Any] = {
        "outcome_ids": [outcome.id for outcome in reported],
        "accepted": added,
        "duplicates": len(reported) - added,
        "matched": matched,
    }
    return JsonBytes(to_json(content))


@reports.get(
    "/v1/outcomes/report",
    tags=["outcomes"],
    operation_id="get_outcome_report",
    summary="Expected against observed, recommended against default",
    responses=problems("invalid_request", "database_away"),
)
async def get_outcome_report(
    request: Request,
    days: Annotated[int, Query(ge=1, le=3650, description="How far back reports are looked at.")] = 90,
    project: Annotated[str | None, Query(pattern=NAME_PATTERN, description="Reports of one project only.")] = None,
) -> OutcomeSummary:
    """Says "not enough data" where fewer than three pairs of reports are there to compare."""
    memory = state_of(request).memory
    since_ms = memory.now_ms() - days * DAY_MS
    try:
        reported = await run_in_threadpool(outcomes_since, memory.database, since_ms, project=project)
    except DatabaseAwayError as error:
        raise database_away() from error
    return summarise(reported, days=days)


def database_away() -> RefusedError:
    """What needs the database says so, and when to come back."""
    return RefusedError(
        "database_away",
        "the database cannot be reached; nothing was stored, send it again",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
