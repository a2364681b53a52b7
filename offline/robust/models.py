"""What is trained on the lists: ranker and estimator of each variant, its rivals, and how they are kept."""

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from offline.artefacts import sha256_bytes, write_atomically
from offline.robust.choices import best_on_average
from offline.robust.estimator import EstimatorNetwork, EstimatorSettings, fit_estimator
from offline.robust.lists import DEFAULT_ROW, Lists, concatenated, read_lists
from offline.robust.network import FitSettings, Layers, Network, Transform, fit, utilities_of
from offline.robust.split import trained
from offline.robust.variants import Variant
from offline.settings import TreeSettings
from offline.trees import TreePair, fit_trees
from service.domain.errors import ArtefactError

# The trees see every fourth list: their quality no longer grows with more, their training time does.
TREE_LISTS_EVERY = 4
# Going on from other weights takes fewer and smaller steps.
FURTHER = {"epochs": 8, "learning_rate": 1e-3}

Progress = Callable[[str, int], Iterable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two networks of a variant; the estimator is calibrated or, right after training, not yet."""

    ranker: Network
    estimator: EstimatorNetwork

    def sha256(self) -> dict[str, str]:
        """Of both."""
        return {"ranker": sha256_bytes(network_bytes(self.ranker)), "estimator": estimator_sha256(self.estimator)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What the typical variant is compared with. single_best: a candidate's index."""

    trees: TreePair
    single_best: int


def read_sets(folder: Path, names: Iterable[str]) -> Lists:
    """All lists of some sets."""
    return concatenated([read_lists(folder / f"{name}.parquet") for name in names])


def fit_lists(
    lists: Lists, settings: FitSettings, *, start: Network | None = None, progress: Iterable[int] | None = None
) -> Network:
    """A network on lists; those in which nothing meets the SLO are left out, for they order nothing."""
    kept = lists[lists.outcomes.met.any(axis=1)]
    return fit(kept.features(), utilities_of(kept.outcomes, settings), settings, start=start, progress=progress)


def fit_pair(
    folder: Path,
    variant: Variant,
    *,
    ranking: FitSettings,
    estimating: EstimatorSettings,
    start: Pair | None,
    progress: Progress,
) -> Pair:
    """Trains a variant's networks on its lists outside the calibration split. Equal lists and settings, equal pair."""
    lists = read_sets(folder, variant.train)
    lists = lists[trained(lists)]
    if start is not None:
        ranking, estimating = replace(ranking, **FURTHER), replace(estimating, **FURTHER)  # type: ignore[arg-type]
    return Pair(
        ranker=fit_lists(
            lists,
            ranking,
            start=None if start is None else start.ranker,
            progress=progress(f"{variant.name}: ranker", ranking.epochs),
        ),
        estimator=fit_estimator(
            lists,
            estimating,
            start=None if start is None else start.estimator,
            progress=lambda member: progress(f"{variant.name}: estimator, {member}", estimating.epochs),
        ),
    )


def fit_rivals(folder: Path, variant: Variant, settings: FitSettings) -> Rivals:
    """On the same lists."""
    lists = read_sets(folder, variant.train)
    lists = lists[trained(lists)]
    part = lists[np.arange(0, len(lists), TREE_LISTS_EVERY)]
    trees = fit_trees(
        part.features()[:, :DEFAULT_ROW],
        throughput_tps=part.outcomes.throughput_tps[:, :DEFAULT_ROW],
        slo_met=part.outcomes.met[:, :DEFAULT_ROW],
        settings=TreeSettings(),
    )
    return Rivals(trees=trees, single_best=best_on_average(lists, settings))


def network_bytes(network: Network) -> bytes:
    """A NumPy archive."""
    return _archive({**_head(network), **_numbered(network.layers)})


def network_from_bytes(content: bytes) -> Network:
    """Inverse of network_bytes; ArtefactError if it is no such archive."""
    arrays = _arrays(content)
    return Network(**_head_of(arrays), layers=_layers(arrays))


def estimator_bytes(network: EstimatorNetwork) -> bytes:
    """A NumPy archive."""
    arrays = _head(network)
    for number, layers in enumerate(network.members):
        arrays |= _numbered(layers, prefix=f"member_{number}_")
    constants = ("centre", "scale", "offset", "slope", "shift")
    return _archive({**arrays, **{name: getattr(network, name) for name in constants}})


def estimator_from_bytes(content: bytes) -> EstimatorNetwork:
    """Inverse of estimator_bytes; ArtefactError if it is no such archive."""
    arrays = _arrays(content)
    count = sum(name.endswith("_weight_1") for name in arrays)
    constants: dict[str, Any] = {name: _named(arrays, name) for name in ("centre", "scale", "offset", "slope", "shift")}
    return EstimatorNetwork(
        **_head_of(arrays),
        **constants,
        members=tuple(_layers(arrays, prefix=f"member_{number}_") for number in range(count)),
    )


def estimator_sha256(network: EstimatorNetwork) -> str:
    """Digest of everything in it."""
    return sha256_bytes(estimator_bytes(network))


def network_sha256(network: Network) -> str:
    """Digest of transform, normalisation and weights."""
    arrays = [network.transform.linear, network.transform.logged, network.mean, network.std]
    arrays += [array for pair in network.layers for array in pair]
    return sha256_bytes(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def _archive(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _arrays(content: bytes) -> dict[str, NDArray[Any]]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, OSError) as error:
        raise ArtefactError(f"not a network ({error}); run `python -m offline.robust train` again") from error


def _head(network: Network | EstimatorNetwork) -> dict[str, NDArray[Any]]:
    return {
        "linear": network.transform.linear,
        "logged": network.transform.logged,
        "mean": network.mean,
        "std": network.std,
    }


def _head_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    transform = Transform(linear=_named(arrays, "linear"), logged=_named(arrays, "logged"))
    return {"transform": transform, "mean": _named(arrays, "mean"), "std": _named(arrays, "std")}


def _numbered(layers: Layers, *, prefix: str = "") -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(layers, start=1):
        arrays |= {f"{prefix}weight_{number}": weight, f"{prefix}bias_{number}": bias}
    return arrays


def _layers(arrays: Mapping[str, NDArray[Any]], *, prefix: str = "") -> Layers:
    count = sum(name.startswith(f"{prefix}weight_") for name in arrays)
    return tuple(
        (_named(arrays, f"{prefix}weight_{n}"), _named(arrays, f"{prefix}bias_{n}")) for n in range(1, count + 1)
    )


def _named(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise ArtefactError(f"not a network ({name} is missing); run `python -m offline.robust train` again")
    return arrays[name]


def save_pair(pair: Pair, folder: Path) -> None:
    """Two files."""
    write_atomically(folder / "ranker.npz", network_bytes(pair.ranker))
    write_atomically(folder / "estimator.npz", estimator_bytes(pair.estimator))


def load_pair(folder: Path) -> Pair:
    """Inverse of save_pair; ArtefactError if a file is missing."""
    try:
        return Pair(
            ranker=network_from_bytes((folder / "ranker.npz").read_bytes()),
            estimator=estimator_from_bytes((folder / "estimator.npz").read_bytes()),
        )
    except OSError as error:
        raise ArtefactError(f"{folder}: {error.strerror}; run `python -m offline.robust train` first") from error


def save_rivals(rivals: Rivals, folder: Path) -> None:
    """Three files."""
    write_atomically(folder / "classifier.txt", rivals.trees.classifier.model_to_string().encode())
    write_atomically(folder / "regressor.txt", rivals.trees.regressor.model_to_string().encode())
    write_atomically(folder / "single-best.txt", f"{rivals.single_best}\n".encode())


def load_rivals(folder: Path) -> Rivals:
    """Inverse of save_rivals; ArtefactError if a file is missing."""
    try:
        trees = TreePair(
            classifier=lgb.Booster(model_str=(folder / "classifier.txt").read_text()),
            regressor=lgb.Booster(model_str=(folder / "regressor.txt").read_text()),
            threshold=TreeSettings().threshold,
        )
        return Rivals(trees=trees, single_best=int((folder / "single-best.txt").read_text()))
    except OSError as error:
        raise ArtefactError(f"{folder}: {error.strerror}; run `python -m offline.robust train` first") from error
