"""The network learns an order, stays within its parameters, and its graph computes what it computes."""

from pathlib import Path

import numpy as np

from offline.onnx_graph import count_parameters, run_graph
from offline.robust import choices as choose
from offline.robust.export import build_graph
from offline.robust.lists import read_lists
from offline.robust.models import fit_lists, network_bytes, network_from_bytes, network_sha256
from offline.robust.network import FitSettings, Transform
from tests.offline.robust.made_lists import write

# On a few equal lists a soft choice settles on the most frequent winner; squared error does not.
QUICK = FitSettings(loss="squared", epochs=20, batch_lists=32)


def test_it_learns_which_configuration_wins_and_has_the_parameters_of_the_contract(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "made.parquet", rows=400, draws=1))
    network = fit_lists(lists, QUICK)
    assert network.parameters == 9985
    chosen = choose.with_abstention(lists, network.score(lists.features()), margin=0.0)
    wanted = np.where(lists.columns["concurrency"] <= 64, 2, 10)
    assert (chosen == wanted).mean() > 0.95


def test_equal_lists_and_settings_give_equal_weights_and_files_keep_them(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "made.parquet", rows=40, draws=1))
    settings = FitSettings(epochs=2)
    first, second = fit_lists(lists, settings), fit_lists(lists, settings)
    assert network_sha256(first) == network_sha256(second)
    assert network_sha256(network_from_bytes(network_bytes(first))) == network_sha256(first)


def test_the_graph_computes_what_the_network_computes_with_9985_learnt_numbers(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "made.parquet", rows=60, draws=1))
    network = fit_lists(lists, FitSettings(epochs=3))
    content = build_graph(network)
    assert count_parameters(content) == 9985
    features = lists.features()
    np.testing.assert_allclose(run_graph(content, features), network.score(features), rtol=1e-4, atol=1e-4)
    # The service probes a graph with zeros before it serves it.
    assert np.isfinite(run_graph(content, np.zeros((1, 16, 12), dtype=np.float32))).all()


def test_transforms_keep_columns_or_take_their_logarithm() -> None:
    features = np.ones((1, 12), dtype=np.float32)
    features[0, 6] = 0.5  # the prefix ratio
    as_they_are = Transform.named("none").apply(features)
    assert (as_they_are == features).all()
    logged = Transform.named("log and prefix").apply(features)
    assert logged[0, 4] == np.float32(np.log(2.0))
    assert logged[0, 6] == np.log(np.float32(1 - 0.99 * 0.5))
    assert logged[0, 7:].tolist() == features[0, 7:].tolist()
