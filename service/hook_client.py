"""Asks MemoryPolicy's endpoint-creation hook while an endpoint is created, and never gets in the way of it.

One file, standard library only, no installation: copy it. Whatever goes wrong — no service, a timeout, another status,
an answer that cannot be read — is a skip, and `patched` then returns the request as it was. One attempt, 500 ms.

    answer = ask("http://memorypolicy:8000", event, token=TOKEN)
    request = patched(event["request"], answer)
"""

import copy
import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import Any

PATH = "/v1/hooks/endpoint-creation"
TIMEOUT_S = 0.5
MOST_BYTES = 2**20


def ask(
    url: str,
    event: dict[str, Any],
    *,
    token: str | None = None,
    idempotency_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """The hook's answer to an event, or a skip whose reason is `unreachable`, `timeout`, `refused` or `unreadable`.

    url: of the service, without a path. Returns within timeout_s, also where name resolution or the server hangs.
    """
    answers: list[dict[str, Any]] = []

    def fetch() -> None:
        answers.append(_fetch(url, event, token=token, idempotency_key=idempotency_key, timeout_s=timeout_s))

    # A socket's timeout is for each read; a thread that nobody waits for bounds the whole.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else _skip("timeout", f"no answer within {timeout_s:g} s")


def patched(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A copy of the request with the answer's patch, if the decision is to apply it."""
    if answer.get("decision") != "apply" or not isinstance(answer.get("request_patch"), dict):
        return copy.deepcopy(request)
    merged: dict[str, Any] = merge_patch(copy.deepcopy(request), answer["request_patch"])
    return merged


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a token goes to nobody else."""

    def redirect_request(self, *_: Any) -> None:
        """None: the answer is the redirect itself."""


def _fetch(
    url: str, event: dict[str, Any], *, token: str | None, idempotency_key: str | None, timeout_s: float
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    opener = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url.rstrip("/") + PATH, json.dumps(event).encode(), headers)
        with opener.open(request, timeout=timeout_s) as response:
            status, body = response.status, response.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        return _skip("refused", f"status {error.code}")
    except TimeoutError:
        return _skip("timeout", f"no answer within {timeout_s:g} s")
    except urllib.error.URLError as error:
        late = isinstance(error.reason, TimeoutError)
        return _skip("timeout" if late else "unreachable", type(error.reason).__name__)
    except (OSError, http.client.HTTPException) as error:
        return _skip("unreachable", type(error).__name__)
    except Exception as error:
        return _skip("unreadable", type(error).__name__)
    return _read(status, body)


def _read(status: int, body: bytes) -> dict[str, Any]:
    if status != 200:
        return _skip("refused", f"status {status}")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return _skip("unreadable", "not JSON")
    if (
        not isinstance(answer, dict)
        or answer.get("decision") not in ("apply", "skip", "shadow")
        or not isinstance(answer.get("request_patch"), dict)
    ):
        return _skip("unreadable", "not an answer of the hook")
    return answer


def _skip(reason: str, message: str) -> dict[str, Any]:
    return {"decision": "skip", "reason": reason, "message": message, "request_patch": {}}
