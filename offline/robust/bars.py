"""Prints a BAR line for each registered goal, from the shipped bundles' evaluation.json. `make bench BENCH=ranker`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline.artefacts import read_json
from offline.export import EVALUATION_FILE, read_bundle
from offline.robust.protocol import goals
from offline.robust.variants import VARIANTS
from service.domain.errors import MemoryPolicyError

BUNDLES = Path("service/bundles")


def bars(evaluations: Sequence[dict[str, Any]]) -> list[str]:
    """A line per goal; a goal whose test set is still closed has no value and is short."""
    verdicts = {goal["name"]: goal for evaluation in evaluations for goal in evaluation["goals"]}
    lines = []
    for goal in goals():
        verdict = verdicts.get(goal.name)
        value = "undefined" if verdict is None or verdict["value"] is None else f"{verdict['value']:.5g}"
        outcome = "ok" if verdict is not None and verdict["met"] else "short"
        lines.append(f"BAR {goal.name} {value} {goal.op} {goal.target:g} {outcome}")
    return lines


def main() -> int:
    """Exit code 0 whatever the lines say, 1 if a bundle does not verify."""
    try:
        evaluations = []
        for variant in VARIANTS.values():
            read_bundle(BUNDLES / variant.bundle)
            evaluations.append(read_json(BUNDLES / variant.bundle / EVALUATION_FILE, remedy="run `make train-full`"))
    except MemoryPolicyError as error:
        print(f"bars: {error}", file=sys.stderr)
        return 1
    print("\n".join(bars(evaluations)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
