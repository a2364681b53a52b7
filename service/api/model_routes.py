"""The endpoint that reads a config.json and ranks nothing."""

from fastapi import APIRouter
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.examples import INSPECT_EXAMPLES
from service.api.inspection import inspection_json
from service.api.json_body import parse_object
from service.api.query import read_config, validation_refusal
from service.api.request_schemas import InspectRequest
from service.api.response_schemas import InspectAnswer
from service.api.routes import SCHEMAS, JsonBytes, RawRoute, body_of, json_body, problems, require_json

models = APIRouter(route_class=RawRoute)


@models.post(
    "/v1/models:inspect",
    tags=["catalogue"],
    operation_id="inspect_model",
    summary="Weights and KV cache of a config.json, with the formulas used",
    response_model=InspectAnswer,
    response_description="What it says about memory.",
    responses=problems(
        "invalid_json", "payload_too_large", "unsupported_media_type", "invalid_request", "unsupported_model"
    ),
    openapi_extra={"requestBody": json_body({"$ref": f"{SCHEMAS}/InspectRequest"}, INSPECT_EXAMPLES)},
)
async def inspect_model(request: Request) -> Response:
    """Nothing is ranked and nothing put on record."""
    require_json(request)
    body = parse_object(await body_of(request))
    try:
        asked = InspectRequest.model_validate(body)
    except ValidationError as error:
        refused = error.errors(include_url=False, include_context=False)
        raise validation_refusal(refused, parts={(): InspectRequest}) from error
    model = read_config(asked.config, at=("config",))
    if model.architecture is None:
        raise ValueError("a model that was read from a config has an architecture")
    content = inspection_json(model.architecture, at_tokens=asked.at_tokens)
    return JsonBytes(to_json(content))
