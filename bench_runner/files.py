"""Files on disk: whole or not at all, and errors in one line."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.domain.errors import ArtefactError


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename: a reader sees the old file or the new one, never half of one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Writers in two containers may have the same process id.
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArtefactError(
            f"{path} cannot be written ({error.strerror}); choose a folder that you can write to"
        ) from error


def create_once(path: Path, content: bytes) -> None:
    """A file that must not exist yet, whole or not at all; ArtefactError if it does or cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    write_atomically(temporary, content)
    try:
        # Unlike a rename, a link never replaces what is there.
        path.hardlink_to(temporary)
    except FileExistsError as error:
        raise ArtefactError(f"{path} exists and is written once; give another name") from error
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Makes it and its parents; ArtefactError if that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtefactError(
            f"{path} cannot be made ({error.strerror}); choose a folder that you can write to"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object for people and programs, whole or not at all."""
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ArtefactError if it is unreadable or something else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ArtefactError(f"{path} holds no JSON object; write it again")
    return content
