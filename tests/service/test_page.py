"""The page at /: what is served, how, to whom, and that nothing of it comes from anywhere else."""

import hashlib
import re
from pathlib import Path

import pytest

from service.api.page import FOLDER
from service.api.request_schemas import FixedPart, SloPart
from service.api.workload_part import WorkloadPart
from service.app import create_app
from service.domain.gpu import GPUS, gpu_by_name
from service.settings import Settings
from tests.service.conftest import Client
from tests.service.test_gate import SECRETS, write_tokens

VENDORED = "vendor/htm-preact-standalone-3.1.1.js"
SCRIPTS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.js"))
SERVED = sorted(
    f"/page/{path.relative_to(FOLDER).as_posix()}"
    for path in FOLDER.rglob("*")
    if path.is_file() and path.name != "index.html"
)


@pytest.mark.parametrize("path", ["/", "/page/choices.json", *SERVED])
def test_everything_of_the_page_is_served_as_what_it_is_and_kept_within_its_origin(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.content
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    expected = {
        "": "text/html",
        "js": "text/javascript",
        "css": "text/css",
        "svg": "image/svg+xml",
        "txt": "text/plain",
    }
    ending = path.rpartition(".")[2] if "." in path else ""
    assert answer.headers["content-type"].startswith(expected.get(ending, "application/json"))


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/choices.json"])
def test_head_answers_as_get_does_and_what_a_browser_has_is_not_sent_again(client: Client, path: str) -> None:
    got, asked = client.get(path), client.request("HEAD", path)
    assert asked.status_code == 200
    assert {**asked.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}
    again = client.get(path, headers={"If-None-Match": f'"other", W/{got.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == got.headers["etag"]
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.request("POST", path).status_code == 405


@pytest.mark.parametrize(
    "name", ["index.html", "", "vendor", "vendor/", "../settings.py", "%2e%2e/settings.py", "..%2fsettings.py", "x.js"]
)
def test_nothing_else_of_the_disk_is_served(client: Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"] == "not_found"


def test_what_the_page_refers_to_is_there() -> None:
    index = (FOLDER / "index.html").read_text(encoding="utf-8")
    referred = re.findall(r'(?:src|href)="page/([^"]+)"', index)
    assert len(referred) == 3
    assert "<script>" not in index
    assert "style=" not in index
    missing = [name for name in referred if not (FOLDER / name).is_file()]
    for script in SCRIPTS:
        text = (FOLDER / script).read_text(encoding="utf-8")
        imported = re.findall(r'^import .* from "([^"]+)";$', text, re.MULTILINE)
        # Nothing is imported that a build step would have to find.
        assert all(name.startswith("./") for name in imported), script
        missing += [name for name in imported if not ((FOLDER / script).parent / name).is_file()]
    assert missing == []
    assert len(SCRIPTS) > 5


def test_no_file_of_the_page_names_another_origin_or_makes_code_of_text() -> None:
    for path in FOLDER.rglob("*"):
        if path.suffix not in (".html", ".js", ".css"):
            continue
        text = path.read_text(encoding="utf-8")
        # Names of XML namespaces are never asked for.
        addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'`]*", text)
        assert [address for address in addresses if not address.startswith("http://www.w3.org/")] == [], path.name
        for word in ("eval(", "new Function", "@import", "innerHTML=`", "Storage", "document.cookie", "document.write"):
            assert word not in text, f"{path.name} has {word}"


def test_the_library_is_the_one_that_the_notice_names() -> None:
    content = (FOLDER / VENDORED).read_bytes()
    assert len(content) < 20_000
    notice = (FOLDER / "vendor" / "NOTICE.txt").read_text(encoding="utf-8")
    assert hashlib.sha256(content).hexdigest() in notice
    assert "Permission is hereby granted, free of charge" in notice
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in notice
    assert [path.name for path in (FOLDER / "vendor").glob("*.js")] == [Path(VENDORED).name]


def test_what_can_be_chosen_is_what_the_service_knows(client: Client) -> None:
    choices = client.get("/page/choices.json").json()
    assert [gpu["name"] for gpu in choices["gpus"]] == [gpu.name for gpu in GPUS]
    assert all(gpu_by_name(alias).name == gpu["name"] for gpu in choices["gpus"] for alias in gpu["aliases"])
    assert all(gpu_by_name(gpu["short"]).memory_gib == gpu["memory_gib"] for gpu in choices["gpus"])
    chat = {"name": "chat", "prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0}
    assert choices["presets"][0] == chat
    assert len(choices["presets"]) == 6


def test_the_page_asks_for_members_that_the_request_has() -> None:
    text = (FOLDER / "question.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'\{ name: "(\w+)"', text))
    known = {*WorkloadPart.model_fields, *SloPart.model_fields}
    assert asked <= known
    assert asked >= {"prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency", "requests_per_second"}
    # Of the four that are ranked, none is asked for by a control of its own.
    assert not asked & FixedPart.model_fields.keys()


def test_the_page_opens_without_a_token_where_it_is_named_and_what_it_asks_does_not(
    bundle_dir: Path, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", SECRETS)

    given = Settings(bundle_dir=bundle_dir, tokens_file=tokens, data_dir=tmp_path)

    def door(routes: str) -> Client:
        return Client(create_app(given.model_copy(update={"open_routes": routes})))

    by_default, named, closed = door(given.open_routes), door("metrics,page"), door("docs")
    for path in ("/", "/page/main.js", "/page/choices.json"):
        assert by_default.get(path).status_code == 200
        assert named.get(path).status_code == 200
        assert closed.get(path).status_code == 401
        bearer = {"Authorization": f"Bearer {SECRETS['asker']}"}
        assert closed.get(path, headers=bearer).status_code == 200
    assert named.get("/docs").status_code == 401
    for path in ("/v1/models", "/v1/policy"):
        assert by_default.get(path).status_code == 401
    assert by_default.recommend({}).status_code == 401
