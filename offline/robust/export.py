"""A variant as a bundle: ranker and estimator as ONNX graphs, evaluation, explanation's files and the manifest."""

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from offline.artefacts import canonical_json, write_atomically
from offline.export import CARD_FILE, EVALUATION_FILE, PLOT_SUFFIX, seal
from offline.onnx_graph import build_graph as ranker_graph
from offline.onnx_graph import check_parity, run_graph
from offline.ranker import Ranker
from offline.robust.calibration import Calibrated
from offline.robust.estimator import LEVELS
from offline.robust.estimator_graph import build_estimator_graph, check_estimator_parity, transform_nodes
from offline.robust.forecast import RATIOS
from offline.robust.models import network_sha256
from offline.robust.neighbours import neighbours_bytes
from offline.robust.network import FitSettings, Network
from offline.robust.panel import Panel
from offline.robust.variants import Variant
from service.domain.candidate import candidates_fingerprint
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, feature_schema_hash
from service.domain.gpu import ENGINE_VERSION
from service.domain.manifest import (
    CHANCES,
    ERROR_BANDS_FILE,
    ESTIMATOR_FILE,
    MODEL_FILE,
    NEIGHBOURS_FILE,
    QUANTITIES,
    RANKER_PARAMETERS,
    Abstention,
    Estimator,
    Manifest,
)
from service.domain.slo import REFERENCE_SLO


def build_graph(network: Network) -> bytes:
    """linear · x + log(1 + logged · x) before the graph of offline.onnx_graph, which folds the normalisation.

    The transform's vectors are constants of nodes, not initialisers: they are not learnt and not parameters.
    """
    model = onnx.load_model_from_string(ranker_graph(_as_ranker(network)))
    ranked = list(model.graph.node)
    ranked[0].input[0] = "transformed"
    del model.graph.node[:]
    model.graph.node.extend([*transform_nodes(network.transform), *ranked])
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _as_ranker(network: Network) -> Ranker:
    """The layers behind the transform; ArtefactError if they are not those of the contract."""
    arrays: dict[str, NDArray[Any]] = {"mean": network.mean, "std": network.std}
    for number, (weight, bias) in enumerate(network.layers, start=1):
        arrays |= {f"weight_{number}": weight, f"bias_{number}": bias}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return Ranker.from_bytes(buffer.getvalue())


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a bundle comes from, for its manifest and its people. error_bands: a file to carry, if there is one."""

    evaluation: dict[str, Any]
    training: dict[str, Any]
    lists_sha256: str
    definition: str
    error_bands: Path | None


def export_bundle(
    folder: Path, variant: Variant, one: Calibrated, *, dev: Panel, settings: FitSettings, origin: Origin
) -> tuple[Manifest, dict[str, float]]:
    """Writes the bundle without its card; returns manifest and how far the graphs are from the networks on dev."""
    ranker, estimator = one.pair.ranker, one.pair.estimator
    features = dev.scenarios.features()
    contents = {MODEL_FILE: build_graph(ranker), ESTIMATOR_FILE: build_estimator_graph(estimator)}
    parity = {
        MODEL_FILE: check_parity(ranker.score(features), run_graph(contents[MODEL_FILE], features)),
        ESTIMATOR_FILE: check_estimator_parity(estimator, contents[ESTIMATOR_FILE], features),
    }
    contents[EVALUATION_FILE] = canonical_json(origin.evaluation)
    contents[NEIGHBOURS_FILE] = neighbours_bytes(dev, settings)
    if origin.error_bands is not None:
        contents[ERROR_BANDS_FILE] = origin.error_bands.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    # A card and plots of an earlier bundle describe other weights.
    for stale in (folder / CARD_FILE, *sorted(folder.glob(f"*{PLOT_SUFFIX}"))):
        stale.unlink(missing_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return seal(
        folder, manifest_of(folder.name, variant, one, gpu=dev.scenarios.gpu, settings=settings, origin=origin)
    ), parity


def manifest_of(
    name: str, variant: Variant, one: Calibrated, *, gpu: Any, settings: FitSettings, origin: Origin
) -> Manifest:
    """The manifest; the digests of its files are filled in when the folder is sealed."""
    quality = one.record
    calibration = {
        **{f"ece_{chance}": quality["reliability"][chance]["ece"] for chance in CHANCES},
        **{f"coverage_{q}": quality["forecast"][q]["coverage"] for q in (*QUANTITIES, *RATIOS)},
    }
    return Manifest(
        name=name,
        version=f"simulated-{network_sha256(one.pair.ranker)[:12]}",
        files={MODEL_FILE: "0" * 64, ESTIMATOR_FILE: "0" * 64},
        feature_schema=feature_schema_hash(),
        candidates_fingerprint=candidates_fingerprint(),
        parameters=RANKER_PARAMETERS,
        # In the order of the features, which a file of sorted keys does not keep.
        training_range={feature: one.support[feature] for feature in FEATURE_NAMES[:NUM_STATE_FEATURES]},
        evidence="simulated",
        gpu=gpu.name,
        engine_version=ENGINE_VERSION,
        slo=REFERENCE_SLO,
        cells_sha256=origin.lists_sha256,
        plan_sha256=origin.definition,
        training={**origin.training, "settings": asdict(settings)},
        abstention=Abstention(
            margin=one.rule.margin,
            threshold=one.rule.threshold,
            near_tie=one.rule.near_tie,
            low_utilisation_gain=one.rule.low_utilisation_gain,
            risk_price=one.rule.risk_price,
            fixed_price=one.rule.fixed_price,
        ),
        estimator=Estimator(
            file=ESTIMATOR_FILE, quantities=QUANTITIES, levels=LEVELS, chances=CHANCES, calibration=calibration
        ),
        confidence=variant.confidence,
        engine_default=gpu.engine_default,
        score_slope=one.slope,
    )
