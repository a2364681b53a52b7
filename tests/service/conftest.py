"""One real bundle and one application for the whole run; a client that speaks ASGI without a server."""

import asyncio
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.api.response_schemas import RecommendAnswer
from service.app import create_app
from service.policies import Policy, load_policy
from service.settings import Settings
from tests.service.bundles import write_bundle
from tests.service.logged import Logged, logging_to_string

QUESTION: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "gpu": "NVIDIA-B200",
    "workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
}


class Client:
    """Sends single requests to an application in this process."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request; errors inside the application surface as answers, as they would behind a server."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def recommend(self, body: object, **options: Any) -> httpx.Response:
        """POST /v1/recommend; bytes go as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return self.request("POST", "/v1/recommend", content=content, headers=headers, **options)

    def answer(self, body: object) -> dict[str, Any]:
        """What POST /v1/recommend answers with, which has to be an answer and as documented."""
        response = self.recommend(body)
        assert response.status_code == 200, response.text
        content: dict[str, Any] = response.json()
        RecommendAnswer.model_validate(content)
        return content


@pytest.fixture(scope="session")
def bundle_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that verifies."""
    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def policy(bundle_dir: Path) -> Policy:
    """Its policy."""
    return load_policy(bundle_dir)


@pytest.fixture(scope="session")
def app(bundle_dir: Path) -> FastAPI:
    """The application with a clock that stands still, and a hook that a busy machine does not stop."""
    return create_app(Settings(bundle_dir=bundle_dir, hook_deadline_ms=60_000), clock=lambda: 1_700_000_000.9)


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Client:
    """A client of that application."""
    return Client(app)


@pytest.fixture
def question() -> dict[str, Any]:
    """A request inside the training range, to be changed at will."""
    return deepcopy(QUESTION)


@pytest.fixture
def ask(client: Client) -> Callable[[object], dict[str, Any]]:
    """POST /v1/recommend that must be answered with 200."""

    def post(body: object) -> dict[str, Any]:
        response = client.recommend(body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    return post


@pytest.fixture
def logged() -> Iterator[Logged]:
    """The logs of one test."""
    with logging_to_string() as logs:
        yield logs
