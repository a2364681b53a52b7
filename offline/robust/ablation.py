"""Choices that dev decides, one row each: loss, temperature, utility, sampling, number of lists, transforms, row 16."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.metrics import percentile
from offline.robust import choices as choose
from offline.robust.lists import DEFAULT_ROW, Lists, read_lists
from offline.robust.measures import TAIL_SHARE, Picked, per_scenario, pick
from offline.robust.models import NOMINAL_SET, TRAIN_SETS, fit_lists, read_train
from offline.robust.network import FitSettings
from offline.robust.panel import Panel
from offline.robust.targets import utilities

EPOCHS = 10
# Every second list: an order of the variants needs less than the ranker itself.
LISTS_EVERY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A row of the ablation: what differs, and on which lists it trains."""

    name: str
    settings: FitSettings
    lists: Lists


def variants(folder: Path) -> Iterator[Variant]:
    """Every row; the first is what the others differ from in one respect."""
    base = FitSettings(loss="squared", epochs=EPOCHS)
    train = read_train(folder)
    train = train[np.arange(0, len(train), LISTS_EVERY)]
    for name, settings in (
        ("squared error on centred utility", base),
        ("ListNet, temperature 0.1", replace(base, loss="listnet", temperature=0.1)),
        ("ListNet, temperature 0.3", replace(base, loss="listnet", temperature=0.3)),
        ("expected utility of a soft choice, temperature 0.1", replace(base, loss="soft", temperature=0.1)),
        ("the same, TTFT at its limit costs 0.05", replace(base, loss="soft", latency=0.05)),
        ("the same, TTFT at its limit costs 0.1", replace(base, loss="soft", latency=0.1)),
        ("the same, TTFT at its limit costs 0.2", replace(base, loss="soft", latency=0.2)),
        ("without the engine's default as a row", replace(base, sixteenth=False)),
        ("features as they are", replace(base, transform="none")),
        ("logarithms, prefix ratio as it is", replace(base, transform="log")),
        ("a violation costs 0.5", replace(base, violation=0.5)),
        ("a violation costs 2", replace(base, violation=2.0)),
    ):
        yield Variant(name=name, settings=settings, lists=train)
    base_only = read_lists(folder / f"{TRAIN_SETS[0]}.parquet")
    base_only = base_only[np.arange(0, len(base_only), len(base_only) / len(train)).astype(np.int64)]
    nominal = read_lists(folder / f"{NOMINAL_SET}.parquet")
    few = train[np.arange(0, len(train), 5)]
    more = replace(base, epochs=3 * EPOCHS)
    yield Variant(name="base lists alone, none from where the choice matters", settings=base, lists=base_only)
    yield Variant(name=f"{len(few):,} lists, three times the epochs", settings=more, lists=few)
    yield Variant(name=f"{len(nominal):,} nominal lists, three times the epochs", settings=more, lists=nominal)


def dev_row(panel: Panel, variant: Variant, *, margin: float = 0.0) -> dict[str, Any]:
    """What a variant reaches on dev: mean utility of its choices, and differences from the engine's default."""
    network = fit_lists(variant.lists, variant.settings)
    scores = network.score(panel.scenarios.features())
    if variant.settings.sixteenth:
        chosen = choose.with_abstention(panel.scenarios, scores, margin=margin)
    else:
        chosen = choose.highest_candidate(panel.scenarios, scores)
    return {
        "variant": variant.name,
        "lists": len(variant.lists),
        "settings": asdict(variant.settings),
        **judged(panel, chosen),
    }


def _tail(picked: Picked) -> float:
    """95th percentile of p95 TTFT over the draws that some configuration serves."""
    return float(percentile(picked.ttft_p95_ms[picked.servable], TAIL_SHARE))


def judged(panel: Panel, chosen: choose.Choices) -> dict[str, float]:
    """Mean utility (a violation costs 1 in it, whatever a variant trained on) and differences from the default."""
    utility = utilities(panel.judged, violation=1.0)
    rows = np.arange(len(panel))
    ours, base = pick(panel, chosen), pick(panel, choose.engine_default(panel.scenarios))
    mine, theirs = per_scenario(ours), per_scenario(base)
    return {
        "utility": float(utility[rows, :, chosen].mean()),
        "violations_vs_default": float((mine["slo_violation_rate"] - theirs["slo_violation_rate"]).mean()),
        "goodput_vs_default_tps": float((mine["goodput_tps"] - theirs["goodput_tps"]).mean()),
        "ttft_tail_vs_default": _tail(ours) / _tail(base),
        "unsafe_rate": float((base.met & ~ours.met).mean()),
        "coverage": float((chosen != DEFAULT_ROW).mean()),
    }
