"""The committed lists, registration, openings and bundle belong together, and the lists are enough to learn from."""

import json
from pathlib import Path

import numpy as np
import pytest

from offline.artefacts import sha256_file
from offline.export import read_bundle
from offline.robust import choices as choose
from offline.robust.ablation import judged
from offline.robust.card import render_card
from offline.robust.lists import read_lists
from offline.robust.models import fit_lists, read_train
from offline.robust.network import FitSettings
from offline.robust.panel import panel_of
from offline.robust.protocol import TEST_SETS, goal_definitions, protocol
from offline.robust.register import analysis_sha256, read_openings, registered

ROOT = Path(__file__).parents[3]
LISTS = ROOT / "bench_runner" / "list_samples"
NAME = "robust-1"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_code_the_lists_and_the_goals_are_those_that_were_registered() -> None:
    # Fails after any change that could change a figure: such a change needs a registration of its own.
    content = registered(NAME).content
    assert content["analysis_sha256"] == analysis_sha256(ROOT)
    assert content["gates"] == goal_definitions()
    assert content["settings"]["protocol"] == protocol()
    for name, digest in content["cells_sha256"].items():
        assert sha256_file(LISTS / f"{name}.parquet") == digest, name


def test_the_bundle_shows_the_opened_figures() -> None:
    records = read_openings(registered(NAME), TEST_SETS)
    bundle = ROOT / "service" / "bundles" / "dense-b200-robust"
    evaluation = json.loads((bundle / "evaluation.json").read_text())
    assert evaluation["opened"] == {name: record["lists_sha256"] for name, record in records.items()}
    for record in records.values():
        for name, table in record["tables"].items():
            assert evaluation["test_sets"][name] == table


def test_the_card_says_what_the_evaluation_says() -> None:
    bundle = ROOT / "service" / "bundles" / "dense-b200-robust"
    evaluation = json.loads((bundle / "evaluation.json").read_text())
    assert render_card(read_bundle(bundle), evaluation) == (bundle / "MODEL_CARD.md").read_text()


def test_the_shipped_ranker_is_the_registered_one() -> None:
    bundle = ROOT / "service" / "bundles" / "dense-b200-robust"
    models = registered(NAME).content["settings"]["models"]
    assert read_bundle(bundle).version == f"simulated-{models['MLP-robust'][:12]}"


def test_the_committed_lists_are_40000_and_fit_into_8_mb() -> None:
    files = list(LISTS.glob("*.parquet"))
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert len(read_train(LISTS)) >= 40_000


def test_a_twentieth_of_the_lists_teaches_more_than_the_engines_default_knows() -> None:
    train = read_train(LISTS)
    network = fit_lists(train[np.arange(0, len(train), 20)], FitSettings(loss="squared", epochs=8, batch_lists=64))
    dev = panel_of(read_lists(LISTS / "dev.parquet"), draws=8)
    found = judged(dev, choose.with_abstention(dev.scenarios, network.score(dev.scenarios.features()), margin=0.0))
    default = judged(dev, choose.engine_default(dev.scenarios))
    # The whole of them brings eight points; no claim rests on this, only that nothing is broken.
    assert found["violations_vs_default"] < -0.03
    assert found["utility"] > default["utility"] + 0.05
