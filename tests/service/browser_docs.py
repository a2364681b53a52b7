"""/docs in a real headless Chromium with the network closed. Collected by `make test-browser` only: it needs one."""

import json
from pathlib import Path

from tests.service.chromium import browser, opened
from tests.service.serving import free_port, serving, wait_ready

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


def test_try_it_out_answers_with_the_network_closed(bundle_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    with serving(bundle_dir, port=port), browser(tmp_path) as debugger:
        wait_ready(port)
        with opened(debugger, f"http://127.0.0.1:{port}/docs") as page:
            seen = page.evaluate(TRY_IT_OUT)
    assert seen["status"].startswith("200")
    assert json.loads(seen["body"])["decision"] == "recommended"
    assert seen["hosts"] == [f"127.0.0.1:{port}"]
