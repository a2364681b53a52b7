"""What is trained on the lists: the robust ranker, its rivals, and how they are kept between stages."""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from offline.artefacts import sha256_bytes, write_atomically
from offline.robust.choices import best_on_average
from offline.robust.lists import DEFAULT_ROW, Lists, concatenated, read_lists
from offline.robust.network import FitSettings, Network, Transform, fit, utilities_of
from offline.settings import TreeSettings
from offline.trees import TreePair, fit_trees
from service.domain.errors import ArtefactError

TRAIN_SETS = ("train-base", "train-focus")
NOMINAL_SET = "train-nominal"
ROBUST, NOMINAL, LARGE = "MLP-robust", "MLP-nominal", "MLP-large"
# The pair of H5: without prefix ratios above 0.7, and as many lists with them.
SEEN, UNSEEN = "prefix-seen", "prefix-unseen"
LARGE_HIDDEN = (512, 256)
# The trees see every fourth list: their quality no longer grows with more, their training time does.
TREE_LISTS_EVERY = 4
HIGHEST_SEEN = 0.7
SPLIT_SEED = 5

Progress = Callable[[str, int], Iterable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Everything that answers a scenario after training. single_best: a candidate's index."""

    networks: dict[str, Network]
    trees: TreePair
    single_best: int

    def sha256(self) -> dict[str, str]:
        """By policy: what was evaluated."""
        return {
            **{name: network_sha256(network) for name, network in self.networks.items()},
            "LightGBM": self.trees.sha256(),
        }


def read_train(folder: Path) -> Lists:
    """All training lists."""
    return concatenated([read_lists(folder / f"{name}.parquet") for name in TRAIN_SETS])


def fit_lists(lists: Lists, settings: FitSettings, *, progress: Iterable[int] | None = None) -> Network:
    """A network on lists; those in which nothing meets the SLO are left out, for they order nothing."""
    kept = lists[lists.outcomes.met.any(axis=1)]
    targets = utilities_of(kept.outcomes, settings)
    features = kept.features()
    if not settings.sixteenth:
        features, targets = features[:, :DEFAULT_ROW], targets[:, :DEFAULT_ROW]
    return fit(features, targets, settings, progress=progress)


def split_by_prefix(train: Lists, *, seed: int) -> dict[str, Lists]:
    """Two training sets of equal size: lists up to HIGHEST_SEEN alone, and as many drawn from all."""
    low = np.flatnonzero(train.columns["shared_prefix_ratio"] <= HIGHEST_SEEN)
    every = np.sort(np.random.default_rng(seed).permutation(len(train))[: len(low)])
    return {UNSEEN: train[low], SEEN: train[every]}


def large_settings(settings: FitSettings) -> FitSettings:
    """The upper reference: fifteen times the parameters, fewer epochs, and the CPU's own kernels."""
    return replace(settings, hidden=LARGE_HIDDEN, epochs=8, learning_rate=1.5e-3, pinned=False)


def train_large(folder: Path, settings: FitSettings, *, progress: Progress) -> Network:
    """The much larger network. In a process that has not pinned its arithmetic: it would take half an hour there."""
    one = large_settings(settings)
    return fit_lists(read_train(folder), one, progress=progress(LARGE, one.epochs))


def train_models(folder: Path, settings: FitSettings, *, progress: Progress) -> Models:
    """Trains everything that is compared but the much larger network. Equal lists and settings, equal models."""
    train, nominal = read_train(folder), read_lists(folder / f"{NOMINAL_SET}.parquet")
    jobs = {
        ROBUST: (train, settings),
        NOMINAL: (nominal, settings),
    }
    for name, lists in split_by_prefix(train, seed=SPLIT_SEED).items():
        jobs[name] = (lists, replace(settings, epochs=max(settings.epochs // 3, 1)))
    networks = {name: fit_lists(lists, one, progress=progress(name, one.epochs)) for name, (lists, one) in jobs.items()}
    part = train[np.arange(0, len(train), TREE_LISTS_EVERY)]
    trees = fit_trees(
        part.features()[:, :DEFAULT_ROW],
        throughput_tps=part.outcomes.throughput_tps[:, :DEFAULT_ROW],
        slo_met=part.outcomes.met[:, :DEFAULT_ROW],
        settings=TreeSettings(),
    )
    return Models(
        networks=networks,
        trees=trees,
        single_best=best_on_average(train, settings),
    )


def network_bytes(network: Network) -> bytes:
    """A NumPy archive."""
    arrays: dict[str, NDArray[Any]] = {
        "linear": network.transform.linear,
        "logged": network.transform.logged,
        "mean": network.mean,
        "std": network.std,
    }
    for number, (weight, bias) in enumerate(network.layers, start=1):
        arrays |= {f"weight_{number}": weight, f"bias_{number}": bias}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def network_from_bytes(content: bytes) -> Network:
    """Inverse of network_bytes; ArtefactError if it is no such archive."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            count = sum(name.startswith("weight_") for name in arrays.files)
            return Network(
                transform=Transform(linear=arrays["linear"], logged=arrays["logged"]),
                mean=arrays["mean"],
                std=arrays["std"],
                layers=tuple((arrays[f"weight_{n}"], arrays[f"bias_{n}"]) for n in range(1, count + 1)),
            )
    except (ValueError, KeyError, OSError) as error:
        raise ArtefactError(f"not a network ({error}); run `python -m offline.robust train` again") from error


def network_sha256(network: Network) -> str:
    """Digest of transform, normalisation and weights."""
    arrays = [network.transform.linear, network.transform.logged, network.mean, network.std]
    arrays += [array for pair in network.layers for array in pair]
    return sha256_bytes(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def save_models(models: Models, folder: Path) -> None:
    """One file a model."""
    for name, network in models.networks.items():
        write_atomically(folder / f"{name}.npz", network_bytes(network))
    write_atomically(folder / "classifier.txt", models.trees.classifier.model_to_string().encode())
    write_atomically(folder / "regressor.txt", models.trees.regressor.model_to_string().encode())
    write_atomically(folder / "single-best.txt", f"{models.single_best}\n".encode())


def load_models(folder: Path) -> Models:
    """Inverse of save_models; ArtefactError if one is missing."""
    try:
        return Models(
            networks={
                name: network_from_bytes((folder / f"{name}.npz").read_bytes())
                for name in (ROBUST, NOMINAL, LARGE, SEEN, UNSEEN)
            },
            trees=TreePair(
                classifier=lgb.Booster(model_str=(folder / "classifier.txt").read_text()),
                regressor=lgb.Booster(model_str=(folder / "regressor.txt").read_text()),
                threshold=TreeSettings().threshold,
            ),
            single_best=int((folder / "single-best.txt").read_text()),
        )
    except OSError as error:
        raise ArtefactError(f"{folder}: {error.strerror}; run `python -m offline.robust train` first") from error
