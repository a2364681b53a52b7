"""The endpoints about models: the catalogue, and the one that reads a config.json; nothing is ranked."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.examples import INSPECT_EXAMPLES
from service.api.inspection import inspection_json
from service.api.json_body import parse_object
from service.api.model_catalogue import ModelEntry as CatalogueEntry
from service.api.query import read_config, validation_refusal
from service.api.request_schemas import InspectRequest
from service.api.response_schemas import InspectAnswer, ModelEntry, ModelsAnswer
from service.api.routes import SCHEMAS, JsonBytes, RawRoute, body_of, json_body, problems, require_json
from service.api.state import state_of
from service.domain.manifest import Manifest
from service.domain.scenario import ModelArch
from service.support import model_out_of_range

models = APIRouter(route_class=RawRoute)
listing = APIRouter()
MOST_LISTED = 1000


# Not async: the first call reads every config of the catalogue, and others must not wait for it.
@listing.get("/v1/models", tags=["catalogue"], operation_id="list_models", responses=problems("invalid_request"))
def list_models(
    request: Request,
    q: Annotated[
        str,
        Query(max_length=200, description="Words of id, family, kind or quantisation, all of them; in any case."),
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED, description="Entries of the answer at most.")] = MOST_LISTED,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Matching entries to pass over.")] = 0,
) -> ModelsAnswer:
    """The models that can be given by name, the operator's first, or those that match `q`."""
    state = state_of(request)
    found = state.models.search(q)
    manifest = state.policy.bundle.manifest
    return ModelsAnswer(
        total=len(found),
        models=[_entry(entry, model, manifest) for entry, model in found[offset : offset + limit]],
    )


def _entry(entry: CatalogueEntry, model: ModelArch, manifest: Manifest) -> ModelEntry:
    read = model.architecture
    outside = [found.feature for found in model_out_of_range(model, manifest)]
    return ModelEntry.model_validate(
        {
            "id": entry.name,
            "kind": model.kind,
            "family": read.family if read else None,
            "quantisation": model.quantisation,
            "parameters": model.parameters,
            "active_parameters": read.active_parameters if read else None,
            "weight_gb": model.weight_gb,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "max_context": model.max_model_len,
            "support": {"in_distribution": not outside, "out_of_range": outside},
            "origin": entry.origin,
            "source": entry.source,
        }
    )


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
