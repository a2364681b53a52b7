"""The endpoint-creation hook's body in, its answer out: shapes only, the decision is made elsewhere."""

import hashlib
import uuid
from collections.abc import Mapping as MappingType
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from service.api.hook_decision import Asked, HookDecision
from service.api.hook_schemas import HookContext, HookRequest
from service.api.launch import UNNAMED, metis_body
from service.api.mapping import Mapping
from service.api.query import refuse_crowds, refuse_measured_fields, validation_refusal
from service.api.request_part import RequestPart
from service.api.secret import holds_secret, without_secrets
from service.api.skip import SkipError
from service.api.user_arguments import words_of
from service.api.wording import LEFT_OUT
from service.api.workload_part import WorkloadPart
from service.domain.gpu import ENGINE_VERSION
from service.policies import Policies

# Any UUID: ids of decisions are derived under it.
NAMESPACE = uuid.UUID("0d3ad0f5-6f6c-4a4e-8a58-0b1a3c1c2f11")
# Foreign text: what the platform put there is its own business.
FOREIGN: tuple[tuple[str, ...], ...] = (("request",), ("catalog_entry",), ("model_arch",))
_PARTS: dict[tuple[str, ...], type[RequestPart]] = {
    (): HookRequest,
    ("context",): HookContext,
    ("workload",): WorkloadPart,
}
WORKLOAD_TYPE = "VLLM"
ENGINE = "vllm"


def read_hook(body: MappingType[str, Any]) -> HookRequest:
    """RefusedError that names the JSON path: the envelope is ours, and a caller that gets it wrong should know."""
    refuse_crowds(body, foreign=FOREIGN)
    refuse_measured_fields(body, foreign=FOREIGN)
    try:
        return HookRequest.model_validate(body)
    except ValidationError as error:
        raise validation_refusal(error.errors(include_url=False, include_context=False), parts=_PARTS) from error


def asked_of(hook: HookRequest, mapping: Mapping) -> Asked:
    """What is known of the endpoint, the mapping file asked for what the request leaves out. SkipError."""
    request, context = hook.request, hook.context or HookContext()
    if request.get("workload_type") != WORKLOAD_TYPE:
        raise SkipError("unsupported_workload_type", f"workload_type is not {WORKLOAD_TYPE}")
    if request.get("gpu", 1) not in (1, None):
        raise SkipError("not_one_gpu", "gpu is not 1, and only servers on one GPU were learnt from")
    if (context.engine or ENGINE).lower() != ENGINE:
        raise SkipError("unsupported_engine", f"the engine is not {ENGINE}")
    config = _object(request.get("workload_config"), "workload_config")
    device = mapping.device(cluster=context.cluster or _text(request.get("cluster_id")), namespace=context.namespace)
    model = _text(request.get("model"))
    workload = hook.workload.announced() if hook.workload else None
    return Asked(
        mode=hook.mode,
        project=hook.project_id,
        endpoint=_text(request.get("name")),
        words=words_of(config.get("extra_args")),
        config=config,
        catalog=_object((hook.catalog_entry or {}).get("vllm_config"), "vllm_config"),
        model=model,
        positional_model=model,
        model_arch=hook.model_arch,
        gpu=context.gpu_product or (device.gpu if device else None),
        gpu_shared=context.gpu_shared,
        gpu_memory_gib=context.gpu_memory_gib or (device.gpu_memory_gib if device else None),
        engine_version=context.engine_version or (device.engine_version if device else None),
        workload=workload or mapping.workload(project=hook.project_id, model=model, replicas=_replicas(request)),
    )


def _replicas(request: MappingType[str, Any]) -> int:
    """Those that share the endpoint's load when it is highest: max_replica, else min_replica, else one."""
    for name in ("max_replica", "min_replica"):
        value = request.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    return 1


def _object(value: object, name: str) -> MappingType[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SkipError("unparsable_args", f"{name} is no object")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def digest_of(body: MappingType[str, Any]) -> str:
    """Of the content without its secrets, whatever the order of its members."""
    return hashlib.sha256(to_json(_sorted(without_secrets(body)))).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(member) for member in value] if isinstance(value, list) else value


def id_of(*parts: str) -> str:
    """The same for the same parts."""
    return str(uuid.uuid5(NAMESPACE, "\n".join(parts)))


def hook_answer(hook: HookRequest, decision: HookDecision, policies: Policies, *, decision_id: str) -> dict[str, Any]:
    """The body of the answer."""
    policy = policies.primary if decision.read is None else decision.read.policy
    manifest = policy.manifest
    skip = decision.reason is not None
    arguments = decision.arguments
    content = decision.content or {}
    return {
        "decision": "skip" if skip else hook.mode,
        "reason": decision.reason,
        "message": decision.message,
        "decision_id": decision_id,
        "recommendation_id": content.get("recommendation_id"),
        "policy_version": manifest.version,
        "policy_sha256": policy.bundle.sha256,
        "evidence": manifest.evidence,
        "selected_rank": decision.selected_rank,
        "pinned": arguments.pinned,
        "request_patch": {} if skip or hook.mode == "shadow" else request_patch(hook.request, decision),
        "engine_args": decision.flags,
        "cli_args": decision.cli_args,
        "skipped": [
            {"flag": name, "recommended": decision.preferred.get(name), "reason": source}
            for name, source in arguments.sources.items()
        ],
        # There is no command here: what is fixed stands in the user's own words.
        "warnings": [*arguments.warnings, *(w for w in content.get("warnings", ()) if not w.startswith(LEFT_OUT))],
        "renders": {} if skip else {"metis_catalog": _catalog_body(hook, decision)},
    }


def request_patch(request: MappingType[str, Any], decision: HookDecision) -> dict[str, Any]:
    """RFC 7396: our flags before the user's text, which stays as it is, so that the user's win in any case."""
    config = request.get("workload_config") or {}
    text = config.get("extra_args") or ""
    return {"workload_config": {"extra_args": " ".join([*decision.cli_args, *([text] if text.strip() else [])])}}


def _catalog_body(hook: HookRequest, decision: HookDecision) -> dict[str, Any]:
    model = _text(hook.request.get("model")) or ""
    body = metis_body(
        model=UNNAMED if holds_secret(model) else model, config=decision.chosen, engine_version=ENGINE_VERSION
    )
    version = (hook.catalog_entry or {}).get("version")
    return {**body, "version": version} if isinstance(version, int) else body
