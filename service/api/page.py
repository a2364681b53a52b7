"""The page at /: fixed files of this checkout from our own origin, so that it works with the network closed."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from service.api.problem import RefusedError
from service.domain.gpu import GPUS
from service.domain.reference import REFERENCE_WORKLOADS

FOLDER = Path(__file__).resolve().parent.parent / "page"
_INDEX = "index.html"
_CHOICES = "choices.json"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
# No script, style or address but from here; nothing of the page is ever parsed as HTML.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for again each time, and not sent again: a new release's files must not be mixed with an old one's.
    "Cache-Control": "no-cache",
}
pages = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    body: bytes
    media_type: str
    etag: str


@pages.api_route("/", methods=["GET", "HEAD"])
def page(request: Request) -> Response:
    """The page; its addresses are relative, so it works behind a path prefix too."""
    return _sent(request, _files()[_INDEX])


@pages.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def page_file(request: Request, name: str) -> Response:
    """A file that the page needs."""
    found = _files().get(name)
    if found is None or name == _INDEX:
        raise RefusedError("not_found", "the page has no such file")
    return _sent(request, found)


def _sent(request: Request, file: _File) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)


# Read when somebody asks: most services are asked by machines alone.
@cache
def _files() -> dict[str, _File]:
    """What may be served, by name: nothing that is asked for ever becomes a path on the disk."""
    found = {
        path.relative_to(FOLDER).as_posix(): (path.read_bytes(), _MEDIA_TYPES[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _MEDIA_TYPES
    }
    found[_CHOICES] = (_choices(), "application/json")
    return {
        name: _File(body=body, media_type=media_type, etag=f'"{hashlib.sha256(body).hexdigest()}"')
        for name, (body, media_type) in found.items()
    }


def _choices() -> bytes:
    """What the page offers to choose from, out of the service's own tables."""
    return to_json(
        {
            "gpus": [
                {"name": gpu.name, "short": gpu.short_name, "aliases": gpu.aliases, "memory_gib": gpu.memory_gib}
                for gpu in GPUS
            ],
            "presets": [
                {
                    "name": named.name,
                    "prompt_tokens": named.prompt_tokens,
                    "max_new_tokens": named.max_new_tokens,
                    "shared_prefix_ratio": named.shared_prefix_ratio,
                }
                for named in REFERENCE_WORKLOADS
            ],
        }
    )
