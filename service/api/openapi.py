"""The OpenAPI document: what the framework derives, the schemas of what it does not parse, and version 3.0.3."""

import json
from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from service import __version__
from service.api.gate import PROBES, SCOPES
from service.api.hook_schemas import HookRequest
from service.api.outcome_schemas import OutcomeReport, VerifiedOutcome
from service.api.request_schemas import InspectRequest, RecommendRequest
from service.api.response_schemas import Problem
from service.api.routes import problems
from service.api.token import TokenScope

# The packaged Swagger UI cannot render 3.1, and client generators read 3.0 best.
OPENAPI_VERSION = "3.0.3"
_DESCRIPTION = (
    "Which of 15 vLLM configurations should a model run with, for a workload? Asked before the server is started, "
    "answered from what is known before it is started."
)
_TAGS = [
    {"name": "recommend", "description": "The question."},
    {"name": "hooks", "description": "Asked by platforms while they create an endpoint."},
    {"name": "outcomes", "description": "What really ran, and what came of it."},
    {"name": "catalogue", "description": "What the answer is made of."},
    {"name": "operations", "description": "For whoever runs the service."},
]
# Values, not schemas: what stands under these keys is not rewritten.
_OPAQUE = ("example", "examples", "default", "enum")


def document(routes: Sequence[BaseRoute]) -> str:
    """The text of openapi.json."""
    derived = get_openapi(
        title="MemoryPolicy",
        version=__version__,
        openapi_version=OPENAPI_VERSION,
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        tags=_TAGS,
        routes=routes,
    )
    _, definitions = models_json_schema(
        [
            (RecommendRequest, "validation"),
            (HookRequest, "validation"),
            (InspectRequest, "validation"),
            (OutcomeReport, "validation"),
            (VerifiedOutcome, "validation"),
            (Problem, "serialization"),
        ],
        ref_template="#/components/schemas/{model}",
    )
    schemas = derived.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    derived["components"]["schemas"] = dict(sorted(schemas.items()))
    for path, operations in derived["paths"].items():
        for operation in operations.values():
            if path not in PROBES:
                _guard(operation, SCOPES[path])
            for response in operation["responses"].values():
                response["headers"] = {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}}
    derived["components"]["headers"] = {
        "RequestId": {
            "description": "The X-Request-ID of the request if it had a usable one, else a new one.",
            "schema": {"type": "string"},
        }
    }
    derived["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "Asked for where the operator has set tokens."}
    }
    return json.dumps(_as_3_0(derived), indent=2, ensure_ascii=False) + "\n"


def _guard(operation: dict[str, Any], scope: TokenScope) -> None:
    """What may happen to any request before its operation is reached."""
    operation["security"] = [{"bearer": []}, {}]
    operation["x-token-scope"] = scope
    refusals = [
        "unauthorized",
        "forbidden",
        "rate_limited",
        *(["request_timeout"] if "requestBody" in operation else []),
    ]
    for status, response in problems(*refusals).items():
        operation["responses"].setdefault(str(status), response)
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _as_3_0(node: Any) -> Any:
    """The same schema in the words of 3.0: nullable for null, enum for const, no siblings of $ref."""
    if isinstance(node, list):
        return [_as_3_0(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "null":
        return {**{key: value for key, value in node.items() if key != "type"}, "nullable": True, "enum": [None]}
    schema: dict[str, Any] = {key: value if key in _OPAQUE else _as_3_0(value) for key, value in node.items()}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    alternatives: list[dict[str, Any]] = schema.get("anyOf", [])
    others = [_nullable(item) for item in alternatives if item.get("enum") != [None]]
    if len(others) < len(alternatives):
        del schema["anyOf"]
        schema = {**others[0], **schema} if len(others) == 1 else {**schema, "anyOf": others}
    if "$ref" in schema and len(schema) > 1:
        schema["allOf"] = [{"$ref": schema.pop("$ref")}]
    return schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"nullable": True, "allOf": [schema]}
    # An enumeration excludes null unless it lists it, whatever nullable says.
    return {**schema, "nullable": True, **({"enum": [*schema["enum"], None]} if "enum" in schema else {})}
