"""Who may ask for what, and how often: bearer tokens with scopes, and a rate for each."""

import ipaddress
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from starlette.types import Scope

from service.api.problem import RefusedError
from service.api.rate import RateLimit
from service.api.token import Tokens, TokenScope, read_tokens
from service.domain.errors import ArtefactError, MemoryPolicyError

logger = logging.getLogger(__name__)

# The orchestrator asks these without a token, and as often as it likes.
PROBES = frozenset({"/healthz", "/readyz"})
SCOPES: dict[str, TokenScope] = {
    "/v1/recommend": "recommend",
    "/v1/recommend:batch": "recommend",
    "/v1/hooks/endpoint-creation": "recommend",
    "/webhooks/v1/mutate-inferenceservice": "recommend",
    "/v1/configs": "recommend",
    "/v1/models": "recommend",
    "/v1/models:inspect": "recommend",
    "/v1/policy": "recommend",
    "/version": "recommend",
    "/docs": "recommend",
    "/openapi.json": "recommend",
    "/": "recommend",
    "/page": "recommend",
    "/v1/outcomes": "outcomes",
    "/v1/outcomes/report": "outcomes",
    "/metrics": "admin",
}
# What MEMORYPOLICY_OPEN_ROUTES calls them.
OPENABLE = {
    "docs": ("/docs", "/openapi.json", "/version"),
    # Fixed files without a word about this installation: what they ask for needs a token.
    "page": ("/", "/page"),
    "metrics": ("/metrics",),
    "webhook": ("/webhooks/v1/mutate-inferenceservice",),
}
_ASSETS = ("/docs/", "/page/")
TOKEN_RATE_PER_S = 500.0
# A mounted secret is swapped as a whole; looking once a second is a system call a second.
LOOK_S = 1.0
Stamp = tuple[int, int, int, int]


class TokenWatch:
    """The tokens of a file as it is now. A file that cannot be used any more changes nothing, and is logged."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """ArtefactError: a service that is to ask for tokens does not start without knowing them."""
        self._path, self._clock = path, clock
        # Before it is read: what changes meanwhile is seen at the next look.
        self._seen, self._look_at_s = _stamp(path), clock() + LOOK_S
        self._failed: Stamp | None = None
        self._tokens = read_tokens(path)

    def tokens(self) -> Tokens:
        """Read again if the file changed."""
        now_s = self._clock()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            stamp = _stamp(self._path)
            if stamp != self._seen:
                self._read_again(stamp)
        return self._tokens

    def _read_again(self, stamp: Stamp) -> None:
        """Until it succeeds: a file that cannot be read now may be in a moment, and not look different then."""
        try:
            self._tokens = read_tokens(self._path)
            self._seen, self._failed = stamp, None
            logger.info("tokens read again: %s", ", ".join(self._tokens.tokens) or "none")
        except ArtefactError as error:
            if stamp != self._failed:
                logger.error("the tokens stay as they were: %s", error)
            self._failed = stamp


class Gate:
    """Admits a request, or refuses it. tokens is None where whoever reaches the address may ask."""

    def __init__(
        self,
        *,
        tokens: Callable[[], Tokens] | None,
        open_routes: Iterable[str],
        rate: RateLimit | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._tokens, self._rate, self._now = tokens, rate, now
        self._open = frozenset(path for name in open_routes for path in OPENABLE[name])

    def admit(self, scope: Scope) -> None:
        """Puts the name of the caller into the request's state, None where nobody was asked for it. RefusedError."""
        path = _known(scope["path"])
        if not path.isprintable():
            # Patterns of routes end before a last line break, so such a path would lead somewhere under another name.
            raise RefusedError("not_found", "nothing is served at a path with control characters")
        caller = None
        if path not in PROBES:
            if self._tokens is not None and path not in self._open:
                caller = self._authorised(self._tokens(), scope["headers"], SCOPES.get(path))
            if self._rate is not None:
                self._limit(caller or _address(scope))
        scope["state"]["caller"] = caller

    def _authorised(self, tokens: Tokens, headers: Iterable[tuple[bytes, bytes]], needed: TokenScope | None) -> str:
        secret = _bearer(headers)
        if secret is None:
            raise _unauthorized("send 'Authorization: Bearer TOKEN'", 'Bearer realm="memorypolicy"')
        found = tokens.find(secret)
        if found is None or found[1].expired(self._now()):
            what = "not known" if found is None else "expired"
            raise _unauthorized(
                f"the token is {what}; ask the operator for a new one",
                'Bearer realm="memorypolicy", error="invalid_token"',
            )
        name, token = found
        if needed is not None and not token.may(needed):
            challenge = f'Bearer realm="memorypolicy", error="insufficient_scope", scope="{needed}"'
            raise RefusedError(
                "forbidden",
                f"the token of {name} has no scope {needed!r}; ask the operator for it",
                headers={"WWW-Authenticate": challenge},
            )
        return name

    def _limit(self, key: str) -> None:
        assert self._rate is not None
        wait_s = self._rate.wait_s(key)
        if wait_s:
            retry_after_s = math.ceil(wait_s)
            raise RefusedError(
                "rate_limited",
                f"more requests than MEMORYPOLICY_RATE_LIMIT_PER_S allows; try again in {retry_after_s} s",
                headers={"Retry-After": str(retry_after_s)},
                members={"limit_type": "requests_per_second", "retry_after": retry_after_s},
            )


def gate_of(
    *,
    host: str,
    auth: str,
    tokens_file: Path | None,
    open_routes: str,
    rate_limit_per_s: float | None,
    clock: Callable[[], float],
) -> Gate:
    """The gate of these settings. MemoryPolicyError: an address that others reach is never open by accident."""
    if tokens_file is not None and auth == "off":
        raise MemoryPolicyError(
            "MEMORYPOLICY_AUTH is off and MEMORYPOLICY_TOKENS_FILE is set; leave one of the two out"
        )
    if tokens_file is None and auth != "off" and not is_loopback(host):
        raise MemoryPolicyError(
            f"MEMORYPOLICY_HOST is {host}, which others can reach, and no tokens are asked for; set "
            "MEMORYPOLICY_TOKENS_FILE ('python -m service token new' makes one), or MEMORYPOLICY_AUTH=off where "
            "something in front asks for them"
        )
    watch = None if tokens_file is None else TokenWatch(tokens_file, clock=clock)
    per_s = rate_limit_per_s or (TOKEN_RATE_PER_S if watch else None)
    return Gate(
        tokens=watch.tokens if watch else None,
        open_routes=[name for name in open_routes.split(",") if name in OPENABLE],
        rate=RateLimit(per_s, clock=clock) if per_s else None,
    )


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _known(path: str) -> str:
    """The path as the tables above know it."""
    return path[: path.index("/", 1)] if path.startswith(_ASSETS) else path


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, secret = value.partition(b" ")
            if scheme.lower() == b"bearer" and secret.strip():
                return secret.strip()
    return None


def _address(scope: Mapping[str, object]) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) else ""


def _stamp(path: Path) -> Stamp:
    """What changes with the file; zeros if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def _unauthorized(message: str, challenge: str) -> RefusedError:
    return RefusedError("unauthorized", message, headers={"WWW-Authenticate": challenge})
