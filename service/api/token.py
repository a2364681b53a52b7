"""Bearer tokens: what a file says about them, and which of them a request carries. Only their hashes are kept."""

import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from service.api.caller import NAME_PATTERN
from service.domain.errors import ArtefactError

TokenScope = Literal["recommend", "outcomes", "admin"]
TOKEN_SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
SCHEMA_VERSION = 1
# Tells secret scanners, and people, what leaked.
PREFIX = "mpt_"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Token(BaseModel):
    """sha256: of each secret that is accepted, two while one replaces the other. scopes: admin opens everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[Digest, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
    scopes: frozenset[TokenScope] = Field(min_length=1)
    expires: AwareDatetime | None = None

    def may(self, scope: TokenScope) -> bool:
        """Whether it opens what needs that scope."""
        return scope in self.scopes or "admin" in self.scopes

    def expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= now


class Tokens(BaseModel):
    """The file: tokens by the name of who has them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    tokens: dict[Annotated[str, Field(pattern=NAME_PATTERN)], Token] = Field(default={})

    @model_validator(mode="after")
    def _one_owner_each(self) -> Self:
        digests = [digest for token in self.tokens.values() for digest in token.sha256]
        if len(set(digests)) != len(digests):
            raise ValueError("a sha256 stands twice; give every token a secret of its own")
        return self

    def find(self, secret: bytes) -> tuple[str, Token] | None:
        """Name and token of that secret, expired or not. Every digest is compared in full, whichever it is."""
        presented, found = digest_of(secret), None
        for name, token in self.tokens.items():
            for digest in token.sha256:
                if hmac.compare_digest(digest, presented):
                    found = name, token
        return found


def new_secret() -> str:
    """256 random bits: what has so many needs no slow hash."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: bytes) -> str:
    """What the file keeps of a secret."""
    return hashlib.sha256(secret).hexdigest()


def token_entry(name: str, secret: str, scopes: Iterable[TokenScope]) -> str:
    """The lines of the file for a new token."""
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    return f'[tokens."{name}"]\nsha256 = "{digest_of(secret.encode())}"\nscopes = [{listed}]\n'


def read_tokens(path: Path) -> Tokens:
    """The tokens of a file; ArtefactError in one line names the member, never what stands there: it may be a secret."""
    try:
        return Tokens.model_validate(tomllib.loads(path.read_bytes().decode()))
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}; check MEMORYPOLICY_TOKENS_FILE") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtefactError(f"{path}: {where or 'tokens'}: {first['msg']}") from None
    except ValueError:
        raise ArtefactError(f"{path}: not TOML in UTF-8; quote what is text, and give every name once") from None
