"""Prints a BAR line for each registered goal, from the shipped bundle's evaluation.json. `make bench BENCH=ranker`."""

import sys
from pathlib import Path
from typing import Any

from offline.artefacts import read_json
from offline.export import EVALUATION_FILE, read_bundle
from offline.robust.protocol import goals
from service.domain.errors import MemoryPolicyError

BUNDLE = Path("service/bundles/dense-b200-robust")


def bars(evaluation: dict[str, Any]) -> list[str]:
    """A line per goal; a goal whose test set is still closed has no value and is short."""
    verdicts = {goal["name"]: goal for goal in evaluation["goals"]}
    lines = []
    for goal in goals():
        verdict = verdicts.get(goal.name)
        value = "undefined" if verdict is None or verdict["value"] is None else f"{verdict['value']:.5g}"
        outcome = "ok" if verdict is not None and verdict["met"] else "short"
        lines.append(f"BAR {goal.name} {value} {goal.op} {goal.target:g} {outcome}")
    return lines


def main() -> int:
    """Exit code 0 whatever the lines say, 1 if the bundle does not verify."""
    try:
        read_bundle(BUNDLE)
        evaluation = read_json(BUNDLE / EVALUATION_FILE, remedy="run `make train-full`")
    except MemoryPolicyError as error:
        print(f"bars: {error}", file=sys.stderr)
        return 1
    print("\n".join(bars(evaluation)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
