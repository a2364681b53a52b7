"""What a bundle was trained for, and what of a question lies outside of it: nothing is learnt about that."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from service.domain.features import FEATURE_NAMES
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.manifest import Manifest
from service.domain.scenario import ModelArch
from service.domain.slo import Slo

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
    elif _is_another_size(gpu, trained := gpu_by_name(manifest.gpu)):
        yield OutOfRange(feature="gpu_memory_gib", value=gpu.memory_gib, trained_for=trained.memory_gib)
    if engine_version != manifest.engine_version:
        yield OutOfRange(feature="engine_version", value=engine_version, trained_for=manifest.engine_version)
    # With expected numbers other limits can be judged; the ranking itself knows those of training only.
    if manifest.estimator is None:
        yield from _other_limits(slo, manifest)


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


def _is_another_size(gpu: Gpu, trained: Gpu) -> bool:
    return gpu is not trained and abs(gpu.memory_gib - trained.memory_gib) > MEMORY_TOLERANCE * trained.memory_gib
