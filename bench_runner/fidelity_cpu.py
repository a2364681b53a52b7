"""The section about cells that were measured on a CPU: a sweep and the step times of the same kind of server."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_runner.band_table import ErrorsByRegime, cell_errors
from bench_runner.fidelity import ComparedCell, ServerFacts, cell_lines, compare_cell, ordered_alike, summary_lines
from bench_runner.files import read_json
from bench_runner.kv_cache import BLOCK
from bench_runner.plan import Plan
from bench_runner.results import PLAN_FILE, ResultsFolder
from bench_runner.step_time import load_step_tables
from bench_runner.step_time_fit import measured_settings
from service.domain.errors import ArtefactError


def cpu_section(results: Path, tables: Path) -> tuple[list[str], list[ComparedCell]]:
    """The lines of the section, and the compared cells. ArtefactError if the folder is no finished sweep."""
    folder = ResultsFolder.open(results, _plan_of(results))
    cells, failed = _compared(folder, tables)
    if not cells:
        raise ArtefactError(f"{results} has no measured cell with status ok; run `bench_runner sweep` first")
    return _lines(folder, tables, cells, failed), cells


def _plan_of(results: Path) -> Plan:
    if not (results / PLAN_FILE).is_file():
        raise ArtefactError(f"{results} has no {PLAN_FILE}; give the folder of a sweep")
    return Plan.from_json(read_json(results / PLAN_FILE))


def _compared(folder: ResultsFolder, tables_path: Path) -> tuple[list[ComparedCell], Counter[str]]:
    tables = load_step_tables(tables_path)
    cells, failed = [], Counter[str]()
    for result, run in folder.measured_rows():
        if result.status == "failed":
            failed[str(result.failure_cause)] += 1
            continue
        if not run.get("server_run"):
            raise ArtefactError(f"{result.key.cell_id} was not measured; give the folder of a sweep")
        cells.append(
            compare_cell(
                result,
                run,
                plan=folder.plan,
                facts=ServerFacts.read(folder.path / "runs" / f"{run['server_run']}.json"),
                table=tables.of(result.key.model),
                settings=lambda ramp_ms: measured_settings(tables_path, ramp_ms=ramp_ms),
            )
        )
    return cells, failed


def _lines(folder: ResultsFolder, tables: Path, cells: list[ComparedCell], failed: Counter[str]) -> list[str]:
    alike, pairs = ordered_alike(cells)
    left_out = [f"{count} × {cause}" for cause, count in failed.items()]
    return [
        *_conditions(folder),
        *_step_times(tables),
        "",
        *summary_lines(cells),
        "",
        f"Of {pairs} pairs of configurations of one scenario whose repetitions do not overlap in throughput, the "
        f"simulator orders {alike} as measured."
        + (f" Failed cells, left out: {', '.join(left_out)}." if failed else ""),
        "",
        *cell_lines(cells),
    ]


def _conditions(folder: ResultsFolder) -> list[str]:
    plan = folder.plan
    runs = [read_json(path) for path in sorted((folder.path / "runs").glob("*.json"))]
    machines = {f"{run['machine']['host_cpu']}, {run['machine']['host_cores']} cores" for run in runs}
    commits = sorted({str(run["machine"]["commit"])[:12] for run in runs})
    gpu = "no GPU" if plan.gpu == "CPU" else plan.gpu
    each = max((len(run["each"]) for _, run in folder.measured_rows() if "each" in run), default=0)
    return [
        f"Measured on {'; '.join(sorted(machines))}, {gpu}, with vLLM {plan.engine_version}, at commit "
        f"{', '.join(commits)}: {each} windows of {plan.window_s:g} s per cell, each after {plan.warm_up_s:g} s of "
        "warm-up. ± is half the range of these windows, which one server measured one after the other; servers started "
        "at other times differ more. Client, API server and engine share the machine's cores: the client's event loop "
        f"lagged by {_median_lag(folder)} (95th percentile of a window, median over windows), and a row marked "
        "`client_saturated` says something about the client, too.",
        "",
    ]


def _median_lag(folder: ResultsFolder) -> str:
    lags = [item["client_loop_lag_p95_ms"] for _, run in folder.measured_rows() for item in run.get("each", [])]
    known = [lag for lag in lags if lag is not None]
    return f"{statistics.median(known):.1f} ms" if known else "an unknown time"


def _step_times(path: Path) -> list[str]:
    content = read_json(path)
    try:
        fit: dict[str, Any] = content["fit"]
        errors, front = sorted(fit["relative_errors"]), fit["front_end_ms"]
        noise = statistics.median((step["high_ms"] - step["low_ms"]) / 2 / step["step_ms"] for step in content["steps"])
        terms = ", ".join(f"{name} {value:.3g}" for name, value in fit["step_ms"].items())
    except (KeyError, TypeError) as error:
        raise ArtefactError(f"{path.name} is not from `bench_runner probe` ({error}); probe a server") from error
    return [
        f"The simulator has {content['source']}: {len(errors)} kinds of steps, which differ by ±{noise:.0%} from "
        f"repetition to repetition (median); the fitted terms miss a kind's median by {errors[len(errors) // 2]:.0%} "
        f"(median) and {errors[-1]:.0%} (worst). Milliseconds per {terms}; API "
        f"server per {', '.join(f'{name} {value:.3g}' for name, value in front.items())} (the last is not simulated). "
        "No other number was adjusted.",
    ]


def cpu_errors(results: Path, cells: Sequence[ComparedCell]) -> ErrorsByRegime:
    """The errors of the cells by the regime that their numbers announce."""
    folder = ResultsFolder.open(results, _plan_of(results))
    facts = [ServerFacts.read(path) for path in sorted((folder.path / "runs").glob("*.json"))]
    return cell_errors(cells, plan=folder.plan, kv_cache_tokens=min(fact.kv_blocks for fact in facts) * BLOCK)
