"""/docs in a real headless Chromium with the network closed. Collected by `make test-browser` only: it needs one."""

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.service.serving import PATIENCE_S, free_port, serving, wait_ready

# Every name but our own address fails to resolve: what the page loads from elsewhere cannot arrive.
CLOSED_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

TRY_IT_OUT = """(async () => {
  const until = async (find) => {
    for (let tries = 0; tries < 300; tries++) {
      const found = find();
      if (found) return found;
      await new Promise((resume) => setTimeout(resume, 50));
    }
    throw new Error("not on the page: " + find);
  };
  const operation = await until(() => document.querySelector("#operations-recommend-recommend"));
  operation.querySelector(".opblock-summary-control").click();
  (await until(() => operation.querySelector("button.try-out__btn"))).click();
  (await until(() => operation.querySelector("button.execute"))).click();
  const live = await until(() => operation.querySelector(".live-responses-table .response"));
  return {
    status: live.querySelector(".response-col_status").innerText.trim(),
    body: live.querySelector(".response-col_description .microlight").innerText,
    hosts: [...new Set(performance.getEntriesByType("resource").map((entry) => new URL(entry.name).host))],
  };
})()"""


@contextmanager
def browser(profile: Path) -> Iterator[str]:
    """The address of the debugging port of a headless Chromium."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        pytest.fail(f"no browser on PATH (looked for {', '.join(NAMES)}); install Chromium")
    flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", CLOSED_NETWORK]
    # Chromium's own sandbox refuses to run as root, which containers do.
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    with subprocess.Popen(
        [executable, *flags, "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as child:
        try:
            assert child.stderr is not None
            for line in child.stderr:
                if found := re.search(r"DevTools listening on ws://([\d.:]+)/", line):
                    yield f"http://{found[1]}"
                    break
            else:
                pytest.fail(f"{executable} ended before it listened")
        finally:
            child.kill()


def evaluate(page: ClientConnection, expression: str) -> Any:
    """The value of a promise in the page."""
    parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
    return command(page, "Runtime.evaluate", parameters)["result"]["value"]


_numbers = itertools.count(1)


def command(page: ClientConnection, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The result of one DevTools command; events in between are passed over."""
    number = next(_numbers)
    page.send(json.dumps({"id": number, "method": method, "params": parameters}))
    while True:
        message = json.loads(page.recv(timeout=PATIENCE_S))
        if message.get("id") == number:
            assert "exceptionDetails" not in message.get("result", {}), message
            result: dict[str, Any] = message["result"]
            return result


def test_try_it_out_answers_with_the_network_closed(bundle_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    with serving(bundle_dir, port=port), browser(tmp_path) as debugger:
        wait_ready(port)
        target = httpx.put(f"{debugger}/json/new?http://127.0.0.1:{port}/docs").json()
        with connect(target["webSocketDebuggerUrl"], max_size=None) as page:
            command(page, "Page.bringToFront", {})
            seen = evaluate(page, TRY_IT_OUT)
    assert seen["status"].startswith("200")
    assert json.loads(seen["body"])["decision"] == "recommended"
    assert seen["hosts"] == [f"127.0.0.1:{port}"]
