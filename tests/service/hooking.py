"""Creations of endpoints as a platform would send them."""

from copy import deepcopy
from typing import Any

import httpx

from tests.service.conftest import Client

CREATION: dict[str, Any] = {
    "hook_version": "v1",
    "event": "endpoint.creating",
    "mode": "apply",
    "project_id": "search",
    "request": {
        "name": "my-vllm-endpoint",
        "model": "Qwen/Qwen3-8B",
        "workload_type": "VLLM",
        "gpu": 1,
        "workload_config": {"max_model_len": 8192},
    },
    "catalog_entry": None,
    "context": {"gpu_product": "NVIDIA-B200", "gpu_memory_gib": 180, "engine": "vllm", "engine_version": "0.28.0"},
    "workload": {"prompt_tokens": 1024, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
}
FOUR = "--max-num-seqs=1 --max-num-batched-tokens 2048 --gpu-memory-utilization .5 --enable-prefix-caching"


def creation(extra_args: str | None = None, **changes: Any) -> dict[str, Any]:
    """CREATION with other extra_args and with members replaced; None removes one."""
    body = deepcopy(CREATION)
    if extra_args is not None:
        body["request"]["workload_config"]["extra_args"] = extra_args
    for name, value in changes.items():
        body[name] = value
        if value is None:
            del body[name]
    return body


def requesting(**changes: Any) -> dict[str, Any]:
    """CREATION whose `request` has other members."""
    return creation(request={**CREATION["request"], **changes})


def post(client: Client, body: object, **headers: str) -> httpx.Response:
    """POST /v1/hooks/endpoint-creation."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request("POST", "/v1/hooks/endpoint-creation", json=body, headers=named)


def decided(client: Client, body: object, **headers: str) -> dict[str, Any]:
    """Its answer, which must be a 200."""
    response = post(client, body, **headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
