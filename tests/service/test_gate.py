"""Who is let in: every route with every token, rotation while it serves, rates, and what an open address needs."""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import ignored_auth
from starlette.routing import Route

from service.api.gate import LOOK_S, PROBES, SCOPES, Gate, TokenWatch, gate_of, is_loopback
from service.api.problem import RefusedError
from service.api.token import Tokens, token_entry
from service.app import create_app, openapi_text
from service.domain.errors import MemoryPolicyError
from service.settings import Settings
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import creation
from tests.service.test_rate import Clock

load_all_checks()
SECRETS = {"asker": "mpt_asker", "reporter": "mpt_reporter", "operator": "mpt_operator"}
SCOPES_OF = {"asker": ["recommend"], "reporter": ["outcomes"], "operator": ["admin"]}
OPERATIONS = [
    (method.upper(), path) for path, methods in json.loads(openapi_text())["paths"].items() for method in methods
]


def write_tokens(path: Path, secrets: dict[str, str]) -> Path:
    """A file that accepts these secrets, with the scopes of their names; replaced as a mounted secret is."""
    entries = "\n".join(token_entry(name, secret, SCOPES_OF[name]) for name, secret in secrets.items())  # type: ignore[arg-type]
    fresh = path.with_suffix(".new")
    fresh.write_text(f"schema_version = 1\n{entries}")
    os.replace(fresh, path)  # noqa: PTH105 (as the kubelet does it)
    return path


@pytest.fixture(scope="module")
def tokens_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tokens."""
    return write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.toml", SECRETS)


@pytest.fixture(scope="module")
def guarded(bundle_dir: Path, tokens_file: Path) -> FastAPI:
    """An application that asks for them."""
    # What schemathesis sends in one test is more than anybody may ask at once.
    return create_app(
        Settings(bundle_dir=bundle_dir, tokens_file=tokens_file, hook_deadline_ms=60_000, rate_limit_per_s=1e6)
    )


@pytest.fixture(scope="module")
def door(guarded: FastAPI) -> Client:
    """A client of it that has no token of its own."""
    return Client(guarded)


def bearing(name: str | None) -> dict[str, str]:
    """The header of a caller."""
    return {} if name is None else {"Authorization": f"Bearer {SECRETS.get(name, name)}"}


def send(client: Client, method: str, path: str, name: str | None) -> httpx.Response:
    """A request with no body, as that caller."""
    return client.request(method, path, headers=bearing(name))


def test_every_route_has_a_scope_or_is_a_probe(guarded: FastAPI) -> None:
    routers = [included.original_router for included in guarded.routes if hasattr(included, "original_router")]
    paths = {route.path for router in (guarded, *routers) for route in router.routes if isinstance(route, Route)}
    assert {path for path in paths if not path.startswith(("/docs/", "/page/"))} <= PROBES | SCOPES.keys()
    assert {"/v1/recommend", "/metrics", "/readyz"} <= paths


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_route_opens_to_its_scope_and_to_admin_alone(door: Client, method: str, path: str) -> None:
    def refused(name: str | None) -> int | None:
        status = send(door, method, path, name).status_code
        return status if status in (401, 403) else None

    probe, needed = path in PROBES, SCOPES.get(path)
    open_without = probe or path == "/version"
    assert refused(None) == (None if open_without else 401)
    assert refused("nobody") == (None if open_without else 401)
    assert refused("operator") is None
    assert refused("asker") == (None if open_without or needed == "recommend" else 403)
    assert refused("reporter") == (None if open_without or needed == "outcomes" else 403)


@pytest.mark.parametrize(("method", "path"), [o for o in OPERATIONS if o[1] not in PROBES | {"/version"}])
def test_generated_requests_find_no_way_round_the_gate(guarded: FastAPI, method: str, path: str) -> None:
    operation = schemathesis.openapi.from_asgi("/openapi.json", guarded)[path][method]

    @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case[Any]) -> None:
        case.headers["Authorization"] = f"Bearer {SECRETS['operator']}"
        response = case.call()
        assert response.status_code not in (401, 403)
        ignored_auth_case = case.call(headers={"Authorization": "Bearer wrong"})
        assert ignored_auth_case.status_code == 401
        case.validate_response(response, checks=[ignored_auth])

    check()


@pytest.mark.parametrize("ending", ["%0A", "%0a", "%0D", "%00", "%1f", "%C2%85", "%E2%80%A8"])
@pytest.mark.parametrize("path", sorted(SCOPES))
def test_a_path_with_control_characters_leads_nowhere(door: Client, path: str, ending: str) -> None:
    for name in SECRETS:
        for method in ("GET", "POST"):
            assert send(door, method, path + ending, name).status_code == 404


@pytest.mark.parametrize(
    "way", ["/{}/", "//{}", "/./{}", "/x/../{}", "/%2e%2e/{}", "/{}?x", "/{}#x", "/{};x", "/{}%20"]
)
def test_no_other_spelling_of_a_path_opens_it(door: Client, way: str) -> None:
    # With a host: a client would take what stands behind two slashes for one.
    address = "http://service" + way.format("metrics")
    assert door.request("GET", address, headers=bearing("reporter")).status_code in (403, 404)


def test_the_refusal_says_what_to_send_and_never_what_was_sent(door: Client) -> None:
    missing = door.recommend(QUESTION)
    assert missing.status_code == 401
    assert missing.headers["WWW-Authenticate"] == 'Bearer realm="memorypolicy"'
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["error"] == "unauthorized"
    wrong = door.recommend(QUESTION, headers={"Authorization": "Bearer planted-secret"})
    assert 'error="invalid_token"' in wrong.headers["WWW-Authenticate"]
    assert "planted" not in wrong.text + str(wrong.headers)
    narrow = door.recommend(QUESTION, headers=bearing("reporter"))
    assert narrow.status_code == 403
    assert 'error="insufficient_scope", scope="recommend"' in narrow.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "header", ["Basic mpt_asker", "mpt_asker", "Bearer", "Bearer ", "bearer  ", "Bearer\tmpt_asker"]
)
def test_what_is_no_bearer_token_is_none(door: Client, header: str) -> None:
    assert door.recommend(QUESTION, headers={"Authorization": header}).status_code == 401


def test_the_scheme_s_case_does_not_matter(door: Client) -> None:
    assert door.recommend(QUESTION, headers={"Authorization": "bEARER mpt_asker"}).status_code == 200


def test_an_unknown_path_is_unknown_only_to_those_who_may_ask(door: Client) -> None:
    assert send(door, "GET", "/nothing", None).status_code == 401
    assert send(door, "GET", "/nothing", "reporter").status_code == 404


def test_the_documentation_is_open_unless_it_is_closed(bundle_dir: Path, tokens_file: Path, door: Client) -> None:
    closed = Client(create_app(Settings(bundle_dir=bundle_dir, tokens_file=tokens_file, open_routes="metrics,webhook")))
    for path in ("/docs", "/docs/assets/start.js", "/openapi.json"):
        assert (send(door, "GET", path, None).status_code, send(closed, "GET", path, None).status_code) == (200, 401)
    assert (send(door, "GET", "/metrics", None).status_code, send(closed, "GET", "/metrics", None).status_code) == (
        401,
        200,
    )
    webhook = ("POST", "/webhooks/v1/mutate-inferenceservice", None)
    assert (send(door, *webhook).status_code, send(closed, *webhook).status_code) == (401, 415)


def test_everything_is_closed_where_nothing_is_to_be_open(bundle_dir: Path, tokens_file: Path) -> None:
    closed = Client(create_app(Settings(bundle_dir=bundle_dir, tokens_file=tokens_file, open_routes="none")))
    for path in ("/docs", "/openapi.json", "/version", "/metrics"):
        assert send(closed, "GET", path, None).status_code == 401


def test_who_asks_is_the_token_s_name_whatever_the_header_claims(guarded: FastAPI, door: Client) -> None:
    headers = {**bearing("asker"), "X-Caller": "somebody-else", "X-Project-ID": "named-by-the-caller"}
    answer = door.recommend(QUESTION, headers=headers).json()
    decision = door.request("POST", "/v1/hooks/endpoint-creation", json=creation(), headers=headers).json()
    with guarded.state.api.memory.database.transaction() as connection:
        rows = connection.exec_driver_sql(
            "SELECT id, caller FROM recommendations UNION SELECT id, caller FROM hook_decisions"
        ).all()
    callers = {row[0]: row[1] for row in rows}
    assert callers[answer["recommendation_id"]] == "asker"
    assert callers[decision["decision_id"]] == "asker"


def test_an_expired_token_is_told_so() -> None:
    entry = token_entry("asker", "mpt_asker", ["recommend"])
    tokens = Tokens.model_validate(
        {"schema_version": 1, "tokens": {"asker": {
            "sha256": entry.split('"')[3], "scopes": ["recommend"], "expires": "2027-01-31T00:00:00Z"}}}
    )  # fmt: skip

    def admitted(now: datetime) -> str | None:
        gate = Gate(tokens=lambda: tokens, open_routes=(), rate=None, now=lambda: now)
        scope: dict[str, Any] = {
            "path": "/v1/recommend", "headers": [(b"authorization", b"Bearer mpt_asker")], "state": {},
        }  # fmt: skip
        gate.admit(scope)
        caller: str | None = scope["state"]["caller"]
        return caller

    assert admitted(datetime(2027, 1, 30, tzinfo=UTC)) == "asker"
    with pytest.raises(RefusedError, match="the token is expired"):
        admitted(datetime(2027, 2, 1, tzinfo=UTC))


def test_tokens_are_rotated_while_it_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, path = Clock(), tmp_path / "tokens.toml"
    watch = TokenWatch(write_tokens(path, {"asker": "mpt_old"}), clock=clock)

    def opens(secret: bytes) -> bool:
        clock.now_s += LOOK_S
        return watch.tokens().find(secret) is not None

    write_tokens(path, {"asker": "mpt_new"})
    assert (opens(b"mpt_old"), opens(b"mpt_new")) == (False, True)
    # What cannot be used changes nothing, and says so once.
    path.write_text("schema_version = 1\n[tokens.asker]\nsha256 = 'planted'\n")
    assert (opens(b"mpt_new"), opens(b"mpt_new")) == (True, True)
    # It is tried again, even where it looks the same: what kept it from being read may have been elsewhere.
    stamp = path.stat()
    path.write_text(f"schema_version = 1\n{token_entry('asker', 'mpt_new', ['recommend'])}")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert (opens(b"mpt_new"), opens(b"mpt_old")) == (True, False)
    path.unlink()
    assert opens(b"mpt_new")
    write_tokens(path, {"reporter": "mpt_third"})
    assert (opens(b"mpt_new"), opens(b"mpt_third")) == (False, True)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "planted" not in caplog.text
    assert "tokens read again: reporter" in caplog.text


def test_too_many_requests_of_one_caller_are_429_and_do_not_stop_another(bundle_dir: Path, tokens_file: Path) -> None:
    limited = Client(create_app(Settings(bundle_dir=bundle_dir, tokens_file=tokens_file, rate_limit_per_s=0.01)))
    # 0.02 of a request in two seconds is still one.
    assert limited.recommend(QUESTION, headers=bearing("asker")).status_code == 200
    refused = limited.recommend(QUESTION, headers=bearing("asker"))
    assert refused.status_code == 429
    problem = refused.json()
    assert (problem["error"], problem["limit_type"]) == ("rate_limited", "requests_per_second")
    assert 0 < problem["retry_after"] <= 100
    assert refused.headers["Retry-After"] == str(problem["retry_after"])
    assert limited.recommend(QUESTION, headers=bearing("operator")).status_code == 200
    for _ in range(3):
        assert limited.get("/readyz").status_code == 200


def test_where_no_tokens_are_asked_for_the_rate_is_that_of_an_address(bundle_dir: Path) -> None:
    limited = Client(create_app(Settings(bundle_dir=bundle_dir, rate_limit_per_s=0.01)))
    assert [limited.recommend(QUESTION).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_only_a_loopback_is_open_by_default(host: str, loopback: bool, tokens_file: Path) -> None:
    def gate(auth: str, file: Path | None) -> Gate:
        return gate_of(
            host=host, auth=auth, tokens_file=file, open_routes="docs", rate_limit_per_s=None, clock=lambda: 0.0
        )

    assert is_loopback(host) == loopback
    assert gate("off", None)
    assert gate("auto", tokens_file)
    if loopback:
        assert gate("auto", None)
    else:
        with pytest.raises(MemoryPolicyError, match="MEMORYPOLICY_TOKENS_FILE"):
            gate("auto", None)


def test_a_file_of_tokens_that_nobody_looks_at_is_refused(tokens_file: Path) -> None:
    with pytest.raises(MemoryPolicyError, match="MEMORYPOLICY_AUTH is off and MEMORYPOLICY_TOKENS_FILE is set"):
        gate_of(
            host="127.0.0.1", auth="off", tokens_file=tokens_file, open_routes="", rate_limit_per_s=None,
            clock=lambda: 0.0,
        )  # fmt: skip
