"""The bundles that are trained: for which GPU and how well known a workload, on which lists, from whose weights on."""

from dataclasses import dataclass

from service.domain.manifest import Confidence

TYPICAL, EXACT, ROUGH, H200, H100 = "typical", "exact", "rough", "h200", "h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """train: sets whose lists are trained on, but for those of the calibration split, on which the rule is calibrated.

    dev: the set on which settings and margin are chosen, and whose lists of the calibration split calibrate the
    estimator. start: the variant from whose weights training goes on; None: from the beginning.
    """

    name: str
    bundle: str
    confidence: Confidence
    train: tuple[str, ...]
    dev: str
    dev_draws: int = 8
    start: str | None = TYPICAL


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
        ),
        Variant(
            name=ROUGH,
            bundle="dense-b200-rough",
            confidence="rough",
            train=("train-rough", "rough-more"),
            dev="dev-rough",
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
