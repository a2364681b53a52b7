"""Command line: python -m offline.robust ablate|margin|train|register|evaluate|export|card|all."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from offline.arithmetic import pin_arithmetic
from offline.robust import stages
from service.domain.errors import MemoryPolicyError

ROOT = Path(__file__).resolve().parents[2]
STAGES = {
    "ablate": "train every variant and tabulate it on dev",
    "large": "train the much larger network, an upper reference that is never shipped",
    "train": "train the robust ranker and its other rivals on the training lists",
    "margin": "tabulate margins of abstention on calibration and choose one",
    "register": "fix sets, models, settings, protocol, goals and code before a test list is simulated",
    "evaluate": "open test sets that were simulated under the registration; each once",
    "explain": "tabulate which limit of the SLO was broken in the sets that were opened",
    "export": "write model.onnx, evaluation.json and the manifest into the bundle",
    "card": "write the model card into the bundle",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 refused with a one-line reason on stderr, 2 bad usage."""
    arguments = _parser().parse_args(argv)
    run = stages.Run(
        lists=arguments.lists,
        work=arguments.work,
        bundle=arguments.bundle,
        registration=arguments.registration,
        root=ROOT,
    )
    if arguments.stage != "large":
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


def _dispatch(arguments: argparse.Namespace, run: stages.Run) -> dict[str, object]:
    if arguments.stage == "evaluate":
        return stages.evaluate_stage(run, tuple(arguments.set))
    if arguments.stage == "ablate":
        return stages.ablate_stage(run, progress=_progress)
    if arguments.stage == "large":
        return stages.large_stage(run, progress=_progress)
    if arguments.stage == "train":
        return stages.train_stage(run, progress=_progress)
    plain = {
        "margin": stages.margin_stage,
        "register": stages.register_stage,
        "explain": stages.explain_stage,
        "export": stages.export_stage,
        "card": stages.card_stage,
    }
    return plain[arguments.stage](run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m offline.robust", description="Lists in, a verified bundle out.")
    commands = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for name, purpose in STAGES.items():
        stage = commands.add_parser(name, help=purpose, description=purpose)
        stage.add_argument("--lists", type=Path, default=Path("build/lists"), help="folder of the simulated sets")
        stage.add_argument("--work", type=Path, default=Path("build/robust"), help="intermediate files")
        stage.add_argument("--bundle", type=Path, default=Path("service/bundles/dense-b200-robust"))
        stage.add_argument("--registration", default="robust-1", metavar="NAME")
        stage.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == "evaluate":
            stage.add_argument("--set", action="append", default=[], help="only this test set; repeat for more")
    return parser


def _progress(name: str, epochs: int) -> Iterable[int]:
    console = Console(stderr=True)
    return track(range(epochs), description=name, console=console, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
