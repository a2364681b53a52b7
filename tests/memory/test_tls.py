"""TLS ends in the service where it is told to: Kubernetes calls webhooks over nothing else."""

import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
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


def test_the_webhook_answers_over_tls_to_a_caller_that_checks_the_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    environment = {
        "MEMORYPOLICY_DATA_DIR": str(tmp_path / "data"),
        "MEMORYPOLICY_TLS_CERT_FILE": str(certificate),
        "MEMORYPOLICY_TLS_KEY_FILE": str(key),
        "MEMORYPOLICY_PORT": str(port),
    }
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/webhooks/v1/mutate-inferenceservice",
        data=b"{}",
        headers={"Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(certificate))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
                    assert json.load(response)["response"]["allowed"] is True
                return
            except urllib.error.URLError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((tmp_path / "log").read_text()) from None
                time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
