"""The scenarios that a bundle carries so that an answer can show those most like a question.

service.domain.neighbours reads the file: gzip of one JSON object with schema_version, the names of the 8 features, and
rows of {features, config_id, best, engine_default}; the numbers are medians over the draws, null where none was seen.
"""

import gzip
import json
from typing import Any

import numpy as np

from offline.robust.lists import DEFAULT_ROW, Outcomes, configurations
from offline.robust.network import FitSettings, utilities_of
from offline.robust.panel import Panel
from offline.robust.rule import LOW_UTILISATION_GAIN
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES
from service.domain.preference import prefer

NEIGHBOURS_SCHEMA_VERSION = 1
MOST_ROWS = 400


def neighbours_bytes(panel: Panel, settings: FitSettings) -> bytes:
    """The first MOST_ROWS scenarios of a set; equal sets, equal bytes.

    The best is that of most utility; of equals, and for 0.45 of the memory, what an answer would prefer.
    """
    utility = utilities_of(panel.judged, settings).mean(axis=1)[:, :DEFAULT_ROW].astype(np.float32)
    rows: list[dict[str, Any]] = []
    for row in range(min(len(panel), MOST_ROWS)):
        index = prefer(
            utility[row],
            panel.scenarios.starts[row, :DEFAULT_ROW].tolist(),
            near_tie=0.0,
            low_utilisation_gain=LOW_UTILISATION_GAIN,
            shared_gpu=False,
            engine_default=panel.scenarios.engine_default,
        )[0]
        rows.append(
            {
                "features": [float(value) for value in panel.scenarios.state[row]],
                "config_id": configurations(panel.scenarios.gpu)[index].config_id,
                "best": _numbers(panel.judged, row, index),
                "engine_default": _numbers(panel.judged, row, DEFAULT_ROW),
            }
        )
    content = {
        "schema_version": NEIGHBOURS_SCHEMA_VERSION,
        "features": FEATURE_NAMES[:NUM_STATE_FEATURES],
        "rows": rows,
    }
    return gzip.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode(), mtime=0)


def _numbers(outcomes: Outcomes, row: int, index: int) -> list[float | None]:
    found: list[float | None] = [_rounded(float(np.median(outcomes.throughput_tps[row, :, index])))]
    for values in (outcomes.ttft_p95_ms[row, :, index], outcomes.tpot_p95_ms[row, :, index]):
        seen = values[np.isfinite(values)]
        found.append(_rounded(float(np.median(seen))) if len(seen) else None)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
