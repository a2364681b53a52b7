"""H5: what it costs a ranker never to have seen a prefix ratio above 0.7, swept over ratios, all else equal."""

from typing import Any

import numpy as np

from offline.robust import choices as choose
from offline.robust.measures import Resampling, clusters_of, interval
from offline.robust.models import HIGHEST_SEEN, SEEN, UNSEEN, Models
from offline.robust.network import FitSettings, utilities_of
from offline.robust.panel import Panel

REPLICATES, BOOTSTRAP_SEED = 2000, 7


def evaluate_sweep(panel: Panel, models: Models, settings: FitSettings, *, margin: float) -> dict[str, Any]:
    """Mean utility of both rankers' choices by ratio, the loss with its interval, and the verdict.

    Confirmed: over all ratios above 0.7 together the interval of the loss lies above 0; rejected otherwise.
    """
    utility = utilities_of(panel.judged, settings)
    rows = np.arange(len(panel))
    features = panel.scenarios.features()
    reached = {}
    for name in (SEEN, UNSEEN):
        scores = models.networks[name].score(features)
        chosen = choose.with_abstention(panel.scenarios, scores, margin=margin)
        reached[name] = utility[rows, :, chosen].mean(axis=1)
    ratio = panel.scenarios.columns["shared_prefix_ratio"]
    parts = {f"{value:g}": ratio == value for value in np.unique(ratio)}
    parts["above 0.7"] = ratio > HIGHEST_SEEN
    table = []
    for name, inside in parts.items():
        difference = reached[SEEN][inside] - reached[UNSEEN][inside]
        resampling = Resampling.of(clusters_of(panel.scenarios[inside]), replicates=REPLICATES, seed=BOOTSTRAP_SEED)
        table.append(
            {
                "ratio": name,
                "seen": {"utility": float(reached[SEEN][inside].mean())},
                "unseen": {"utility": float(reached[UNSEEN][inside].mean())},
                "loss": {"delta": float(difference.mean()), "ci": interval(resampling.means(difference))},
            }
        )
    low = table[-1]["loss"]["ci"][0]  # type: ignore[index] # a dict of dicts
    return {
        "n": len(panel),
        "draws": panel.draws,
        "rows": table,
        "verdict": "confirmed" if low is not None and low > 0 else "rejected",
    }
