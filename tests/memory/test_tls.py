"""TLS ends in the service where it is told to: Kubernetes calls webhooks over nothing else."""

import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory.server import ROOT
from tests.service.serving import free_port

PATIENCE_S = 60.0


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *names], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def tls_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a service that serves TLS, which is stopped at the end."""
    certificate, key = self_signed(tmp_path)
    environment = {
        "MEMORYPOLICY_DATA_DIR": str(tmp_path / "data"),
        "MEMORYPOLICY_TLS_CERT_FILE": str(certificate),
        "MEMORYPOLICY_TLS_KEY_FILE": str(key),
        "MEMORYPOLICY_PORT": str(free_port()),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while healthy(environment) != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((tmp_path / "log").read_text())
            time.sleep(0.1)
        yield environment
    finally:
        process.kill()
        process.wait()


def healthy(environment: dict[str, str]) -> int:
    """Exit status of the image's health check."""
    command = [sys.executable, "-m", "service.health_check"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def test_the_webhook_answers_over_tls_to_a_caller_that_checks_the_certificate(tls_environment: dict[str, str]) -> None:
    request = urllib.request.Request(
        f"https://127.0.0.1:{tls_environment['MEMORYPOLICY_PORT']}/webhooks/v1/mutate-inferenceservice",
        data=b"{}",
        headers={"Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=tls_environment["MEMORYPOLICY_TLS_CERT_FILE"])
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
        assert json.load(response)["response"]["allowed"] is True


def test_the_health_check_speaks_tls_where_the_service_does(tls_environment: dict[str, str]) -> None:
    assert healthy(tls_environment) == 0
    without = {name: value for name, value in tls_environment.items() if "TLS" not in name}
    assert healthy(without) == 1
