"""What a bundle was trained for, and what of a question lies outside of it: nothing is learnt about that."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.features import FEATURE_NAMES
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.manifest import Manifest
from service.domain.scenario import ModelArch
from service.domain.slo import Slo
from service.exclusion import Exclusion

# What every policy learns from: dense decoders with full attention and 16-bit weights.
TRAINED_ARCHITECTURE = "dense"
TRAINED_QUANTISATION = "16-bit weights"
TRAINED_ADAPTER = "no adapter"
# Features of the model alone, as ModelArch names them.
MODEL_FEATURES = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")
# A training range may have passed through float32, whose rounding must not push a trained model out of it.
RANGE_TOLERANCE = 1e-6
# A device that has a tenth less memory than it should is a slice of it, or another one.
MEMORY_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """One input outside what the bundle was trained for: a range (low, high), or one value (trained_for)."""

    feature: str
    value: float | str
    low: float | None = None
    high: float | None = None
    trained_for: float | str | None = None


def out_of_range(
    state: Sequence[float], *, model: ModelArch, gpu: Gpu, engine_version: str, slo: Slo, manifest: Manifest
) -> Iterator[OutOfRange]:
    """What of a question lies outside of what the bundle was trained for. state: its 8 features."""
    for feature, value in zip(FEATURE_NAMES, state, strict=False):
        if (outside := _outside(feature, value, manifest)) is not None:
            yield outside
    yield from _unlike(model)
    if gpu.name != manifest.gpu:
        yield OutOfRange(feature="gpu", value=gpu.name, trained_for=manifest.gpu)
    elif abs(gpu.memory_gib - (trained := trained_memory_gib(manifest))) > MEMORY_TOLERANCE * trained:
        yield OutOfRange(feature="gpu_memory_gib", value=gpu.memory_gib, trained_for=trained)
    if engine_version != manifest.engine_version:
        yield OutOfRange(feature="engine_version", value=engine_version, trained_for=manifest.engine_version)
    # With expected numbers other limits can be judged; the ranking itself knows those of training only.
    if manifest.estimator is None:
        yield from _other_limits(slo, manifest)


def trained_memory_gib(manifest: Manifest) -> float:
    """Of the device that was learnt from."""
    return manifest.gpu_memory_gib or gpu_by_name(manifest.gpu).memory_gib


def configurations_not_learnt(
    exclusions: Sequence[Exclusion | None], kept: Candidate | None, manifest: Manifest
) -> Iterator[OutOfRange]:
    """Where a bundle learnt from some configurations only: that none of those can be chosen though another could, and
    that what is fixed is compared with (`kept`) is none of them."""
    if manifest.configurations is None:
        return
    learnt = ", ".join(manifest.configurations)
    able = [
        candidate.config_id
        for candidate, exclusion in zip(CANDIDATES, exclusions, strict=True)
        if exclusion is not None and exclusion.reason == "not_learnt"
    ]
    if able and None not in exclusions:
        yield OutOfRange(feature="configuration", value=able[0], trained_for=learnt)
    elif kept is not None and kept.config_id not in manifest.configurations:
        yield OutOfRange(feature="configuration", value=kept.config_id, trained_for=learnt)


def model_out_of_range(model: ModelArch, manifest: Manifest) -> Iterator[OutOfRange]:
    """What of a model alone lies outside of what the bundle was trained for."""
    for feature in MODEL_FEATURES:
        if (outside := _outside(feature, float(getattr(model, feature)), manifest)) is not None:
            yield outside
    yield from _unlike(model)


def _outside(feature: str, value: float, manifest: Manifest) -> OutOfRange | None:
    low, high = manifest.training_range[feature]
    slack = RANGE_TOLERANCE * max(abs(low), abs(high))
    if low - slack <= value <= high + slack:
        return None
    return OutOfRange(feature=feature, value=value, low=low, high=high)


def _unlike(model: ModelArch) -> Iterator[OutOfRange]:
    if model.kind != TRAINED_ARCHITECTURE:
        yield OutOfRange(feature="architecture", value=model.kind, trained_for=TRAINED_ARCHITECTURE)
    if model.quantisation is not None:
        yield OutOfRange(feature="quantisation", value=model.quantisation, trained_for=TRAINED_QUANTISATION)
    if model.adapter is not None:
        yield OutOfRange(feature="adapter", value=model.adapter, trained_for=TRAINED_ADAPTER)


def _other_limits(slo: Slo, manifest: Manifest) -> Iterator[OutOfRange]:
    if slo == manifest.slo:
        return
    for name, value in asdict(slo).items():
        trained_for = getattr(manifest.slo, name)
        if value != trained_for:
            yield OutOfRange(feature=f"slo.{name}", value=value, trained_for=trained_for)
