"""What the handlers share. Built by the composition root; replaced as a whole when another policy is activated."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

from pydantic_core import to_json
from starlette.requests import Request

from service.api.hook_desk import Desk, HookSettings
from service.api.metrics import Metrics
from service.api.model_catalogue import ModelCatalogue
from service.api.policy_watch import PolicyWatch
from service.db.database import Database
from service.db.journal import Journal
from service.domain.gpu import Gpu, gpu_by_name
from service.policies import Policies, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where answers and outcomes are kept. journal is None where answers leave without a record."""

    database: Database
    journal: Journal | None
    watch: PolicyWatch
    clock: Callable[[], float]

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self.clock() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """configured_gpu answers for requests that name none; new_id is the only source of randomness.

    batches: the one thread in which batches are answered, one after another.
    """

    policies: Policies
    configured_gpu: Gpu | None
    new_id: Callable[[], str]
    memory: Memory
    hooks: HookSettings
    metrics: Metrics
    batches: ThreadPoolExecutor
    models: ModelCatalogue
    policy_body: bytes
    policy_etag: str

    @classmethod
    def create(
        cls,
        policies: Policies,
        *,
        default_gpu: str | None,
        new_id: Callable[[], str],
        memory: Memory,
        hooks: HookSettings,
        metrics: Metrics,
        models: ModelCatalogue,
    ) -> Self:
        """UnknownNameError if the default GPU is none that is known."""
        body, etag = _policy_body(policies)
        return cls(
            policies=policies,
            configured_gpu=gpu_by_name(default_gpu) if default_gpu else None,
            new_id=new_id,
            memory=memory,
            hooks=hooks,
            metrics=metrics,
            batches=ThreadPoolExecutor(1, thread_name_prefix="batch"),
            models=models,
            policy_body=body,
            policy_etag=etag,
        )

    @property
    def policy(self) -> Policy:
        """The one that answers where none was trained for what is asked."""
        return self.policies.primary

    @property
    def default_gpu(self) -> Gpu:
        """The configured one, else the one that the policy was trained for."""
        return self.configured_gpu or gpu_by_name(self.policy.bundle.manifest.gpu)

    def desk(self, policies: Policies) -> Desk:
        """Where one request at a hook is settled."""
        return Desk(
            settings=self.hooks,
            policies=policies,
            bundle_refused=self.memory.watch.refused is not None,
            database=self.memory.database,
            journal=self.memory.journal,
            metrics=self.metrics,
            models=self.models,
            now_ms=self.memory.now_ms,
        )

    def with_policies(self, policies: Policies) -> Self:
        """The same state with other policies."""
        body, etag = _policy_body(policies)
        return replace(self, policies=policies, policy_body=body, policy_etag=etag)


def state_of(request: Request) -> ApiState:
    """The state that serves this request. Read once per request: the next may have another policy."""
    state: ApiState = request.app.state.api
    return state


def _policy_body(policies: Policies) -> tuple[bytes, str]:
    """GET /v1/policy and its ETag."""
    bundle = policies.primary.bundle
    body = to_json(
        {
            "sha256": bundle.sha256,
            "manifest": bundle.manifest.to_json(),
            "evaluation": bundle.evaluation,
            "others": [
                {"sha256": one.bundle.sha256, "confidence": one.manifest.confidence, "manifest": one.manifest.to_json()}
                for one in policies.others
            ],
        }
    )
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
