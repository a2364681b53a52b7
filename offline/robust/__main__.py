"""Command line: python -m offline.robust train|calibrate|register|evaluate|explain|export|card."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from offline.arithmetic import pin_arithmetic
from offline.robust import opening, stages
from offline.robust.protocol import TEST_SETS
from offline.robust.variants import VARIANTS
from service.domain.errors import MemoryPolicyError

ROOT = Path(__file__).resolve().parents[2]
# That of the bundles that are shipped.
REGISTRATION = "robust-3"
STAGES = {
    "train": "train ranker and estimator of each variant on its lists outside the calibration split",
    "calibrate": "calibrate estimators, and the rule when flags are recommended",
    "register": "fix sets, models, rules, settings, protocol, goals and code before a test list is simulated",
    "evaluate": "open test sets that were simulated under the registration; each once",
    "explain": "tabulate which limit of the SLO was broken in the sets that were opened",
    "export": "write graphs, evaluation and manifest into the bundles",
    "card": "write the model cards into the bundles",
}
_OF_VARIANTS = ("train", "calibrate", "export", "card")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 refused with a one-line reason on stderr, 2 bad usage."""
    arguments = _parser().parse_args(argv)
    run = opening.Run(
        lists=arguments.lists,
        work=arguments.work,
        bundles=arguments.bundles,
        registration=arguments.registration,
        root=ROOT,
        error_bands=arguments.error_bands,
    )
    pin_arithmetic()
    try:
        result = _dispatch(arguments, run)
    except MemoryPolicyError as error:
        print(f"offline.robust: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"offline.robust: {error.filename}: {error.strerror}; make it readable and writable", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=1, allow_nan=False) if arguments.json else "\n".join(stages.lines(result)))
    return 0


def _dispatch(arguments: argparse.Namespace, run: opening.Run) -> dict[str, Any]:
    plain: dict[str, Callable[[opening.Run], dict[str, Any]]] = {
        "register": stages.register_stage,
        "explain": opening.explain_stage,
    }
    if arguments.stage in plain:
        return plain[arguments.stage](run)
    if arguments.stage == "evaluate":
        return opening.evaluate_stage(run, tuple(arguments.set))
    names = tuple(arguments.variant) or tuple(VARIANTS)
    if arguments.stage == "train":
        return stages.train_stage(run, names, progress=_progress)
    if arguments.stage == "calibrate":
        return stages.calibrate_stage(run, names)
    if arguments.stage == "export":
        return stages.export_stage(run, names, unregistered=arguments.unregistered)
    return stages.card_stage(run, names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m offline.robust", description="Lists in, verified bundles out.")
    commands = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for name, purpose in STAGES.items():
        stage = commands.add_parser(name, help=purpose, description=purpose)
        stage.add_argument("--lists", type=Path, default=Path("build/lists"), help="folder of the simulated sets")
        stage.add_argument("--work", type=Path, default=Path("build/robust"), help="intermediate files")
        stage.add_argument("--bundles", type=Path, default=Path("service/bundles"), help="folder of all bundles")
        stage.add_argument("--registration", default=REGISTRATION, metavar="NAME")
        stage.add_argument(
            "--error-bands",
            type=Path,
            default=Path("bench_runner/error_bands.json"),
            metavar="FILE",
            help="the simulator's errors by regime, carried by every bundle if the file is there",
        )
        stage.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == "evaluate":
            stage.add_argument(
                "--set", action="append", default=[], choices=TEST_SETS, help="only this; repeat for more"
            )
        if name in _OF_VARIANTS:
            stage.add_argument(
                "--variant", action="append", default=[], choices=VARIANTS, help="only this; repeat for more"
            )
        if name == "export":
            stage.add_argument("--unregistered", action="store_true", help="for trying out: no registration, no test")
    return parser


def _progress(name: str, epochs: int) -> Iterable[int]:
    console = Console(stderr=True)
    return track(range(epochs), description=name, console=console, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
