"""The body of the endpoint-creation hook and its answer. What the platform owns is taken as it comes."""

from typing import Any, Literal

from pydantic import Field

from service.api.caller import Mode
from service.api.request_part import RequestPart
from service.api.response_schemas import Answer
from service.api.skip import HookReason
from service.api.workload_part import WorkloadPart
from service.domain.cell import Evidence


class HookContext(RequestPart):
    """Where the endpoint will run, as far as the caller knows."""

    gpu_product: str | None = Field(default=None, min_length=1, max_length=100)
    gpu_memory_gib: float | None = Field(default=None, ge=0.001, le=100_000)
    gpu_shared: bool | None = Field(default=None, description="Whether others use the same device; left out: no.")
    engine: str | None = Field(default=None, min_length=1, max_length=60)
    engine_version: str | None = Field(default=None, min_length=1, max_length=60)
    cluster: str | None = Field(default=None, max_length=200, description="A key of the mapping file.")
    namespace: str | None = Field(default=None, max_length=200, description="A key of the mapping file.")


class HookRequest(RequestPart):
    """An endpoint that is about to be created."""

    hook_version: Literal["v1"]
    event: Literal["endpoint.creating"]
    mode: Mode = Field(default="apply", description="`shadow`: decided and recorded, nothing is patched.")
    project_id: str | None = Field(default=None, max_length=200)
    request: dict[str, Any] = Field(description="The body of the endpoint's creation; any keys.")
    catalog_entry: dict[str, Any] | None = Field(default=None, description="The operator's entry; any keys.")
    context: HookContext | None = None
    model_arch: dict[str, Any] | None = Field(
        default=None, description="A config.json, the four numbers, or {'same_architecture_as': …}."
    )
    workload: WorkloadPart | None = Field(default=None, description="The load of one replica.")


class SkippedFlag(Answer):
    """An argument that is left to whoever has set it."""

    flag: str
    recommended: int | float | bool | None = Field(description="What the ranking prefers with nothing pinned.")
    reason: Literal["user_set", "catalog_set"]


class HookAnswer(Answer):
    """What to change in the request, if anything."""

    decision: Literal["apply", "skip", "shadow"]
    reason: HookReason | None = Field(description="Why nothing is changed; null where something is.")
    message: str = Field(description="One sentence for a person.")
    decision_id: str = Field(description="The same for the same request; under it the decision is on record.")
    recommendation_id: str | None = Field(description="Outcomes name it; null where nothing was ranked.")
    policy_version: str
    policy_sha256: str
    evidence: Evidence
    selected_rank: int | None = Field(description="Of the choice among all 15 with nothing pinned; null for skip.")
    pinned: dict[str, int | float | bool] = Field(description="What is set already, by argument.")
    request_patch: dict[str, Any] = Field(description="RFC 7396 merge patch of `request`; {} changes nothing.")
    engine_args: dict[str, int | float | bool] = Field(description="What would be set.")
    cli_args: list[str] = Field(description="The same as arguments of `vllm serve`, to stand before the user's.")
    skipped: list[SkippedFlag]
    warnings: list[str]
    renders: dict[str, Any] = Field(description="metis_catalog: a ready body for the operator's catalogue.")
