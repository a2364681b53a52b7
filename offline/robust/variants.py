"""The bundles that are trained: for which GPU and how well known a workload, on which lists, from whose weights on."""

from dataclasses import dataclass

from service.domain.manifest import Confidence

TYPICAL, EXACT, ROUGH, H200, H100 = "typical", "exact", "rough", "h200", "h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """train: sets whose lists are trained on, but for those of the calibration split, on which the rule is calibrated.

    dev: the set on which settings and margin are chosen, and whose lists of the calibration split calibrate the
    estimator. start: the variant from whose weights training goes on; None: from the beginning. fixed_price: of the
    chance to be worse than candidate 0, for the engine's default as well.
    """

    name: str
    bundle: str
    confidence: Confidence
    train: tuple[str, ...]
    dev: str
    dev_draws: int = 8
    start: str | None = TYPICAL
    fixed_price: float = 2.5


# Where the default is charged for what it risks against candidate 0, flags are set more often; on the calibration split
# of the exact and the rough variant that made more draws worse than the bound allows, at every price of the other risk.
VARIANTS: dict[str, Variant] = {
    one.name: one
    for one in (
        Variant(
            name=TYPICAL,
            bundle="dense-b200-robust",
            confidence="typical",
            train=("train-base", "train-focus", "train-more", "train-further"),
            dev="dev",
            start=None,
        ),
        Variant(
            name=EXACT,
            bundle="dense-b200-exact",
            confidence="exact",
            train=("train-nominal", "nominal-more"),
            dev="dev-exact",
            dev_draws=1,
            fixed_price=0.0,
        ),
        Variant(
            name=ROUGH,
            bundle="dense-b200-rough",
            confidence="rough",
            train=("train-rough", "rough-more"),
            dev="dev-rough",
            fixed_price=0.0,
        ),
        Variant(
            name=H200,
            bundle="dense-h200-robust",
            confidence="typical",
            train=("h200-train", "h200-more"),
            dev="h200-dev",
        ),
        Variant(
            name=H100,
            bundle="dense-h100-robust",
            confidence="typical",
            train=("h100-train", "h100-more"),
            dev="h100-dev",
        ),
    )
}
