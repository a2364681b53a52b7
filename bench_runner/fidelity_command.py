"""`bench_runner fidelity`: how far the simulator is from measured runs; without arguments, FIDELITY.md anew."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from bench_runner.band_table import ErrorsByRegime
from bench_runner.batch_sweep import compare_batch, read_batch_rows
from bench_runner.fidelity_cpu import cpu_errors, cpu_section
from bench_runner.fidelity_page import (
    Compared,
    cpu_page,
    error_bands,
    page,
    result_of,
    run_page,
    run_pictures,
)
from bench_runner.files import write_atomically, write_json
from bench_runner.layer_profile import read_layer_profile
from bench_runner.measured_run import read_measured_run
from bench_runner.published_summary import RUN_FILE, SUMMARY_FILE, read_summarised_run, read_summary
from bench_runner.run_comparison import architecture_of, compare_measured_run, compare_run
from service.domain.error_bands import ERROR_BANDS_FILE
from service.domain.errors import ArtefactError

HERE = Path(__file__).parent
COMMITTED = HERE / "measured"
PROFILES, BATCH_SWEEP, CPU = "profiles", "mlenergy_v2_vllm_batch_sweep.csv", "cpu"
# ![text](file.png) of a file in the same folder.
_PICTURE = re.compile(r"(!\[[^\]]*\]\()(?=[^/)]+\.png\))")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "fidelity",
        help="measured runs beside simulated ones; without arguments, FIDELITY.md and the error bands anew",
    )
    parser.add_argument("--measured", type=Path, metavar="DIR", help="a measured run: meta.json, requests.jsonl …")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="the layer profile of its model on its GPU")
    parser.add_argument("--step-ms", type=float, metavar="MS", help="add this to each step instead of fitting it")
    parser.add_argument("--model-config", type=Path, metavar="FILE", help="config.json of a model in no catalogue")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of a finished sweep on a CPU")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="what `probe` wrote there")
    parser.add_argument("--output", type=Path, metavar="PATH", help="folder to write to, or the sweep's Markdown file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the files are written, whatever they say."""
    if _given_together(arguments, "measured", "profile"):
        return _one_run(arguments)
    if _given_together(arguments, "results", "tables"):
        return _cells(arguments)
    return _everything(arguments.output or HERE)


def _given_together(arguments: argparse.Namespace, one: str, other: str) -> bool:
    given = [getattr(arguments, name) is not None for name in (one, other)]
    if any(given) and not all(given):
        raise ArtefactError(f"--{one} and --{other} belong together; give both")
    return all(given)


def _cells(arguments: argparse.Namespace) -> int:
    lines, cells = cpu_section(arguments.results, arguments.tables)
    output = arguments.output or Path("build/fidelity/cells.md")
    write_atomically(output, ("\n".join(cpu_page(lines)) + "\n").encode())
    print(f"{len(cells)} cells compared in {output}", file=sys.stderr)
    return 0


def _one_run(arguments: argparse.Namespace) -> int:
    compared = _compare(
        arguments.measured, arguments.profile, step_ms=arguments.step_ms, model_config=arguments.model_config
    )
    output = arguments.output or Path("build/fidelity") / compared.name
    _write_run(output, compared)
    write_json(output / "result.json", result_of([compared]))
    write_atomically(output / "report.md", ("\n".join(run_page(compared, pictures="")) + "\n").encode())
    print(f"{output / 'report.md'}", file=sys.stderr)
    return 0


def _compare(
    folder: Path, profile_folder: Path, *, step_ms: float | None = None, model_config: Path | None = None
) -> Compared:
    run, profile = read_measured_run(folder), read_layer_profile(profile_folder)
    model = architecture_of(run.engine.model, model_config)
    summary = folder / SUMMARY_FILE
    return Compared(
        name=run.name,
        requests=len(run.requests.prompt),
        run=run,
        comparison=compare_measured_run(run, profile, model=model, step_ms=step_ms),
        published=read_summary(summary) if summary.is_file() else None,
    )


def _write_run(output: Path, compared: Compared) -> None:
    for name, content in run_pictures(compared).items():
        write_atomically(output / name, content)


def _everything(output: Path) -> int:
    runs = _committed_runs()
    step_ms = runs[0].comparison.step_ms
    rows = track(read_batch_rows(COMMITTED / BATCH_SWEEP), description="batch sweep", disable=not sys.stderr.isatty())
    batches = [compare_batch(row, step_ms=step_ms) for row in rows]
    cpu_lines, cells = cpu_section(COMMITTED / CPU / "results", COMMITTED / CPU / "steps.json")
    on_cpu: ErrorsByRegime = cpu_errors(COMMITTED / CPU / "results", cells)
    bands = error_bands(runs, on_cpu)
    pictures = output / "fidelity"
    for compared in runs:
        _write_run(pictures, compared)
    write_json(pictures / "measured.json", result_of(runs))
    write_json(output / ERROR_BANDS_FILE, bands.to_json())
    lines = page(runs, batches, cpu_lines, bands, further=_further(pictures))
    write_atomically(output / "FIDELITY.md", ("\n".join(lines) + "\n").encode())
    print(
        f"{len(runs)} runs, {len(batches)} batch sizes and {len(cells)} cells in {output / 'FIDELITY.md'}",
        file=sys.stderr,
    )
    return 0


def _committed_runs() -> list[Compared]:
    """The measured runs first, on the first of which step_ms is fitted; then those that are known by statistics."""
    profiles = COMMITTED / PROFILES
    folders = sorted(path.parent for path in COMMITTED.glob("*/meta.json"))
    full = [_compare(folder, profiles / folder.name) for folder in folders]
    by_name = {compared.name: compared for compared in full}
    step_ms = full[0].comparison.step_ms
    return [*full, *(_summarised(path.parent, by_name, step_ms) for path in sorted(COMMITTED.glob(f"*/{RUN_FILE}")))]


def _summarised(folder: Path, by_name: dict[str, Compared], step_ms: float) -> Compared:
    known = read_summarised_run(folder)
    source = by_name.get(known.requests_of)
    if source is None or source.run is None:
        raise ArtefactError(
            f"{folder / RUN_FILE}: no run {known.requests_of!r} beside it; there is {', '.join(by_name)}"
        )
    requests = source.run.requests
    return Compared(
        name=known.name,
        requests=len(requests.prompt),
        run=None,
        comparison=compare_run(
            known.engine,
            requests,
            known.summary.measured,
            read_layer_profile(COMMITTED / PROFILES / folder.name),
            model=architecture_of(known.engine.model),
            step_ms=step_ms,
        ),
        published=known.summary,
    )


def _further(folder: Path) -> Sequence[str]:
    """Sections that other commands wrote beside the pictures, in the order of their names, their links from here."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.md")):
        section = _PICTURE.sub(rf"\1{folder.name}/", path.read_text(encoding="utf-8"))
        lines += ["", *section.splitlines()]
    return lines
