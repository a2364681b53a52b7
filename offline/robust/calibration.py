"""Calibrates a variant: the estimator on dev, the margin on dev, the rule on the calibration split."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from offline.artefacts import canonical_json, read_json, write_atomically
from offline.robust import choices as choose
from offline.robust.curves import reliabilities
from offline.robust.estimator import EstimatorNetwork, calibrated
from offline.robust.forecast import forecast_errors
from offline.robust.lists import DEFAULT_ROW, Floats, Lists, read_lists
from offline.robust.measures import judged
from offline.robust.models import Pair, read_sets
from offline.robust.network import FitSettings, utilities_of
from offline.robust.panel import panel_of
from offline.robust.rule import LOW_UTILISATION_GAIN, THRESHOLD, Question, Range, Rule, calibrate, choose_margin
from offline.robust.split import group_of
from offline.robust.variants import Variant
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES

CALIBRATION_FILE = "calibration.json"
_REMEDY = "run `python -m offline.robust calibrate`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a variant answers with. slope: utility per unit of score, on dev. record: everything that was looked at."""

    pair: Pair
    rule: Rule
    support: Range
    slope: float
    record: dict[str, Any]

    def question(self, lists: Lists) -> Question:
        """What its rule decides on."""
        return Question.of(lists, self.pair.ranker, self.pair.estimator, self.support)

    def fixed(self) -> dict[str, Any]:
        """What a registration fixes of it."""
        return {"models": self.pair.sha256(), "rule": asdict(self.rule), "support": _ranges(self.support)}

    def save(self, folder: Path) -> None:
        """Its rule; its networks lie in files of their own."""
        content = {
            "rule": asdict(self.rule),
            "support": _ranges(self.support),
            "slope": self.slope,
            "record": self.record,
        }
        write_atomically(folder / CALIBRATION_FILE, canonical_json(content))

    @classmethod
    def load(cls, folder: Path, pair: Pair) -> Self:
        """ArtefactError if it was not calibrated yet."""
        content = read_json(folder / CALIBRATION_FILE, remedy=_REMEDY)
        return cls(
            pair=pair,
            rule=Rule(**content["rule"]),
            support={name: (low, high) for name, (low, high) in content["support"].items()},
            slope=content["slope"],
            record=content["record"],
        )


def _ranges(support: Range) -> dict[str, list[float]]:
    return {name: [low, high] for name, (low, high) in support.items()}


def support_of(lists: Lists) -> Range:
    """The range of each model and workload feature."""
    columns = lists.state.astype(np.float64).T
    names = FEATURE_NAMES[:NUM_STATE_FEATURES]
    return {name: (float(c.min()), float(c.max())) for name, c in zip(names, columns, strict=True)}


def calibrate_variant(folder: Path, variant: Variant, pair: Pair, settings: FitSettings) -> Calibrated:
    """Platt's numbers and offsets on dev's lists of the calibration split, margin and slope on its others, then the
    rule on the calibration split of the training files, which nothing before has seen."""
    dev = read_lists(folder / f"{variant.dev}.parquet")
    train = read_sets(folder, variant.train)
    dev_group, train_group = group_of(dev), group_of(train)
    support = support_of(train[train_group == ""])
    estimator = calibrated(pair.estimator, dev[dev_group != ""])
    pair = Pair(ranker=pair.ranker, estimator=estimator)
    chosen_on = panel_of(dev[dev_group == ""], draws=variant.dev_draws)
    question = Question.of(chosen_on.scenarios, pair.ranker, estimator, support)
    expected = utilities_of(chosen_on.judged, settings).mean(axis=1)
    margin = choose_margin(question, expected, fixed_price=variant.fixed_price)
    kept, groups = train[train_group != ""], train_group[train_group != ""]
    on = Question.of(kept, pair.ranker, estimator, support)
    utility = utilities_of(kept.outcomes, settings)
    slope = _slope(question.scores, expected, on=chosen_on)
    start = Rule(
        margin=margin,
        fixed_price=variant.fixed_price,
        threshold=THRESHOLD,
        low_utilisation_gain=LOW_UTILISATION_GAIN / slope,
    )
    rule, rows = calibrate(on, kept, utility, groups, start=start)
    record = {
        "margin": margin,
        "rows": rows,
        "lists": {"trained": int((train_group == "").sum()), "calibration": len(kept), "dev": len(dev)},
        **_quality(estimator, kept),
        "dev": {
            "ENGINE_DEFAULT": judged(chosen_on, choose.engine_default(chosen_on.scenarios)),
            "FIXED": judged(chosen_on, choose.fixed(chosen_on.scenarios)),
            "MLP-always": judged(chosen_on, choose.with_abstention(chosen_on.scenarios, question.scores, margin=0.0)),
            "MLP-robust": judged(chosen_on, question.choices(rule)),
        },
    }
    return Calibrated(pair=pair, rule=rule, support=support, slope=slope, record=record)


def _quality(estimator: EstimatorNetwork, lists: Lists) -> dict[str, Any]:
    """How well the estimator is calibrated on the calibration split."""
    predicted = estimator.predict(lists.features())
    one_draw = lists.outcomes.reshape(len(lists), 1)
    return {"reliability": reliabilities(predicted, one_draw), "forecast": forecast_errors(predicted, one_draw)}


def _slope(scores: NDArray[np.float32], expected: Floats, *, on: Any) -> float:
    """Least squares through 0 of differences of expected utility from the default's on differences of scores."""
    starts = on.scenarios.starts[:, :DEFAULT_ROW]
    gain = (scores[:, :DEFAULT_ROW] - scores[:, DEFAULT_ROW, None])[starts].astype(np.float64)
    truth = (expected[:, :DEFAULT_ROW] - expected[:, DEFAULT_ROW, None])[starts]
    return float((gain * truth).sum() / (gain**2).sum())
