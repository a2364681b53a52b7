"""Who asks, for which project and endpoint, and whether the answer will be used: what the record says beside it."""

import re
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from starlette.requests import Request

from service.api.problem import Detail, RefusedError
from service.api.secret import holds_secret

Mode = Literal["apply", "shadow"]
MODES = get_args(Mode)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$"
NAME = re.compile(NAME_PATTERN)
HEADERS = {
    "X-Caller": "Who asks, such as the name of a service; where tokens are asked for, the token's name counts instead.",
    "X-Project-ID": "The project that the endpoint belongs to.",
    "X-Endpoint-Name": "The endpoint that is about to be created; outcomes may name it instead of the answer's id.",
}
_BY_RAW_NAME = {name.lower().encode(): name for name in HEADERS}

# As the OpenAPI document lists them.
PARAMETERS: list[dict[str, Any]] = [
    *(
        {"name": name, "in": "header", "description": text, "schema": {"type": "string", "pattern": NAME_PATTERN}}
        for name, text in HEADERS.items()
    ),
    {
        "name": "mode",
        "in": "query",
        "description": "`shadow`: the answer is recorded and compared, but the caller will not act on it.",
        "schema": {"type": "string", "enum": list(MODES), "default": "apply"},
    },
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: the name of its token, else what it says about itself; None where it says nothing."""

    caller: str | None
    project: str | None
    endpoint: str | None
    mode: Mode


def read_caller(request: Request) -> Caller:
    """RefusedError that names the header or parameter."""
    found: dict[str, str] = {}
    for raw, value in request.scope["headers"]:
        if raw in _BY_RAW_NAME:
            found.setdefault(_BY_RAW_NAME[raw], value.decode("latin-1"))
    for header, text in found.items():
        if holds_secret(text):
            raise _refused(header, "it looks like a secret, and it would go on record; leave it out", text)
        if not NAME.fullmatch(text):
            raise _refused(header, "use letters, digits and ._:/@- only, 128 at most", text)
    mode = request.query_params.get("mode", "apply") if request.scope["query_string"] else "apply"
    if mode not in MODES:
        raise _refused("?mode", f"give one of {', '.join(MODES)}", mode)
    return Caller(
        caller=token_name(request) or found.get("X-Caller"),
        project=found.get("X-Project-ID"),
        endpoint=found.get("X-Endpoint-Name"),
        mode=cast(Mode, mode),
    )


def token_name(request: Request) -> str | None:
    """The name of the token that opened the gate; None where none was asked for."""
    name: str | None = request.scope["state"]["caller"]
    return name


def _refused(path: str, message: str, value: str) -> RefusedError:
    detail = Detail(path=path, message=message, value=value)
    return RefusedError("invalid_request", f"{path}: {message}", details=[detail])
