"""A real headless Chromium with the network closed, driven over its DevTools protocol."""

import base64
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

from tests.service.serving import PATIENCE_S

# Every name but our own address fails to resolve: what the page loads from elsewhere cannot arrive.
CLOSED_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Waits in the page, for up to 15 s, until an expression is truthy, and gives its value.
_UNTIL = """(async () => {
  for (let tries = 0; tries < 300; tries++) {
    const found = await (%s);
    if (found) return found;
    await new Promise((resume) => setTimeout(resume, 50));
  }
  throw new Error("this did not come true");
})()"""
# virtual key codes, without which a key has no effect
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
_KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Page:
    """A tab. events: what it said unasked, oldest first."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one DevTools command; events in between are kept."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE_S))
            if message.get("id") == number:
                assert "error" not in message, message
                assert "exceptionDetails" not in message["result"], message
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message:
                self.events.append(message)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression or a promise in the page."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        return self.command("Runtime.evaluate", **asked)["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of the expression once it is truthy."""
        return self.evaluate(_UNTIL % expression)

    def press(self, key: str, *, times: int = 1) -> None:
        """A key of _KEYS on whatever has the focus."""
        of = {"key": key, "code": key if key != " " else "Space", "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            self.command("Input.dispatchKeyEvent", type="keyDown", **of, **text)
            self.command("Input.dispatchKeyEvent", type="keyUp", **of)

    def type(self, text: str) -> None:
        """Text, as it would come from a keyboard."""
        self.command("Input.insertText", text=text)

    def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        """The viewport in CSS pixels; scale: device pixels for each."""
        phone = width < 600
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def screenshot(self, path: Path) -> None:
        """What the viewport shows, as PNG."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what the browser logged as an error."""
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown" or (
                event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert")
            ):
                found.append(json.dumps(told))
            if event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        return found

    def asked_for(self) -> list[str]:
        """The addresses of all requests, as far as the network was watched."""
        sent = (event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [told["request"]["url"] for told in sent]


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


@contextmanager
def opened(debugger: str, address: str) -> Iterator[Page]:
    """A tab at that address, watched before it loads."""
    target = httpx.put(f"{debugger}/json/new?about:blank").json()
    with connect(target["webSocketDebuggerUrl"], max_size=None) as connection:
        page = Page(connection)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            page.command(f"{domain}.enable")
        page.command("Page.bringToFront")
        page.command("Page.navigate", url=address)
        yield page
