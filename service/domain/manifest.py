"""The manifest of a bundle: what offline promises about a ranker and the service verifies before it serves it."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from service.domain.candidate import Candidate
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
# The estimator reads the same features and answers each row by itself, [rows, 9], [rows, 9] and [rows, 3] float32.
ESTIMATOR_FILE = "estimator.onnx"
ESTIMATOR_QUANTILES = "quantiles"
ESTIMATOR_RATIOS = "ratios"
ESTIMATOR_CHANCES = "chances"
QUANTITIES = ("throughput_tps", "ttft_p95_ms", "tpot_p95_ms")
CHANCES = ("slo_met", "not_worse_than_engine_default", "not_worse_than_fixed")
ERROR_BANDS_FILE = "error_bands.json"
NEIGHBOURS_FILE = "neighbours.json.gz"

# How well the announced workload is known: the variant of a bundle that was trained for it.
Confidence = Literal["exact", "typical", "rough"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)

_SHA256 = re.compile(r"[0-9a-f]{64}")


# A margin that no score exceeds: such a bundle never sets flags, because too little shows that its advice is any good.
NEVER_MARGIN = 1e30
# What the bundles of thousands of simulated scenarios are held to. It takes 299 held-out groups without a worse one.
PROMISED_RISK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """When to set no flags: the best candidate's score must exceed the engine default's by more than `margin`.

    The same graph scores the default, as a sixteenth row, so scores of such a bundle are comparable across the 16.
    threshold: and its chance not to be worse than the engine's default must be at least this, by the estimator.
    risk_price, fixed_price: first of all, each of the 16 scores is reduced by these for every unit of the chance to be
    worse than the engine's default, and than candidate 0.
    near_tie, low_utilisation_gain: differences of such scores, as service.domain.preference takes them. None: no rule.
    """

    margin: float
    threshold: float | None = None
    near_tie: float | None = None
    low_utilisation_gain: float | None = None
    risk_price: float | None = None
    fixed_price: float | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.margin, high=math.inf):
            raise ArtefactError(f"manifest: abstention margin {self.margin!r} is no finite number from 0 on")
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            high = 1.0 if name == "threshold" else math.inf
            if value is not None and not _is_number(value, high=high):
                what = "no number from 0 to 1" if high == 1.0 else "no finite number from 0 on"
                raise ArtefactError(f"manifest: abstention {name} {value!r} is {what}")


def _is_number(value: object, *, high: float) -> bool:
    """A finite number from 0 to high."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= high and value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """The graph that predicts what a configuration shows. Its output `quantiles` has, for each of `quantities` in order
    and of `levels` within it, the natural logarithm of that quantile over draws of the true workload; `ratios` has the
    same of the quantity ÷ what the engine's default shows in the same draw; `chances` has the calibrated probabilities
    of CHANCES, in order.

    calibration: how well it was calibrated on data that it was not trained on, by name, e.g. the expected calibration
    error of each chance and the coverage of the band between the outer levels.
    """

    file: str
    quantities: tuple[str, ...]
    levels: tuple[float, ...]
    chances: tuple[str, ...]
    calibration: dict[str, float]

    def __post_init__(self) -> None:
        if self.quantities != QUANTITIES or self.chances != CHANCES:
            raise ArtefactError(
                f"manifest: estimator of {', '.join(self.quantities)} and {', '.join(self.chances)}, "
                f"this program reads {', '.join(QUANTITIES)} and {', '.join(CHANCES)}"
            )
        if len(self.levels) != 3 or not 0 < self.levels[0] < self.levels[1] == 0.5 < self.levels[2] < 1:
            raise ArtefactError(f"manifest: estimator levels {self.levels} are not three ascending with 0.5 between")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Lists become tuples."""
        values = dict(content)
        for name in ("quantities", "levels", "chances"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What the rule of abstention was judged on, where that is too little for a promise.

    scenarios, groups: judged by rankers that saw none of the group; a group is a model and a workload. advised: groups
    in which flags would have been set. worse_upper95: of those, the 95 % bound of the share in which they would have
    done worse than the engine's default in one scenario at least.
    """

    scenarios: int
    groups: int
    advised: int
    worse_upper95: float

    def __post_init__(self) -> None:
        for name in ("scenarios", "groups", "advised"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ArtefactError(f"manifest: held_out {name} {value!r} is no whole number from 0 on")
        if not _is_number(self.worse_upper95, high=1.0):
            raise ArtefactError(f"manifest: held_out worse_upper95 {self.worse_upper95!r} is no number from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that makes a score meaningful.

    files: sha256 of every other file of the bundle, by name. training_range: [low, high] of each of the 8 model and
    workload features over the train split. training: how the weights came about, for people. What has a default may be
    left out. abstention: None for a bundle that ranks the 15 candidates and knows nothing of the engine's default.
    estimator: None for a bundle that predicts no numbers. confidence: how well known the workloads are that it was
    trained for. engine_default: what the engine starts with on `gpu` when nothing is set, as the training data had it.
    score_slope: utility per unit of score; utility is throughput as a share of the best where the SLO is met, else −1.
    configurations: config_ids of all that were learnt from, where they are not the 15 and the engine's default; no
    other is recommended or compared with. gpu_memory_gib: of the device, where its name does not tell. started_from:
    the evidence class of the ranker that training went on from, where that is another. held_out: None where what is
    promised about abstention stands in the evaluation alone.
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
    estimator: Estimator | None = None
    confidence: Confidence = "typical"
    engine_default: Candidate | None = None
    score_slope: float = 1.0
    configurations: tuple[str, ...] | None = None
    gpu_memory_gib: float | None = None
    started_from: Evidence | None = None
    held_out: HeldOut | None = None

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE_CLASSES:
            raise ArtefactError(f"manifest: evidence {self.evidence!r} is none of {', '.join(EVIDENCE_CLASSES)}")
        if set(self.training_range) != set(FEATURE_NAMES[:NUM_STATE_FEATURES]):
            raise ArtefactError(f"manifest: training_range must list {', '.join(FEATURE_NAMES[:NUM_STATE_FEATURES])}")
        for feature, (low, high) in self.training_range.items():
            if not (low <= high and math.isfinite(low) and math.isfinite(high)):
                raise ArtefactError(f"manifest: training_range of {feature} is [{low}, {high}]")
        if self.confidence not in CONFIDENCES:
            raise ArtefactError(f"manifest: confidence {self.confidence!r} is none of {', '.join(CONFIDENCES)}")
        if not _is_number(self.score_slope, high=math.inf) or self.score_slope == 0:
            raise ArtefactError(f"manifest: score_slope {self.score_slope!r} is no finite number above 0")
        if self.started_from not in (None, *EVIDENCE_CLASSES):
            raise ArtefactError(
                f"manifest: started_from {self.started_from!r} is none of {', '.join(EVIDENCE_CLASSES)}"
            )
        memory = self.gpu_memory_gib
        if memory is not None and (not _is_number(memory, high=math.inf) or memory == 0):
            raise ArtefactError(f"manifest: gpu_memory_gib {memory!r} is no finite number above 0")
        for file in (MODEL_FILE, *([self.estimator.file] if self.estimator else [])):
            if file not in self.files:
                raise ArtefactError(f"manifest: files must name {file}")
        if self.abstention and self.estimator is None:
            for name in ("threshold", "risk_price", "fixed_price"):
                if getattr(self.abstention, name) is not None:
                    raise ArtefactError(f"manifest: abstention has a {name}, and there is no estimator of the chances")
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
        for name, default in _optional().items():
            if getattr(self, name) == default:
                del content[name]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of to_json; ArtefactError if a key is missing, foreign or of another schema_version."""
        values = dict(content)
        version = values.pop("schema_version", None)
        if version != MANIFEST_SCHEMA_VERSION:
            raise ArtefactError(f"manifest: schema_version {version!r}, this program reads {MANIFEST_SCHEMA_VERSION}")
        wrong = (set(values) ^ {field.name for field in fields(cls)}) - (set(_optional()) - set(values))
        if wrong:
            raise ArtefactError(f"manifest: missing or foreign keys: {', '.join(sorted(wrong))}")
        try:
            for name, parse in _PARTS.items():
                if values.get(name) is not None:
                    values[name] = parse(values[name])
            values["slo"] = Slo(**values["slo"])
            values["training_range"] = {name: (float(a), float(b)) for name, (a, b) in values["training_range"].items()}
            return cls(**values)
        except (TypeError, ValueError, AttributeError, KeyError, InvalidInputError) as error:
            raise ArtefactError(f"manifest: {error}") from error


def _config_ids(content: Any) -> tuple[str, ...]:
    if not isinstance(content, list | tuple) or not content or not all(isinstance(one, str) for one in content):
        raise ValueError(f"configurations {content!r} is no list of config_ids")
    return tuple(content)


_PARTS: dict[str, Callable[[Any], object]] = {
    "abstention": lambda content: Abstention(**content),
    "estimator": Estimator.from_json,
    "configurations": _config_ids,
    "held_out": lambda content: HeldOut(**content),
    "engine_default": lambda content: Candidate(**content),
}


def _optional() -> dict[str, Any]:
    """The defaults of what a manifest may leave out."""
    return {field.name: field.default for field in fields(Manifest) if field.default is not MISSING}
