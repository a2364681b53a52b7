"""Stage 4: the ranker as a bundle that the service can verify: model.onnx, evaluation.json and the manifest.

The manifest is written last and names every other file's sha256, so a bundle that was interrupted does not verify.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.artefacts import canonical_json, read_json, sha256_file, write_atomically
from offline.dataset import Development
from offline.onnx_graph import build_graph, check_parity, run_graph
from offline.ranker import Ranker
from service.domain.candidate import candidates_fingerprint
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, feature_schema_hash
from service.domain.manifest import MANIFEST_FILE, MODEL_FILE, RANKER_PARAMETERS, Manifest
from service.domain.slo import REFERENCE_SLO

EVALUATION_FILE = "evaluation.json"
CARD_FILE = "MODEL_CARD.md"
PLOT_SUFFIX = ".png"
_EXPORT_AGAIN = "run `python -m offline export` again"


def export_bundle(
    folder: Path, *, ranker: Ranker, data: Development, evaluation: dict[str, Any], training: dict[str, Any]
) -> tuple[Manifest, float]:
    """Writes the bundle and returns its manifest and the parity with torch over every row that is not retired.

    A card and plots of an earlier bundle are removed: they describe other weights.
    """
    content = build_graph(ranker)
    features = np.concatenate(
        [data.train.questions.features, data.dev.questions.features, data.test_questions.features]
    )
    worst = check_parity(ranker.score(features), run_graph(content, features))
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (folder / CARD_FILE, *sorted(folder.glob(f"*{PLOT_SUFFIX}"))):
        stale.unlink(missing_ok=True)
    write_atomically(folder / MODEL_FILE, content)
    write_atomically(folder / EVALUATION_FILE, canonical_json(evaluation))
    manifest = _manifest(folder, data=data, ranker=ranker, training=training)
    return seal(folder, manifest), worst


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Writes the manifest with the sha256 of every other file that now lies in the bundle."""
    sealed = replace(manifest, files=_digests(folder))
    # Not canonical_json: the order of training_range is the order of the features, and the manifest insists on it.
    content = json.dumps(sealed.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST_FILE, content.encode())
    return sealed


def read_bundle(folder: Path) -> Manifest:
    """The manifest of a bundle whose files are the ones it names; ArtefactError with both digests otherwise."""
    manifest = Manifest.from_json(read_json(folder / MANIFEST_FILE, remedy=_EXPORT_AGAIN))
    for name, digest in manifest.files.items():
        found = sha256_file(folder / name)
        if found != digest:
            raise ArtefactError(f"{folder / name} has sha256 {found}, the manifest says {digest}; {_EXPORT_AGAIN}")
    return manifest


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: sha256_file(path) for path in files if path.name != MANIFEST_FILE}


def _manifest(folder: Path, *, data: Development, ranker: Ranker, training: dict[str, Any]) -> Manifest:
    sources = data.sources
    state = data.train.questions.features[:, 0, :NUM_STATE_FEATURES].astype(np.float64)
    return Manifest(
        name=folder.name,
        # Named by its content: equal weights under another version could not be told from other weights.
        version=f"{sources.provenance.evidence}-{ranker.weights_sha256()[:12]}",
        files=_digests(folder),
        feature_schema=feature_schema_hash(),
        candidates_fingerprint=candidates_fingerprint(),
        parameters=RANKER_PARAMETERS,
        training_range={
            name: (float(column.min()), float(column.max()))
            for name, column in zip(FEATURE_NAMES[:NUM_STATE_FEATURES], state.T, strict=True)
        },
        evidence=sources.provenance.evidence,
        gpu=sources.provenance.gpu,
        engine_version=sources.provenance.engine_version,
        slo=REFERENCE_SLO,
        cells_sha256=sources.cells_sha256["reference"],
        plan_sha256=sources.plan_sha256["reference"],
        training=training,
    )
