"""The committed registration, opening, cells and bundle belong together."""

import json
from pathlib import Path

from offline.dataset import CellFiles, load_development
from offline.evaluate import present_state
from offline.registration import read_opening, read_registration, verify
from offline.settings import Settings

ROOT = Path(__file__).parents[2]
REGISTRATIONS = ROOT / "offline" / "registrations"
NAME = "reference-1"


def test_the_code_the_cells_and_the_settings_are_those_that_were_registered() -> None:
    # Fails after any change that could change a figure: such a change needs a registration of its own.
    registration = read_registration(REGISTRATIONS, NAME)
    assert registration is not None
    cells = ROOT / "bench_runner" / "cells"
    files = CellFiles(reference=cells / "reference.parquet", engine_default=cells / "engine_default.parquet")
    sources = load_development(files).sources
    verify(registration, present_state(sources, Settings(), selected_policy="MLP", root=ROOT))


def test_the_bundle_shows_the_opened_figures() -> None:
    registration = read_registration(REGISTRATIONS, NAME)
    assert registration is not None
    opening = read_opening(REGISTRATIONS, registration)
    bundle = ROOT / "service" / "bundles" / "qwen3-b200-reference"
    evaluation = json.loads((bundle / "evaluation.json").read_text())
    assert opening is not None
    assert evaluation["test_sets"]["T1"] == opening["test_set"]
    assert evaluation["registration"]["results_sha256"] == opening["results_sha256"]
