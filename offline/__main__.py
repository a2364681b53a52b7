"""Command line: python -m offline dataset|train|evaluate|register|export|card|all, and cells for any plan's."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from offline import pipeline
from offline.arithmetic import pin_arithmetic
from offline.dataset import CellFiles, Development, split_definition
from offline.evaluate import DEV_SET, TEST_SET
from offline.measured.stage import Request, sentences, train_on_measured
from offline.policies import POLICIES
from offline.robust.cards import bundles_in, write_card
from offline.settings import Settings, TrainingSettings
from offline.sweep_cells import read_sweep
from service.domain.errors import ArtefactError, MemoryPolicyError
from service.domain.features import FEATURE_NAMES

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_REGISTRATION = "reference-1"
DEFAULT_BUNDLE = "service/bundles/qwen3-b200-reference"

STAGES = {
    "dataset": "check the cells and both leak guards, and show the splits",
    "train": "train the ranker over its grid and choose on dev",
    "evaluate": "tabulate every policy on dev; with --test, open the test split under its registration",
    "register": "fix cells, split, settings, code, gates and selection before the test split is opened",
    "export": "write model.onnx, evaluation.json and the manifest into the bundle",
    "card": "write the model card and its plots into the bundle, and into the robust bundles that lie beside it",
    "all": "dataset, train, evaluate, export and card; never opens the test split",
}

_COLUMNS = {
    "slo_violation_rate": "violation",
    "failure_rate": "failure",
    "output_throughput_tps": "tok/s",
    "goodput_tps": "goodput",
    "regret": "regret",
    "slo_regret": "slo_regret",
}


def main(argv: Sequence[str] | None = None, *, feature_names: Sequence[str] = FEATURE_NAMES) -> int:
    """Exit code: 0 done, 1 refused with a one-line reason on stderr, 2 bad usage."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.stage == "cells":
            print(json.dumps(read_sweep(arguments.file).describe(), indent=1))
            return 0
        if arguments.stage == "train" and _train_on_measured(arguments):
            return 0
        run = _run(arguments, feature_names)
        pin_arithmetic()
        _dispatch(arguments, run)
    except MemoryPolicyError as error:
        print(f"offline: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"offline: {error.filename}: {error.strerror}; make it readable and writable", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m offline", description="Cells in, a verified bundle out.")
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for name, purpose in STAGES.items():
        stage = stages.add_parser(name, help=purpose, description=purpose)
        stage.add_argument("--cells", type=Path, default=Path("bench_runner/cells/reference.parquet"))
        stage.add_argument(
            "--engine-default-cells", type=Path, default=Path("bench_runner/cells/engine_default.parquet")
        )
        stage.add_argument("--work", type=Path, default=Path("build/offline"), help="intermediate files")
        stage.add_argument("--bundle", type=Path, help=f"{DEFAULT_BUNDLE}, if it is not given")
        stage.add_argument("--registrations", type=Path, default=Path("offline/registrations"))
        stage.add_argument("--registration", default=DEFAULT_REGISTRATION, metavar="NAME")
        stage.add_argument("--epochs", type=_epochs, default=TrainingSettings().epochs)
        stage.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == "train":
            _add_measured(stage)
        if name == "evaluate":
            stage.add_argument("--test", action="store_true", help="open the test split; once per registration")
    cells = stages.add_parser(
        "cells", help="check the cells of any finished plan, measured or simulated, and show them"
    )
    cells.add_argument("file", type=Path, metavar="FILE", help="what `bench_runner merge` wrote")
    return parser


def _add_measured(stage: argparse.ArgumentParser) -> None:
    measured = stage.add_argument_group(
        "any plan's cells, measured or simulated, instead of the reference's; with --bundle FOLDER a bundle of them"
    )
    measured.add_argument("--plan", type=Path, metavar="FILE", help="the plan that --cells were filled by")
    measured.add_argument("--fine-tune", type=Path, metavar="BUNDLE", help="start from the ranker of this bundle")
    measured.add_argument(
        "--simulated", type=Path, metavar="FILE", help="cells of another evidence class to compare with, cell by cell"
    )


def _epochs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000")
    return int(text)


def _run(arguments: argparse.Namespace, feature_names: Sequence[str]) -> pipeline.Run:
    return pipeline.Run(
        files=CellFiles(reference=arguments.cells, engine_default=arguments.engine_default_cells),
        work=arguments.work,
        bundle=arguments.bundle or Path(DEFAULT_BUNDLE),
        registrations=arguments.registrations,
        registration=arguments.registration,
        root=ROOT,
        settings=Settings(training=TrainingSettings(epochs=arguments.epochs)),
        feature_names=feature_names,
    )


def _train_on_measured(arguments: argparse.Namespace) -> bool:
    """Whether it was asked for; then it is done."""
    if arguments.plan is None:
        for name in ("fine_tune", "simulated"):
            if getattr(arguments, name) is not None:
                raise ArtefactError(f"--{name.replace('_', '-')} goes with --plan: give the plan of the cells")
        return False
    record = train_on_measured(
        Request(
            cells=arguments.cells,
            plan=arguments.plan,
            work=arguments.work,
            settings=TrainingSettings(epochs=arguments.epochs),
            fine_tune=arguments.fine_tune,
            simulated=arguments.simulated,
            bundle=arguments.bundle,
        ),
        progress=_progress,
    )
    if arguments.json:
        print(json.dumps(record, indent=1, sort_keys=True, allow_nan=False))
    else:
        print("\n".join(sentences(record)))
    return True


def _dispatch(arguments: argparse.Namespace, run: pipeline.Run) -> None:
    console = Console()
    every = arguments.stage == "all"
    result: dict[str, Any] = {}
    if every or arguments.stage == "dataset":
        result = _describe(pipeline.dataset_stage(run))
        _say(arguments, console, "dataset: " + ", ".join(f"{name} {n}" for name, n in result["scenarios"].items()))
    if every or arguments.stage == "train":
        result = pipeline.train_stage(run, progress=_progress)
        _say(arguments, console, f"train: {result['chosen_point']}, weights sha256 {result['weights_sha256']}")
    if every or arguments.stage == "evaluate":
        result = pipeline.evaluate_stage(run, open_test=not every and arguments.test)
        if not arguments.json:
            _show_evaluation(console, result)
    if arguments.stage == "register":
        registration = pipeline.register_stage(run)
        result = {"name": registration.name, "sha256": registration.sha256}
        _say(arguments, console, f"register: {registration.name}, sha256 {registration.sha256}; commit it now")
    if every or arguments.stage == "export":
        manifest, parity = pipeline.export_stage(run)
        result = {"bundle": str(run.bundle), "version": manifest.version, "parity": parity}
        _say(arguments, console, f"export: {run.bundle} {manifest.version}, parity with torch {parity:.1e}")
    if every or arguments.stage == "card":
        manifest = pipeline.card_stage(run)
        result = {"bundle": str(run.bundle), "files": manifest.files}
        _say(arguments, console, f"card: {run.bundle} with {', '.join(manifest.files)}")
    if arguments.stage == "card":
        result["beside"] = {}
        for folder in bundles_in(run.bundle.parent):
            files = write_card(folder).files
            result["beside"][str(folder)] = files
            _say(arguments, console, f"card: {folder} with {', '.join(files)}")
    if arguments.json:
        print(json.dumps(result, indent=1, sort_keys=True, allow_nan=False))


def _say(arguments: argparse.Namespace, console: Console, text: str) -> None:
    if not arguments.json:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _progress(points: Sequence[T]) -> Iterable[T]:
    console = Console(stderr=True)
    return track(points, description="training", console=console, disable=not console.is_terminal)


def _describe(data: Development) -> dict[str, Any]:
    return {
        "scenarios": {split: len(ids) for split, ids in split_definition().items()},
        "evidence": data.sources.provenance.evidence,
        "cells_sha256": data.sources.cells_sha256,
        "plan_sha256": data.sources.plan_sha256,
    }


def _show_evaluation(console: Console, evaluation: dict[str, Any]) -> None:
    for name in (DEV_SET, TEST_SET):
        if name not in evaluation["test_sets"]:
            console.print("test: closed", markup=False)
            continue
        test_set = evaluation["test_sets"][name]
        table = Table(title=f"{name}, {test_set['n']} scenarios, {evaluation['evidence']}")
        table.add_column("policy", no_wrap=True)
        for header in _COLUMNS.values():
            table.add_column(header)
        for policy in POLICIES:
            row = test_set["policies"][policy]
            table.add_row(policy, *("–" if row[column] is None else f"{row[column]:.4g}" for column in _COLUMNS))
        console.print(table)
        for verdict in test_set.get("gates", {}).get("verdicts", ()):
            outcome = "passed" if verdict["passed"] else "failed"
            limit = f"{verdict['bound']} end {verdict['interval_end']} against {verdict['limit']}"
            console.print(f"gate {verdict['metric']}: {outcome}, {limit}", markup=False, highlight=False)
    console.print(f"dev selects {evaluation['selected_policy']}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
