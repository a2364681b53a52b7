"""The page at / in a real headless Chromium, at phone and desktop width, with the network closed.

Collected by `make test-browser` only: it needs a Chromium. `python -m tests.service.browser_page DIR` writes pictures.
"""

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.manifest import NEIGHBOURS_FILE, Abstention
from service.domain.neighbours import Neighbour, Neighbours, Numbers
from service.domain.slo import Slo
from service.settings import DEFAULT_BUNDLE_DIR
from tests.service.bundles import TRAINING_RANGE, Linear, estimator_graph, write_bundle
from tests.service.chromium import Page, browser, opened
from tests.service.serving import free_port, serving, wait_ready
from tests.service.test_gate import SECRETS, write_tokens

PHONE, DESKTOP = (360, 740), (1280, 900)
ANSWERED = "document.querySelector('main[aria-busy=false] > div:not(.stale) #summary')?.innerText"
# What the page asks about first.
WORKLOAD = {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64}
SEQS = "log2_max_num_seqs"
# By hand: 1,024,000 ÷ sequences tokens/s, 10 ms × sequences to the first token, 20 ms for each further one.
ESTIMATOR = estimator_graph(
    throughput=Linear(at=math.log(1_024_000), by={SEQS: -math.log(2)}),
    ttft=Linear(at=math.log(10), by={SEQS: math.log(2)}),
    tpot=Linear(at=math.log(20)),
    chances=(Linear(at=0.9), Linear(at=0.93)),
)

CHECKS = (Path(__file__).parent / "browser_checks.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address of the service, debugging port of a browser); the bundle has an estimator with known numbers."""
    folder = tmp_path_factory.mktemp("page")
    bundle = write_bundle(folder / "bundle", estimator=ESTIMATOR, abstention=Abstention(margin=0.0))
    with _running(bundle, folder) as found:
        yield found


@contextmanager
def _running(bundle: Path, folder: Path, **environment: str) -> Iterator[tuple[str, str]]:
    port = free_port()
    before = dict(os.environ)
    # Nobody reads what the child writes, and a line for each request fills the pipe, on which it would wait.
    quiet = {"MEMORYPOLICY_DATA_DIR": str(folder / "data"), "MEMORYPOLICY_LOG_LEVEL": "error"}
    os.environ.update({**quiet, **environment})
    try:
        with serving(bundle, port=port), browser(folder / "profile") as debugger:
            wait_ready(port)
            yield f"http://127.0.0.1:{port}", debugger
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def looking(site: tuple[str, str], size: tuple[int, int], *, dark: bool = False) -> Iterator[Page]:
    """The page once it has its first answer; checked for complaints and foreign requests when one is done."""
    address, debugger = site
    with opened(debugger, "about:blank") as page:
        page.resize(*size)
        scheme = "dark" if dark else "light"
        page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.command("Page.navigate", url=f"{address}/")
        page.until(ANSWERED)
        yield page
        assert page.complaints() == []
        asked = page.asked_for()
        assert len(asked) > 10
        assert [one for one in asked if not one.startswith(f"{address}/")] == []


def focus(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")


def check(page: Page, name: str) -> Any:
    """What that function of browser_checks.js finds."""
    return page.evaluate(f"(() => {{ {CHECKS}\nreturn {name}(); }})()")


def read(page: Page, selector: str) -> str:
    text: str = page.until(f"document.querySelector({json.dumps(selector)})?.innerText")
    return text


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_person_with_a_keyboard_chooses_a_model_moves_a_slider_and_copies_the_command(
    site: tuple[str, str], size: tuple[int, int]
) -> None:
    address, _ = site
    with looking(site, size) as page:
        page.command(
            "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=address
        )
        focus(page, "#model")
        page.type("qwen3-4b")
        page.until("document.querySelectorAll('#models [role=option]').length")
        page.until("document.querySelector('#model-0 span').innerText === 'Qwen/Qwen3-4B'")
        page.press("ArrowDown")
        assert page.until("document.querySelector('#model').getAttribute('aria-activedescendant')") == "model-0"
        page.press("Enter")
        page.until("document.querySelector('#summary').innerText.includes('Qwen/Qwen3-4B')")
        focus(page, "#field-concurrency-slider")
        # A quarter of a doubling each: 64 · 2^½ = 91.
        page.press("ArrowRight", times=2)
        assert page.evaluate("document.querySelector('#field-concurrency').value") == "91"
        page.until("document.querySelector('#summary').innerText.includes('91 clients')")
        page.until(ANSWERED)
        assert "91 clients" in page.evaluate("document.querySelector('#live').textContent")
        assert page.evaluate("document.querySelectorAll('.ranking tbody tr').length") == 15
        focus(page, "#copy")
        page.press("Enter")
        assert read(page, "#copied") == "Copied."
        command = page.evaluate("navigator.clipboard.readText()")
        assert command == read(page, "#text")
        assert command.startswith("vllm serve Qwen/Qwen3-4B --max-num-seqs=")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_numbers_and_the_limits_are_those_of_the_answer(site: tuple[str, str], size: tuple[int, int]) -> None:
    with looking(site, size) as page:
        best = read(page, ".ranking tbody tr th").split()[0]
        sequences = int(best.split("-")[0][1:])
        assert f"{1_024_000 // sequences:,}" in read(page, ".sides tbody td")
        assert "1,000" in page.evaluate("document.querySelectorAll('.sides tbody tr')[0].lastElementChild.innerText")
        # vLLM's default has 1,024 sequences; the ratio's outer quantiles are a tenth to both sides.
        times = 1024 / sequences
        change = f"+{100 * (times - 1):,.0f} %(+{100 * (times / 1.1 - 1):,.0f} to +{100 * (times * 1.1 - 1):,.0f} %)"
        assert change in read(page, ".sides tbody td").replace(" (", "(")
        of_tpot = page.evaluate("document.querySelectorAll('.sides tbody tr')[2].querySelector('td').innerText")
        assert "about the same" in of_tpot
        assert "−9 to +10 %" in of_tpot
        assert "90 % of the workloads that may come (with nothing further set: 90 %)" in read(page, "#met")
        assert ("estimated separately" in read(page, "#met")) is (10 * sequences > 3000)
        limits = page.evaluate("[...document.querySelectorAll('.limit')].map((one) => one.innerText)")
        assert "20 ms (16 ms to 25 ms) against 60 ms: met" in limits[1]
        assert "simulated" in read(page, ".decision .evidence")
        assert "93 %" in read(page, ".ranking tbody tr")
        # 10 ms times the sequences is more than a limit of 1 ms, whatever is chosen.
        focus(page, "#max_p95_ttft_ms")
        page.type("1")
        page.until("document.querySelector('.limit.missed')?.innerText.includes('against 1 ms: missed')")
        page.until(
            "document.querySelector('#limits-head').parentElement.innerText.includes('trained for 3 s and 60 ms')"
        )


def test_a_chance_that_says_the_opposite_of_the_verdicts_is_told_from_them(tmp_path: Path) -> None:
    # 10 ms and 20 ms meet the limits, which are met in 40 % of the workloads all the same.
    times = {"ttft": Linear(at=math.log(10)), "tpot": Linear(at=math.log(20))}
    estimator = estimator_graph(
        throughput=Linear(at=math.log(1000)), **times, chances=(Linear(at=0.4), Linear(at=0.93))
    )
    bundle = write_bundle(tmp_path / "bundle", estimator=estimator, abstention=Abstention(margin=0.0))
    with _running(bundle, tmp_path) as site, looking(site, DESKTOP) as page:
        assert page.evaluate("document.querySelectorAll('.limit.met').length") == 2
        assert "40 % of the workloads that may come" in read(page, "#met")
        assert read(page, "#met").endswith("That is estimated separately from the numbers above.")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_a_name_and_enough_contrast_and_nothing_is_wider_than_the_page(
    site: tuple[str, str], size: tuple[int, int], dark: bool
) -> None:
    with looking(site, size, dark=dark) as page:
        draw_map(page)
        for source in ("config", "name"):
            page.evaluate(f"document.querySelector('input[name=source][value={source}]').click()")
            page.until(f"document.querySelector('#{'config' if source == 'config' else 'model'}')")
            assert unnamed(page) == []
            pale = check(page, "pale")
            assert pale["found"] == []
            assert pale["seen"] > 100
            assert check(page, "tooWide") == {"scrolled": 0, "out": []}
        page.evaluate("document.querySelector('input[name=shows][value=gain]').click()")
        page.until("document.querySelector('.map [class^=gain-]')")
        assert check(page, "pale")["found"] == []


def unnamed(page: Page) -> list[str]:
    """Controls without a name for whoever cannot see them, as the browser computes it."""
    controls = {"textbox", "combobox", "slider", "radio", "checkbox", "button", "listbox", "link", "table", "image"}
    nodes = page.command("Accessibility.getFullAXTree")["nodes"]
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"] in controls - {"table"}]
    kinds = {node["role"]["value"] for node in found}
    assert {"textbox", "combobox", "slider", "radio", "checkbox", "button"} <= kinds
    # Headings name what tables cannot: they stand directly under them.
    assert sum(node["role"]["value"] == "row" for node in nodes) > 15
    return [json.dumps(node["role"]) for node in found if not node.get("name", {}).get("value", "").strip()]


def draw_map(page: Page) -> None:
    focus(page, "#draw")
    page.press("Enter")
    page.until("document.querySelector('.map') && !document.querySelector('#draw').disabled")


def test_every_control_is_reached_by_tab_and_shows_that_it_is(site: tuple[str, str]) -> None:
    with looking(site, PHONE) as page:
        wanted = page.evaluate(
            "[...document.querySelectorAll('form input, form select, form button')]"
            ".filter((one) => one.type !== 'radio').map((one) => one.id || one.innerText)"
        )
        reached: list[str] = []
        for _ in range(80):
            page.press("Tab")
            at = check(page, "focused")
            assert at["shown"], f"nothing shows that {at['name']} has the focus"
            reached.append(at["name"])
            if at["name"] == "text":
                break
    assert [one for one in wanted if one not in reached] == []


def test_the_map_asks_once_and_says_what_it_shows_in_words(site: tuple[str, str]) -> None:
    with looking(site, DESKTOP) as page:
        draw_map(page)
        batches = [one for one in page.asked_for() if "recommend:batch" in one]
        assert len(batches) == 1
        cells = page.evaluate("[...document.querySelectorAll('.map td .hidden')].map((one) => one.textContent)")
        assert len(cells) == 100
        # The bundle was trained for 256 to 6,000 prompt tokens and 4 to 256 clients.
        assert cells[0] == "not trained for, keep vLLM's default"
        assert any(cell.startswith("s") for cell in cells)
        focus(page, "#field-max_new_tokens-slider")
        page.press("ArrowRight")
        page.until("document.querySelector('#map-said').innerText === 'This map is of an earlier question.'")


def test_what_is_wrong_is_said_at_its_control_and_nothing_is_asked_meanwhile(site: tuple[str, str]) -> None:
    with looking(site, PHONE) as page:
        replace(page, "#field-prompt_tokens", "many")
        assert "many is not a number" in read(page, "#field-prompt_tokens-fault")
        assert page.evaluate("document.querySelector('#field-prompt_tokens').getAttribute('aria-invalid')") == "true"
        replace(page, "#field-prompt_tokens", "4000:2000")
        page.until("document.querySelector('#field-prompt_tokens-fault')?.innerText.includes('reversed')")
        replace(page, "#field-prompt_tokens", "1000:2000")
        page.until("document.querySelector('#reasons-head')?.parentElement.innerText.includes('Over the range, by')")
        replace(page, "#model", "Qwen/Qwen3-8Z")
        page.press("Enter")
        page.until("document.querySelector('#model-fault')?.innerText.includes('Qwen/Qwen3-8')")
        # The browser's console tells of every answer that is no success; those two were meant.
        told = [event for event in page.events if event["method"] == "Log.entryAdded"]
        assert {entry["params"]["entry"]["text"].split("status of ")[1] for entry in told} == {
            "422 (Unprocessable Entity)"
        }
        page.events = [event for event in page.events if event["method"] != "Log.entryAdded"]


def replace(page: Page, selector: str, text: str) -> None:
    focus(page, selector)
    page.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
    page.type(text)


def choose(page: Page, selector: str, value: str) -> None:
    """One of a list."""
    page.evaluate(
        f"(() => {{ const list = document.querySelector({json.dumps(selector)}); list.value = {json.dumps(value)};"
        "list.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_outside_of_support_no_numbers_are_shown_and_a_pasted_config_is_read(site: tuple[str, str]) -> None:
    # fmt: off
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "head_dim": 128,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288,
        "vocab_size": 151936, "tie_word_embeddings": False, "max_position_embeddings": 40960, "dtype": "bfloat16",
    }
    # fmt: on
    with looking(site, DESKTOP) as page:
        page.evaluate("document.querySelector('input[name=source][value=config]').click()")
        assert "paste or drop" in read(page, "#config-fault")
        replace(page, "#config", json.dumps(config))
        page.until("document.querySelector('#text').innerText.startsWith('vllm serve MODEL')")
        replace(page, "#field-prompt_tokens", "20000")
        page.until("document.querySelector('#no-numbers')?.innerText.includes('outside of support')")
        page.until(ANSWERED)
        assert page.evaluate("document.querySelector('.limit')") is None
        assert "not estimated" in read(page, ".ranking tbody tr")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """As site, with policies for a B200, for one whose load is known roughly, and for an H200, of other ranges."""

    def bundle(name: str, most_log2_clients: float, most_ms: float, **of: Any) -> Path:
        ranges = {**TRAINING_RANGE, "log2_concurrency": (2.0, most_log2_clients)}
        slo = Slo(max_p95_ttft_ms=most_ms)
        return write_bundle(tmp_path / name, estimator=ESTIMATOR, training_range=ranges, slo=slo, **of)

    rough = bundle("rough", 5.0, 4000.0, confidence="rough")
    h200 = bundle("h200", 4.0, 2000.0, gpu="NVIDIA-H200")
    more = f"{rough},{h200}"
    with _running(bundle("b200", 7.0, 1000.0), tmp_path, MEMORYPOLICY_MORE_BUNDLE_DIRS=more) as found:
        yield found


def test_ranges_and_limits_are_those_of_the_policy_for_that_gpu_and_confidence(three: tuple[str, str]) -> None:
    # The slider's last value and the limit that holds where none is given.
    shown = (
        "(() => { const slider = document.querySelector('#field-concurrency-slider'); slider.value = slider.max;"
        "slider.dispatchEvent(new Event('input', {bubbles: true})); return slider.max; })()"
    )

    def most(page: Page, wanted: tuple[str, str]) -> None:
        page.until(f"document.querySelector('#max_p95_ttft_ms').placeholder === '{wanted[1]}'")
        page.evaluate(shown)
        page.until(f"document.querySelector('#field-concurrency').value === '{wanted[0]}'")

    with looking(three, DESKTOP) as page:
        most(page, ("128", "1000"))
        choose(page, "#confidence", "rough")
        most(page, ("32", "4000"))
        # Of an H200 there is a typical one alone, and a person may write its name in small letters.
        replace(page, "#gpu", "nvidia h200 sxm")
        most(page, ("16", "2000"))
        # None was trained for it: the primary one answers that it was not.
        replace(page, "#gpu", "L4")
        most(page, ("128", "1000"))
        replace(page, "#gpu", "B200")
        most(page, ("32", "4000"))
        choose(page, "#confidence", "exact")
        most(page, ("128", "1000"))


def test_another_form_is_awaited_or_failed_and_never_a_start_that_is_none(site: tuple[str, str]) -> None:
    held = """
      window.texts = []; window.real = window.fetch;
      window.fetch = (path, options) => new Promise((done, failed) => {
        window.answer = () => done(window.real(path, { ...options, signal: undefined }));
        window.fail = () => failed(new TypeError("closed"));
      });"""
    with looking(site, DESKTOP) as page:
        command = read(page, "#text")
        page.evaluate(held)
        choose(page, "#form", "yaml")
        page.until(
            "document.querySelector('#text').innerText === 'Asking…' && document.querySelector('#copy').disabled"
        )
        page.until("window.fail")
        page.evaluate("window.fail()")
        page.until(
            "document.querySelector('#text').innerText.startsWith('Not answered: The service cannot be reached')"
        )
        # The answer itself is the same in every form.
        assert page.evaluate("document.querySelector('#earlier')") is None
        choose(page, "#form", "helm")
        page.evaluate("new Promise((resume) => setTimeout(resume, 600))")
        page.evaluate("window.answer()")
        page.until("document.querySelector('#text').innerText.includes('vllmConfig')")
        page.evaluate("window.fetch = window.real")
        choose(page, "#form", "command")
        page.until(f"document.querySelector('#text').innerText === {json.dumps(command)}")


def test_only_where_nothing_can_be_started_it_is_said_so(site: tuple[str, str]) -> None:
    with looking(site, DESKTOP) as page:
        # 22 GiB hold no 16 GB of weights and one request of the whole context.
        replace(page, "#gpu", "A10")
        replace(page, "#model", "Qwen/Qwen3-32B")
        page.press("Enter")
        page.until("document.querySelector('#text').innerText === 'Nothing would start.'")
        assert "Nothing would start" in read(page, "#decision")


def test_an_answer_is_marked_as_that_to_an_earlier_question_until_the_next_is_there(site: tuple[str, str]) -> None:
    mark = "document.querySelector('#earlier')?.innerText"
    with looking(site, PHONE) as page:
        assert page.evaluate(mark) is None
        replace(page, "#field-prompt_tokens", "4000:2000")
        page.until(f"{mark} === 'What follows answers an earlier question.'")
        assert "(an earlier question)" in read(page, ".jump")
        assert "reversed" in read(page, "#field-prompt_tokens-fault")
        page.until("document.querySelector('#summary')")
        replace(page, "#field-prompt_tokens", "many")
        page.until(mark)
        replace(page, "#field-prompt_tokens", "2000")
        page.until(f"{mark} === undefined && document.querySelector('#summary').innerText.includes('2,000')")
        assert "earlier" not in read(page, ".jump")
        page.events = [event for event in page.events if event["method"] != "Log.entryAdded"]


def test_warnings_stand_with_the_decision_and_nearest_runs_are_called_simulated(tmp_path: Path) -> None:
    qwen = (16.38147072, 36.0, 4096.0, 147456.0)
    seen = Numbers(2000.0, 200.0, 8.0)
    rows = [Neighbour((*qwen, 512.0, 256.0, 0.0, clients), "s32-b2048-g0.45-p1", seen, seen) for clients in (6.0, 7.0)]
    more = {NEIGHBOURS_FILE: Neighbours(rows=tuple(rows)).to_bytes()}
    bundle = write_bundle(tmp_path / "bundle", estimator=ESTIMATOR, abstention=Abstention(margin=0.0), more=more)
    with _running(bundle, tmp_path) as site, looking(site, PHONE) as page:
        lines = page.evaluate("[...document.querySelectorAll('#nearest li')].map((one) => one.innerText)")
        assert len(lines) == 2
        assert all(", simulated: s32-b2048-g0.45-p1 was best with 2,000 tokens/s" in line for line in lines)
        assert page.evaluate("document.querySelector('.warnings')") is None
        # No bundle was trained for a load that is known roughly.
        choose(page, "#confidence", "rough")
        page.until("document.querySelector('.decision .warnings li')")
        asked = {"model": {"name": "Qwen/Qwen3-8B"}, "workload": {**WORKLOAD, "confidence": "rough"}}
        answer = httpx.post(f"{site[0]}/v1/recommend", json=asked).json()
        assert len(answer["warnings"]) == 1
        shown = page.evaluate("[...document.querySelectorAll('.warnings li')].map((one) => one.innerText)")
        assert shown == answer["warnings"]
        assert all(warning in page.evaluate("document.querySelector('#live').textContent") for warning in shown)
        assert check(page, "tooWide") == {"scrolled": 0, "out": []}


def test_late_answers_are_dropped(site: tuple[str, str]) -> None:
    slow_first = """
      const real = window.fetch; let asked = 0;
      window.fetch = async (path, options) => {
        const late = String(path).includes("recommend?") && asked++ === 0;
        const answer = await real(path, { ...options, signal: undefined });
        if (late) await new Promise((resume) => setTimeout(resume, 2500));
        window.__late = window.__late || late;
        return answer;
      };"""
    with looking(site, DESKTOP) as page:
        page.evaluate(slow_first)
        replace(page, "#field-concurrency", "31")
        page.evaluate("new Promise((resume) => setTimeout(resume, 600))")
        replace(page, "#field-concurrency", "33")
        page.until("document.querySelector('#summary').innerText.includes('33 clients')")
        page.until("window.__late")
        page.evaluate("new Promise((resume) => setTimeout(resume, 200))")
        assert "33 clients" in read(page, "#summary")


def test_a_token_is_asked_for_where_it_is_needed_and_never_kept(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", estimator=ESTIMATOR, abstention=Abstention(margin=0.0))
    tokens = write_tokens(tmp_path / "tokens.toml", SECRETS)
    with (
        _running(bundle, tmp_path, MEMORYPOLICY_TOKENS_FILE=str(tokens)) as (address, debugger),
        opened(debugger, f"{address}/") as page,
    ):
        page.until("document.querySelector('#token')")
        assert "Authorization: Bearer" in read(page, ".trouble")
        replace(page, "#token", SECRETS["asker"])
        page.press("Enter")
        page.until(ANSWERED)
        kept: Any = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
        assert kept == [0, 0, "", f"{address}/"]
        page.command("Page.reload")
        page.until("document.querySelector('.trouble')")


def pictures(folder: Path) -> None:
    """phone.png and desktop.png of the page with the default bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, _running(DEFAULT_BUNDLE_DIR, Path(made)) as site:
        for name, size, scale in (("phone", PHONE, 2.0), ("desktop", DESKTOP, 1.0)):
            with looking(site, size) as page:
                draw_map(page)
                page.command("Emulation.setScrollbarsHidden", hidden=True)
                # A bar that is there already goes with the next layout.
                page.resize(size[0] - 1, size[1], scale=scale)
                page.resize(*size, scale=scale)
                page.evaluate("document.activeElement.blur()")
                at = "document.querySelector('#answer').scrollIntoView()" if name == "phone" else "scrollTo(0, 0)"
                page.evaluate(at)
                page.screenshot(folder / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.service.browser_page", description="Pictures of the page.")
    parser.add_argument("folder", type=Path, help="where phone.png and desktop.png are written")
    pictures(parser.parse_args().folder)
