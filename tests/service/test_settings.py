"""Settings come from the environment and are checked before anything starts."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.app import create_app
from service.domain.errors import UnknownNameError
from service.settings import Settings
from tests.service.conftest import QUESTION, Client


def test_the_default_bundle_lies_beside_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMORYPOLICY_BUNDLE_DIR", raising=False)
    expected = Path(__file__).resolve().parents[2] / "service" / "bundles" / "dense-b200-robust"
    assert Settings().bundle_dir == expected


def test_the_environment_sets_and_a_flag_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_PORT", "9000")
    monkeypatch.setenv("MEMORYPOLICY_HOST", "0.0.0.0")
    monkeypatch.setenv("MEMORYPOLICY_DEFAULT_GPU", "")
    assert (Settings().port, Settings().host, Settings().default_gpu) == (9000, "0.0.0.0", None)
    assert Settings(port=9001).port == 9001


def test_an_impossible_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_PORT", "70000")
    with pytest.raises(ValidationError, match="port"):
        Settings()


def test_a_default_gpu_answers_for_requests_that_name_none(bundle_dir: Path) -> None:
    client = Client(create_app(Settings(bundle_dir=bundle_dir, default_gpu="h200")))
    body = {key: value for key, value in QUESTION.items() if key != "gpu"}
    answer = client.recommend(body).json()
    assert answer["assumed"]["gpu"] == "NVIDIA-H200"
    assert answer["support"]["out_of_range"][0]["value"] == "NVIDIA-H200"
    assert client.get("/v1/configs").json()["engine_default"]["gpu"] == "NVIDIA-H200"


def test_an_unknown_default_gpu_stops_the_start(bundle_dir: Path) -> None:
    with pytest.raises(UnknownNameError, match="known: B200"):
        create_app(Settings(bundle_dir=bundle_dir, default_gpu="B400"))
