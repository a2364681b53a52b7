"""The mounted file that says what an endpoint's creator does not: which GPU a cluster has, which load a project brings.

TOML. Nothing in it has a default: what is neither asked nor mapped is unknown, and the hook skips.
"""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from service.api.request_part import RequestPart
from service.domain.errors import ArtefactError
from service.domain.scenario import MAX_CONCURRENCY, MAX_TOKENS

MAPPING_SCHEMA = 1


class Device(RequestPart):
    """What the pods of a cluster or a namespace run on."""

    gpu: str = Field(min_length=1, max_length=100)
    gpu_memory_gib: float | None = Field(default=None, ge=0.001, le=100_000)
    engine_version: str | None = Field(default=None, max_length=60)


class Profile(RequestPart):
    """A load by name. endpoint_concurrency: clients of the whole endpoint, over all its replicas."""

    prompt_tokens: int = Field(ge=1, le=MAX_TOKENS)
    max_new_tokens: int = Field(ge=1, le=MAX_TOKENS)
    shared_prefix_ratio: float = Field(ge=0.0, le=1.0)
    endpoint_concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)


class Mapping(RequestPart):
    """The file's content; `sha256` of its bytes tells two versions apart."""

    schema_version: int = Field(ge=MAPPING_SCHEMA, le=MAPPING_SCHEMA)
    clusters: dict[str, Device] = Field(default={})
    namespaces: dict[str, Device] = Field(default={})
    profiles: dict[str, Profile] = Field(default={})
    projects: dict[str, str] = Field(default={}, description="Project -> profile; looked at before the models.")
    models: dict[str, str] = Field(default={}, description="Model -> profile.")
    sha256: str = ""

    def device(self, *, cluster: str | None, namespace: str | None) -> Device | None:
        """Of the cluster, else of the namespace."""
        return self.clusters.get(cluster or "") or self.namespaces.get(namespace or "")

    def workload(self, *, project: str | None, model: str | None, replicas: int) -> dict[str, Any] | None:
        """The profile of the project, else of the model, as one replica sees it: ⌈clients ÷ replicas⌉ of them."""
        name = self.projects.get(project or "") or self.models.get(model or "")
        if name is None:
            return None
        profile = self.profiles[name]
        return {
            "prompt_tokens": profile.prompt_tokens,
            "max_new_tokens": profile.max_new_tokens,
            "shared_prefix_ratio": profile.shared_prefix_ratio,
            "concurrency": -(-profile.endpoint_concurrency // replicas),
        }


NO_MAPPING = Mapping(schema_version=MAPPING_SCHEMA)


def read_mapping(path: Path | None) -> Mapping:
    """The mapping of a file, the empty one without a file; ArtefactError in one line names what is wrong."""
    if path is None:
        return NO_MAPPING
    try:
        content = path.read_bytes()
        parsed = tomllib.loads(content.decode())
        mapping = Mapping.model_validate({**parsed, "sha256": hashlib.sha256(content).hexdigest()})
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}; check MEMORYPOLICY_HOOK_MAPPING_FILE") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtefactError(f"{path}: {where}: {first['msg']}") from error
    except ValueError as error:
        raise ArtefactError(f"{path}: not TOML in UTF-8: {error}") from error
    for kind in ("projects", "models"):
        for name, profile in getattr(mapping, kind).items():
            if profile not in mapping.profiles:
                known = ", ".join(mapping.profiles) or "none"
                raise ArtefactError(f"{path}: {kind}.{name}: profile {profile!r} is not there; known: {known}")
    return mapping
