"""Loads a bundle and refuses one that is damaged, foreign or made for another version of the encoding."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from service.domain.candidate import candidates_fingerprint
from service.domain.errors import ArtefactError, MemoryPolicyError, UnknownNameError
from service.domain.features import feature_schema_hash
from service.domain.gpu import gpu_by_name
from service.domain.manifest import MANIFEST_FILE, MODEL_FILE, RANKER_PARAMETERS, Manifest

EVALUATION_FILE = "evaluation.json"
RESTORE = "restore the folder from version control or run 'make train'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose every file was checked. sha256 is the manifest's own, and the manifest covers all other files.

    files: the content of every file, the manifest's included, by name.
    """

    directory: Path
    manifest: Manifest
    sha256: str
    files: Mapping[str, bytes]

    @property
    def model(self) -> bytes:
        """The ONNX graph."""
        return self.files[MODEL_FILE]

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json, None where there is none; read anew each time: it takes ten times its size."""
        content = self.files.get(EVALUATION_FILE)
        return None if content is None else _json_object(self.directory / EVALUATION_FILE, content)


def load_bundle(directory: Path) -> Bundle:
    """The verified bundle in `directory`; ArtefactError says which file or promise fails, and the remedy.

    Bytes are read once and hashed as read, so what was verified is what will be served.
    """
    if not directory.is_dir():
        raise ArtefactError(
            f"{directory}: no bundle folder; run 'make train', or point MEMORYPOLICY_BUNDLE_DIR at a bundle"
        )
    return _verified_bundle(directory, _read)


def stored_bundle(sha256: str, files: Mapping[str, bytes]) -> Bundle:
    """The verified bundle of files that were kept elsewhere under its digest; ArtefactError as for a folder."""
    directory = Path("policy_bundles") / sha256

    def read(path: Path) -> bytes:
        if path.name not in files:
            raise ArtefactError(f"{path}: is missing; activate the bundle's folder again")
        return files[path.name]

    bundle = _verified_bundle(directory, read)
    if bundle.sha256 != sha256:
        raise ArtefactError(f"{directory}: its manifest has the sha256 {bundle.sha256}; activate its folder again")
    return bundle


def _verified_bundle(directory: Path, read: Callable[[Path], bytes]) -> Bundle:
    manifest_bytes = read(directory / MANIFEST_FILE)
    manifest = _parse_manifest(directory / MANIFEST_FILE, manifest_bytes)
    contents = {name: _verified(directory, name, digest, read) for name, digest in manifest.files.items()}
    _check_promises(directory, manifest)
    bundle = Bundle(
        directory=directory,
        manifest=manifest,
        sha256=_sha256(manifest_bytes),
        files={MANIFEST_FILE: manifest_bytes, **contents},
    )
    # Refused here if it cannot be read, not when somebody asks for it.
    _ = bundle.evaluation
    return bundle


def _parse_manifest(path: Path, content: bytes) -> Manifest:
    try:
        return Manifest.from_json(_json_object(path, content))
    except MemoryPolicyError as error:
        message = str(error)
        raise ArtefactError(message if str(path) in message else f"{path}: {message}; {RESTORE}") from error


def _verified(directory: Path, name: str, expected: str, read: Callable[[Path], bytes]) -> bytes:
    # A manifest is text from outside: a name such as ../x must not make the service read beyond the bundle.
    if Path(name).name != name or name == MANIFEST_FILE:
        raise ArtefactError(
            f"{directory / MANIFEST_FILE}: files names {name!r}, which is no file of a bundle; {RESTORE}"
        )
    content = read(directory / name)
    actual = _sha256(content)
    if actual != expected:
        raise ArtefactError(f"{directory / name}: sha256 is {actual}, the manifest says {expected}; {RESTORE}")
    return content


def _check_promises(directory: Path, manifest: Manifest) -> None:
    promises: tuple[tuple[str, str | int, str | int], ...] = (
        ("feature_schema", manifest.feature_schema, feature_schema_hash()),
        ("candidates_fingerprint", manifest.candidates_fingerprint, candidates_fingerprint()),
        ("parameters", manifest.parameters, RANKER_PARAMETERS),
    )
    for what, promised, ours in promises:
        if promised != ours:
            raise ArtefactError(
                f"{directory / MANIFEST_FILE}: {what} is {promised}, this program needs {ours}; "
                "the bundle belongs to another version: run 'make train', or use the version that made it"
            )
    try:
        gpu = gpu_by_name(manifest.gpu)
    except UnknownNameError as error:
        raise ArtefactError(f"{directory / MANIFEST_FILE}: {error}") from error
    if gpu.name != manifest.gpu:
        raise ArtefactError(f"{directory / MANIFEST_FILE}: gpu is {manifest.gpu!r}, write it as {gpu.name!r}")
    if manifest.engine_default is not None and manifest.engine_default != gpu.engine_default:
        raise ArtefactError(
            f"{directory / MANIFEST_FILE}: engine_default is {manifest.engine_default.config_id}, this program knows "
            f"{gpu.engine_default.config_id} on {gpu.name}: the bundle belongs to another version: run 'make train'"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read ({error.strerror}); {RESTORE}") from error


def _json_object(path: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: not JSON ({error}); {RESTORE}") from error
    if not isinstance(parsed, dict):
        raise ArtefactError(f"{path}: not a JSON object; {RESTORE}")
    return parsed


def _refuse_constant(token: str) -> NoReturn:
    # Python reads and writes NaN and Infinity; the clients that GET /v1/policy do not.
    raise ValueError(f"{token} is no JSON")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
