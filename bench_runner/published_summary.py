"""A published comparison of a measured run with another simulator: what both gave, by latency and statistic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_runner.files import read_json
from bench_runner.measured_run import EngineFacts
from bench_runner.run_errors import LATENCIES, STATISTICS
from service.domain.errors import ArtefactError, InvalidInputError

SUMMARY_FILE = "summary.txt"
RUN_FILE = "run.json"
_NAMES = {"Mean": "mean", "Median": "p50", "P90": "p90", "P95": "p95", "P99": "p99"}
_LINE = re.compile(r"(TTFT|TPOT|Latency) (Mean|Median|P90|P95|P99)\s+(\S+)\s+(\S+)\s+(\S+)%")

Statistics = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSummary:
    """measured: {latency: {statistic: ms}}. errors: those of the simulator that the run was published with, as shares.

    The errors are as printed: the milliseconds beside them are rounded more coarsely.
    """

    measured: Statistics
    errors: Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarisedRun:
    """A run of which only the published statistics are kept; it was asked for what the run `requests_of` was."""

    name: str
    engine: EngineFacts
    requests_of: str
    summary: PublishedSummary


def read_summary(path: Path) -> PublishedSummary:
    """The lines `TTFT Mean <measured> <simulated> <difference>%`; errors name the line or what is missing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); copy the published summary") from error
    measured: dict[str, dict[str, float]] = {name: {} for name in LATENCIES}
    errors: dict[str, dict[str, float]] = {name: {} for name in LATENCIES}
    for number, line in enumerate(lines, start=1):
        found = _LINE.match(line)
        if found is None:
            continue
        latency, statistic = found[1].lower(), _NAMES[found[2]]
        where = f"{path}:{number}: {found[1]} {found[2]}"
        measured[latency][statistic] = _number(where, found[3], least=1e-9, needed="milliseconds above 0")
        errors[latency][statistic] = _number(where, found[5], least=-100.0, needed="a difference in %") / 100
    for latency in LATENCIES:
        missing = [name for name in STATISTICS if name not in measured[latency]]
        if missing:
            raise ArtefactError(f"{path} has no {', '.join(missing)} of {latency}; copy the published summary whole")
    return PublishedSummary(measured=measured, errors=errors)


def _number(path: str, text: str, *, least: float, needed: str) -> float:
    try:
        value = float(text)
        if least <= value < 1e12:
            return value
    except ValueError:
        pass
    raise InvalidInputError(path=path, value=text, remedy=f"{needed} is needed; correct the line")


def read_summarised_run(folder: Path) -> SummarisedRun:
    """The run in a folder with run.json and summary.txt; ArtefactError names what is missing."""
    content = read_json(folder / RUN_FILE)
    try:
        return SummarisedRun(
            name=folder.name,
            engine=EngineFacts(**content["engine"]),
            requests_of=str(content["requests_of"]),
            summary=read_summary(folder / SUMMARY_FILE),
        )
    except (KeyError, TypeError) as error:
        raise ArtefactError(
            f"{folder / RUN_FILE} lacks or does not know {error}; it needs engine, requests_of"
        ) from error
