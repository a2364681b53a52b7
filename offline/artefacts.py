"""Files that the stages write: canonical JSON, whole or not at all, and their sha256."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from service.domain.errors import ArtefactError


def sha256_bytes(content: bytes) -> str:
    """Hex digest of a byte string."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes; ArtefactError if it cannot be read."""
    try:
        return sha256_bytes(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror or error}") from error


def canonical_json(content: object) -> bytes:
    """Strict JSON with sorted keys and one final newline: equal content gives equal bytes."""
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def sha256_json(content: object) -> str:
    """Digest of a value's canonical JSON."""
    return sha256_bytes(canonical_json(content))


def read_json(path: Path, *, remedy: str) -> dict[str, Any]:
    """A JSON object from a file; ArtefactError says what is wrong with it and what to do."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror or error}; {remedy}") from error
    except ValueError as error:
        raise ArtefactError(f"{path}: not JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise ArtefactError(f"{path}: a JSON object belongs here; {remedy}")
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old bytes or the new ones and nothing between."""
    _write_beside(path, content).replace(path)


def create_once(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, whole or not at all; FileExistsError if it does."""
    temporary = _write_beside(path, content)
    try:
        # Unlike a rename, a link never replaces what is there.
        path.hardlink_to(temporary)
    finally:
        temporary.unlink()


def _write_beside(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary
