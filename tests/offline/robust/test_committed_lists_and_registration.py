"""The committed lists, registration, openings and bundles belong together, and the lists are enough to learn from."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from offline.export import read_bundle
from offline.robust import choices as choose
from offline.robust.__main__ import REGISTRATION
from offline.robust.lists import read_lists, rows_sha256
from offline.robust.measures import judged
from offline.robust.models import fit_lists, read_sets
from offline.robust.network import FitSettings
from offline.robust.opening import scenarios_path
from offline.robust.panel import panel_of
from offline.robust.protocol import TEST_SETS, goal_definitions, protocol
from offline.robust.register import analysis_sha256, read_openings, registered, registered_sets
from offline.robust.split import trained
from offline.robust.variants import VARIANTS, Variant
from service.domain.manifest import ESTIMATOR_FILE, NEIGHBOURS_FILE

ROOT = Path(__file__).parents[3]
LISTS = ROOT / "bench_runner" / "list_samples"
BUNDLES = ROOT / "service" / "bundles"
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_code_the_lists_and_the_goals_are_those_that_were_registered() -> None:
    # Fails after any change that could change a figure: such a change needs a registration of its own.
    content = registered(REGISTRATION).content
    assert content["analysis_sha256"] == analysis_sha256(ROOT)
    assert content["gates"] == goal_definitions()
    assert content["settings"]["protocol"] == protocol()
    assert {path.stem for path in LISTS.glob("*.parquet")} == set(content["cells_sha256"])
    for name, digest in content["cells_sha256"].items():
        assert rows_sha256(read_lists(LISTS / f"{name}.parquet")) == digest, name


@EVERY_VARIANT
def test_a_bundle_shows_the_opened_figures(variant: Variant) -> None:
    own = [name for name, of in TEST_SETS.items() if of == variant.name]
    records = read_openings(registered(REGISTRATION), own)
    evaluation = json.loads((BUNDLES / variant.bundle / "evaluation.json").read_text())
    assert evaluation["opened"] == {name: record["lists_sha256"] for name, record in records.items()}
    assert evaluation["not_opened"] == [name for name in own if name not in records]
    for record in records.values():
        for name, table in record["tables"].items():
            assert evaluation["test_sets"][name] == table


def test_the_outcome_of_every_scenario_is_kept_beside_each_opening() -> None:
    for name, record in read_openings(registered(REGISTRATION), TEST_SETS).items():
        if name.endswith("-oracle"):
            continue
        content = scenarios_path(REGISTRATION, name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record["tables"][name]["scenarios_sha256"]
        columns = json.loads(gzip.decompress(content))
        beyond = record["tables"].get(f"{name}-beyond", {"n": 0})["n"]
        assert len(columns["chosen"]) == record["tables"][name]["n"] + beyond


@EVERY_VARIANT
def test_what_is_shipped_is_what_was_registered(variant: Variant) -> None:
    fixed = registered(REGISTRATION).content["settings"]["variants"][variant.name]
    manifest = read_bundle(BUNDLES / variant.bundle)
    assert manifest.training["models"] == fixed["models"]
    assert manifest.abstention is not None
    shipped = {name: getattr(manifest.abstention, name) for name in fixed["rule"]}
    assert shipped == fixed["rule"]
    assert set(manifest.training["lists_sha256"]) == {*variant.train, variant.dev}
    assert manifest.training_range == {name: tuple(ends) for name, ends in fixed["support"].items()}
    assert manifest.confidence == variant.confidence
    assert {ESTIMATOR_FILE, NEIGHBOURS_FILE} <= set(manifest.files)
    assert len((BUNDLES / variant.bundle / NEIGHBOURS_FILE).read_bytes()) <= 100_000


def test_the_committed_lists_are_those_of_the_variants_and_fit_into_30_mb() -> None:
    files = list(LISTS.glob("*.parquet"))
    assert {path.stem for path in files} == set(registered_sets())
    assert sum(path.stat().st_size for path in files) <= 30_000_000


def test_the_committed_lists_are_enough() -> None:
    whole = {name: read_sets(LISTS, one.train) for name, one in VARIANTS.items()}
    assert {name: len(lists) for name, lists in whole.items()} == {
        "typical": 150_000,
        "exact": 20_000,
        "rough": 30_000,
        "h200": 21_000,
        "h100": 21_000,
    }
    # Of the other GPUs at least 5,000 scenarios each are trained on; further sets number theirs from 0 on again.
    for name in ("h200", "h100"):
        first = read_lists(LISTS / f"{VARIANTS[name].train[0]}.parquet")
        assert len(np.unique(first.scenario[trained(first)])) >= 5_000


def test_a_fortieth_of_the_lists_teaches_more_than_the_engines_default_knows() -> None:
    train = read_sets(LISTS, VARIANTS["typical"].train)
    network = fit_lists(train[np.arange(0, len(train), 40)], FitSettings(loss="squared", epochs=8, batch_lists=64))
    dev = panel_of(read_lists(LISTS / "dev.parquet"), draws=8)
    found = judged(dev, choose.with_abstention(dev.scenarios, network.score(dev.scenarios.features()), margin=0.0))
    default = judged(dev, choose.engine_default(dev.scenarios))
    # The whole of them brings eight points; no claim rests on this, only that nothing is broken.
    assert found["violations_vs_default"] < -0.03
    assert found["utility"] > default["utility"] + 0.05
