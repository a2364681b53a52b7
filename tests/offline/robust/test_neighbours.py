"""What a bundle carries for explanations are medians over the draws of scenarios that were simulated."""

import gzip
import json
from pathlib import Path

import numpy as np

from offline.robust.lists import DEFAULT_ROW, configurations, read_lists
from offline.robust.neighbours import MOST_ROWS, neighbours_bytes
from offline.robust.network import FitSettings
from offline.robust.panel import panel_of
from tests.offline.robust.made_lists import write


def test_a_neighbour_has_its_features_its_best_candidate_and_medians_of_both(tmp_path: Path) -> None:
    panel = panel_of(read_lists(write(tmp_path / "made.parquet", rows=3, draws=3)), draws=3)
    panel.judged.ttft_p95_ms[0, :, DEFAULT_ROW] = 700.0, 900.0, np.inf
    panel.judged.tpot_p95_ms[1, :, DEFAULT_ROW] = np.nan
    content = json.loads(gzip.decompress(neighbours_bytes(panel, FitSettings())))
    assert content["schema_version"] == 1
    assert content["features"][:2] == ["weight_gb", "num_layers"]
    first, second, _ = content["rows"]
    winner = 2 if 2 ** first["features"][7] <= 64 else 10
    assert first["config_id"] == configurations()[winner].config_id
    # The winner has twice everyone's 100 tokens per second; of the default's draws one completed nothing.
    assert first["best"] == [200.0, 500.0, 20.0]
    assert first["engine_default"] == [100.0, 800.0, 80.0]
    assert second["engine_default"][2] is None


def test_a_bundle_carries_no_more_than_it_needs(tmp_path: Path) -> None:
    panel = panel_of(read_lists(write(tmp_path / "made.parquet", rows=MOST_ROWS + 20, draws=1)), draws=1)
    assert len(json.loads(gzip.decompress(neighbours_bytes(panel, FitSettings())))["rows"]) == MOST_ROWS
