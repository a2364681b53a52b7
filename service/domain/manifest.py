"""The manifest of a bundle: what offline promises about a ranker and the service verifies before it serves it."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from service.domain.cell import EVIDENCE_CLASSES, Evidence
from service.domain.errors import ArtefactError, InvalidInputError
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES
from service.domain.slo import Slo

MANIFEST_SCHEMA_VERSION = 1
MODEL_FILE = "model.onnx"
MANIFEST_FILE = "manifest.json"
# Names of the graph's ends. Input: [rows, 12] float32, unnormalised features; output: [rows, 1] float32 scores.
ONNX_INPUT = "features"
ONNX_OUTPUT = "scores"
RANKER_PARAMETERS = 9985

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """When to set no flags: the best candidate's score must exceed the engine default's by more than `margin`.

    The same graph scores the default, as a sixteenth row, so scores of such a bundle are comparable across the 16.
    """

    margin: float

    def __post_init__(self) -> None:
        if isinstance(self.margin, bool) or not isinstance(self.margin, int | float) or not 0 <= self.margin < math.inf:
            raise ArtefactError(f"manifest: abstention margin {self.margin!r} is no finite number from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that makes a score meaningful.

    files: sha256 of every other file of the bundle, by name. training_range: [low, high] of each of the 8 model and
    workload features over the train split. training: how the weights came about, for people. abstention: None for a
    bundle that ranks the 15 candidates and knows nothing of the engine's default; manifests may leave it out.
    """

    name: str
    version: str
    files: dict[str, str]
    feature_schema: str
    candidates_fingerprint: str
    parameters: int
    training_range: dict[str, tuple[float, float]]
    evidence: Evidence
    gpu: str
    engine_version: str
    slo: Slo
    cells_sha256: str
    plan_sha256: str
    training: dict[str, Any]
    abstention: Abstention | None = None

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE_CLASSES:
            raise ArtefactError(f"manifest: evidence {self.evidence!r} is none of {', '.join(EVIDENCE_CLASSES)}")
        if set(self.training_range) != set(FEATURE_NAMES[:NUM_STATE_FEATURES]):
            raise ArtefactError(f"manifest: training_range must list {', '.join(FEATURE_NAMES[:NUM_STATE_FEATURES])}")
        for feature, (low, high) in self.training_range.items():
            if not (low <= high and math.isfinite(low) and math.isfinite(high)):
                raise ArtefactError(f"manifest: training_range of {feature} is [{low}, {high}]")
        if MODEL_FILE not in self.files:
            raise ArtefactError(f"manifest: files must name {MODEL_FILE}")
        digests = {
            **self.files,
            "feature_schema": self.feature_schema,
            "candidates_fingerprint": self.candidates_fingerprint,
            "cells_sha256": self.cells_sha256,
            "plan_sha256": self.plan_sha256,
        }
        for what, digest in digests.items():
            if not _SHA256.fullmatch(digest):
                raise ArtefactError(f"manifest: {what} has {digest!r} where a sha256 belongs")

    def to_json(self) -> dict[str, Any]:
        """The content of manifest.json."""
        content = {"schema_version": MANIFEST_SCHEMA_VERSION, **asdict(self)}
        if self.abstention is None:
            del content["abstention"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of to_json; ArtefactError if a key is missing, foreign or of another schema_version."""
        values = dict(content)
        version = values.pop("schema_version", None)
        if version != MANIFEST_SCHEMA_VERSION:
            raise ArtefactError(f"manifest: schema_version {version!r}, this program reads {MANIFEST_SCHEMA_VERSION}")
        names = {field.name for field in fields(cls)}
        wrong = (set(values) ^ names) - ({"abstention"} - set(values))
        if wrong:
            raise ArtefactError(f"manifest: missing or foreign keys: {', '.join(sorted(wrong))}")
        try:
            if "abstention" in values:
                values["abstention"] = Abstention(**values["abstention"])
            values["slo"] = Slo(**values["slo"])
            values["training_range"] = {name: (float(a), float(b)) for name, (a, b) in values["training_range"].items()}
            return cls(**values)
        except (TypeError, ValueError, AttributeError, InvalidInputError) as error:
            raise ArtefactError(f"manifest: {error}") from error
