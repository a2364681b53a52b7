"""What a refused request looks like: RFC 9457 problem details with the members that gateway clients read."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.api.secret import REMOVED, names_secret, resembles_secret
from service.domain.errors import MemoryPolicyError, shorten

MEDIA_TYPE = "application/problem+json"
# A hostile body can be wrong in a hundred thousand places; nobody reads more than the first few.
MOST_DETAILS = 20
# All of a JSON path before the name of its last member.
_LAST_NAME = re.compile(r"^.*[.\[]|[\]'\"]")

# error code: (status, title)
PROBLEMS: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "The body is not JSON"),
    "invalid_http": (400, "Not a request in HTTP"),
    "unauthorized": (401, "A token is needed"),
    "forbidden": (403, "The token does not open this"),
    "not_found": (404, "No such resource"),
    "method_not_allowed": (405, "Method not allowed"),
    "request_timeout": (408, "The request did not arrive in time"),
    "payload_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be application/json"),
    "invalid_request": (422, "The request cannot be used"),
    "measured_field": (422, "A measured quantity is never an input"),
    "unknown_name": (422, "A name that is not in the list of known ones"),
    "unsupported_model": (422, "A model that cannot be sized yet"),
    "idempotency_conflict": (409, "This key was used for another request"),
    "outcome_conflict": (409, "Another report has this id"),
    "rate_limited": (429, "Too many requests"),
    "head_too_large": (431, "The head of the request is too large"),
    "internal_error": (500, "Internal error"),
    "audit_full": (503, "The answer cannot be put on record"),
    "database_away": (503, "The database cannot be reached"),
    "draining": (503, "This process is stopping"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One place of the request. path: a JSON path such as `$.workload.prompt_tokens`; value: what stood there."""

    path: str
    message: str
    value: object = field(default=None)

    def to_json(self) -> dict[str, Any]:
        """The entry of `details`."""
        secret = isinstance(self.value, str) and names_secret(_LAST_NAME.sub("", self.path))
        return {
            "path": _without_secret(self.path),
            "message": _without_secret(self.message),
            "value": REMOVED if secret else _shown(self.value),
        }


class RefusedError(MemoryPolicyError):
    """A request that is answered with a problem; `error` is a key of PROBLEMS. members: more of its body."""

    def __init__(
        self,
        error: str,
        message: str,
        *,
        details: Sequence[Detail] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        self.error = error
        self.status, self.title = PROBLEMS[error]
        self.message = message
        self.details = tuple(details)
        self.headers = dict(headers or {})
        self.members = dict(members or {})
        super().__init__(message)


def problem_body(refusal: RefusedError, *, instance: str, request_id: str, unix_seconds: float) -> dict[str, Any]:
    """The body of the answer, with nothing in it that JSON cannot carry."""
    return {
        "type": f"urn:memorypolicy:problem:{refusal.error}",
        "title": refusal.title,
        "status": refusal.status,
        "detail": _without_secret(refusal.message),
        "instance": _without_secret(instance),
        "error": refusal.error,
        "message": _without_secret(refusal.message),
        "request_id": request_id,
        "timestamp": int(unix_seconds),
        "details": [detail.to_json() for detail in refusal.details[:MOST_DETAILS]],
        **refusal.members,
    }


def json_path(parts: Sequence[str | int]) -> str:
    """`$.workload.prompt_tokens`, `$.items[0]`, `$['odd key']`."""
    path = "$"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.isascii():
            path += f".{part}"
        else:
            path += f"[{shorten(part)}]"
    return path


def _shown(value: object) -> object:
    """The value as JSON can carry it, cut so that a problem stays small whatever was sent."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _without_secret(value if len(value) <= 60 else f"{value[:59]}…")
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        return value if value.bit_length() <= 63 else shorten(value)
    if isinstance(value, dict):
        return f"an object with {len(value)} members"
    return f"a list of {len(value)}" if isinstance(value, list) else shorten(value)


def _without_secret(text: str) -> str:
    # Whoever put a secret in the wrong place must not find it in the logs of all that stands in between.
    return REMOVED if resembles_secret(text) else _text(text)


def _text(text: str) -> str:
    # Lone surrogates survive in Python strings (from argv, say) but not in UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")
