"""What the handlers share: built once by the composition root, never changed."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pydantic_core import to_json
from starlette.requests import Request

from service.domain.gpu import Gpu, gpu_by_name
from service.recommend import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """default_gpu answers for requests that name none; new_id is the only source of randomness."""

    policy: Policy
    default_gpu: Gpu
    new_id: Callable[[], str]
    policy_body: bytes
    policy_etag: str

    @classmethod
    def create(cls, policy: Policy, *, default_gpu: str | None, new_id: Callable[[], str]) -> Self:
        """UnknownNameError if the default GPU is none that is known."""
        bundle = policy.bundle
        body = to_json(
            {"sha256": bundle.sha256, "manifest": bundle.manifest.to_json(), "evaluation": bundle.evaluation}
        )
        return cls(
            policy=policy,
            default_gpu=gpu_by_name(default_gpu or bundle.manifest.gpu),
            new_id=new_id,
            policy_body=body,
            policy_etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        )


def state_of(request: Request) -> ApiState:
    """The state of the application that serves this request."""
    state: ApiState = request.app.state.api
    return state
