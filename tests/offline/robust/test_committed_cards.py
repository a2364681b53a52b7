"""The committed cards are those that `python -m offline card` writes from the committed evaluations and records."""

from pathlib import Path

import pytest
import yaml

from offline.robust.card import render_card
from offline.robust.pictures import draw_pictures
from offline.robust.protocol import ROBUST
from offline.robust.report import read_report
from offline.robust.variants import VARIANTS, Variant

ROOT = Path(__file__).parents[3]
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@EVERY_VARIANT
def test_a_card_is_made_of_its_bundles_evaluation_and_shows_pictures_that_are_there(variant: Variant) -> None:
    folder = ROOT / "service" / "bundles" / variant.bundle
    report = read_report(folder)
    # Names alone: another build of the font library may set a pixel otherwise.
    pictures = tuple(draw_pictures(report))
    assert render_card(report, pictures) == (folder / "MODEL_CARD.md").read_text()
    committed = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    assert set(committed) == set(pictures) == {name for name in report.manifest.files if name.endswith(".png")}
    assert len(committed) <= 8
    assert max(committed.values()) < 60_000


@EVERY_VARIANT
def test_a_hub_is_told_the_violation_rate_of_every_set_that_was_opened(variant: Variant) -> None:
    folder = ROOT / "service" / "bundles" / variant.bundle
    report = read_report(folder)
    (model,) = yaml.safe_load((folder / "MODEL_CARD.md").read_text().split("---\n")[1])["model-index"]
    found = {
        result["dataset"]["split"]: metric["value"]
        for result in model["results"]
        for metric in result["metrics"]
        if metric["name"] == f"SLO violation rate, {ROBUST} (simulated)"
    }
    tables = report.evaluation["test_sets"]
    assert found == {name: table["policies"][ROBUST]["slo_violation_rate"] for name, table in tables.items()}


@EVERY_VARIANT
def test_goals_that_are_missed_are_named_in_the_cards_first_sentence(variant: Variant) -> None:
    folder = ROOT / "service" / "bundles" / variant.bundle
    missed = [goal["name"] for goal in read_report(folder).evaluation["goals"] if not goal["met"]]
    first = (folder / "MODEL_CARD.md").read_text().split(f"\n# {variant.bundle}\n\n")[1].splitlines()[0]
    assert all(f"`{name}`" in first for name in missed)
    assert (" missed:** " in first) == bool(missed)
