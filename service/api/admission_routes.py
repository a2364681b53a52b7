"""POST /webhooks/v1/mutate-inferenceservice: Kubernetes asks on CREATE, and is always told to go on."""

import base64
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.admission import InferenceService, asked_of_service, json_patch
from service.api.caller import Caller
from service.api.examples import ADMISSION_EXAMPLES
from service.api.hook import digest_of
from service.api.hook_decision import HookDecision
from service.api.hook_desk import Case, recordable_name
from service.api.json_body import parse_object
from service.api.problem import RefusedError
from service.api.response_schemas import AdmissionAnswer
from service.api.routes import JsonBytes, RawRoute, body_of, json_body, problems, require_json
from service.api.secret import without_secrets
from service.api.state import ApiState, state_of
from service.logs import log_without_values

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
# Kubernetes cuts what is longer.
LONGEST_WARNING = 250
_VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")

admission = APIRouter(route_class=RawRoute)


@admission.post(
    "/webhooks/v1/mutate-inferenceservice",
    tags=["hooks"],
    operation_id="mutate_inference_service",
    summary="The same decision for a KServe InferenceService, as a mutating admission webhook",
    response_model=AdmissionAnswer,
    response_description="Always allowed; a JSON Patch where something is to be set, else at most one warning.",
    responses=problems("invalid_json", "payload_too_large", "unsupported_media_type", "invalid_request"),
    openapi_extra={
        "requestBody": json_body(
            {"type": "object", "additionalProperties": True, "description": "An AdmissionReview."}, ADMISSION_EXAMPLES
        ),
    },
)
async def mutate_inference_service(request: Request) -> Response:
    """What is no JSON object is refused, which the API server ignores; all else is allowed, with a warning if wrong."""
    state = state_of(request)
    require_json(request)
    try:
        review = parse_object(await body_of(request))
    except RefusedError as error:
        raise RefusedError(error.error, str(without_secrets(error.message))) from None
    asked = review.get("request")
    asked = asked if isinstance(asked, dict) else {}
    uid = asked.get("uid")
    response: dict[str, Any] = {"uid": uid if isinstance(uid, str) else "", "allowed": True}
    try:
        response |= await _reviewed(review, asked, state, request_id=request.state.request_id)
    except Exception as error:
        log_without_values(error, "the hook", request_id=request.state.request_id)
        response["warnings"] = ["memorypolicy: nothing was set: internal"]
    content = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return JsonBytes(to_json(content))


async def _reviewed(
    review: dict[str, Any], asked: dict[str, Any], state: ApiState, *, request_id: str
) -> dict[str, Any]:
    """The members of the response beside uid and allowed."""
    content = asked.get("object")
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND or not isinstance(content, dict):
        return {"warnings": [f"memorypolicy: nothing was set: not a {KIND} of {API_VERSION}"]}
    if asked.get("operation") != "CREATE" or content.get("kind") != "InferenceService":
        return {}
    namespace = asked.get("namespace")
    service = InferenceService(
        content=content,
        namespace=namespace if isinstance(namespace, str) else None,
        prefix=state.hooks.annotation_prefix,
    )
    case = Case(
        door="inference-service",
        digest=digest_of({"namespace": service.namespace, **_stable(content)}),
        asked=lambda: asked_of_service(service, state.hooks.mapping),
        render=lambda decision, decision_id: review_answer(service, decision, decision_id=decision_id),
        caller=Caller(
            caller="kubernetes",
            project=recordable_name(service.namespace),
            endpoint=recordable_name(service.name),
            mode=service.mode,
        ),
        request_id=request_id,
        # sideEffects None: a dry run leaves nothing behind.
        keep=asked.get("dryRun") is not True,
    )
    settled = await state.desk(state.policies).settle(case)
    members: dict[str, Any] = {}
    if settled["patch"]:
        members |= {"patchType": "JSONPatch", "patch": base64.b64encode(to_json(settled["patch"])).decode()}
    if settled["warnings"]:
        members["warnings"] = settled["warnings"]
    return members


def review_answer(service: InferenceService, decision: HookDecision, *, decision_id: str) -> dict[str, Any]:
    """What goes on record, and out: a patch, or one warning."""
    recommendation_id = decision.content["recommendation_id"] if decision.content else None
    applied = decision.reason is None and service.mode == "apply"
    ids = {"status": "applied", "recommendation-id": recommendation_id or ""}
    warnings: list[str] = []
    if decision.reason is not None:
        warnings = [f"memorypolicy: nothing was set: {decision.reason}: {decision.message}"[:LONGEST_WARNING]]
    elif not applied:
        warnings = [f"memorypolicy: shadow, nothing was set; would be {' '.join(decision.cli_args)}"[:LONGEST_WARNING]]
    return {
        "decision": "skip" if decision.reason else service.mode,
        "decision_id": decision_id,
        "recommendation_id": recommendation_id,
        "pinned": decision.arguments.pinned,
        "engine_args": decision.flags,
        "patch": json_patch(service, decision, ids) if applied else [],
        "warnings": warnings,
    }


def _stable(content: dict[str, Any]) -> dict[str, Any]:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict):
        return content
    return {**content, "metadata": {key: value for key, value in metadata.items() if key not in _VOLATILE}}
