"""What a person sees of a running sweep: server, cell, tokens per second, what is left and how long it will take."""

import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench_runner.load import LoadProgress
from bench_runner.measured_cell import MeasuredCell
from service.domain.cell import CellKey


class Estimate:
    """Seconds until the end, from what servers and cells took so far; before the first, from a guess of each."""

    def __init__(self, *, start_s: float, cell_s: float) -> None:
        self._guess = {"start": start_s, "cell": cell_s}
        self._took: dict[str, list[float]] = {"start": [], "cell": []}

    def add(self, kind: str, seconds: float) -> None:
        """One `start` or `cell` took so long."""
        self._took[kind].append(seconds)

    def remaining_s(self, *, starts: int, cells: int) -> float:
        """For so many more servers and cells."""
        return starts * self._mean("start") + cells * self._mean("cell")

    def _mean(self, kind: str) -> float:
        took = self._took[kind]
        return sum(took) / len(took) if took else self._guess[kind]


class SweepView:
    """A live table on a terminal, a line per event anywhere else."""

    def __init__(
        self, console: Console, *, name: str, estimate: Estimate, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._name, self._estimate, self._clock = console, name, estimate, clock
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._servers_left = self._cells_left = self._cells = self._failures = 0
        self._server, self._state, self._cell = "", "none", ""
        self._progress: LoadProgress | None = None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def begin(self, *, servers: int, cells: int) -> None:
        """What there is to do."""
        self._servers_left, self._cells_left, self._cells = servers, cells, cells
        self._say(f"{self._name}: {cells} cells on {servers} servers, about {self._left()}")

    def server_starting(self, name: str) -> None:
        """A server has been started and is not ready."""
        self._server, self._state, self._cell, self._progress = name, "starting", "", None
        self._say(f"starting {name}")

    def server_ready(self, start_s: float) -> None:
        """It answers."""
        self._estimate.add("start", start_s)
        self._state = "ready"
        self._say(f"ready after {start_s:.0f} s")

    def server_done(self) -> None:
        """All cells of a configuration have their rows."""
        self._servers_left -= 1
        self._state = "ended"
        self._show()

    def cell(self, key: CellKey) -> None:
        """A cell is being measured."""
        self._state, self._cell, self._progress = "under load", key.scenario_id, None
        self._show()

    def progress(self, progress: LoadProgress) -> None:
        """The load says how it goes."""
        self._progress = progress
        self._show()

    def finished(self, cell: MeasuredCell, *, took_s: float | None) -> None:
        """A row has been written."""
        self._cells_left -= 1
        if took_s is not None:
            self._estimate.add("cell", took_s)
        result, invalid = cell.result, cell.run.get("invalid_cause")
        said = (
            f"failed: {result.failure_cause}" if result.failure_cause else f"{result.output_throughput_tps:,.0f} tok/s"
        )
        said += f", invalid: {invalid}" if invalid else ""
        self._say(f"{result.key.cell_id}: {said} ({self._cells_left} of {self._cells} left, about {self._left()})")

    def failed(self, name: str, reason: str) -> None:
        """An attempt came to nothing."""
        self._failures += 1
        self._say(f"{name}: attempt failed, {reason}")

    def _left(self) -> str:
        seconds = self._estimate.remaining_s(starts=self._servers_left, cells=self._cells_left)
        return str(timedelta(seconds=round(seconds)))

    def _say(self, line: str) -> None:
        self._console.print(Text(line))
        self._show()

    def _show(self) -> None:
        if self._live:
            self._live.update(self.table())

    def table(self) -> Group:
        """What the live view shows now."""
        table = Table.grid(padding=(0, 2))
        table.add_row("server", f"{self._server} ({self._state})")
        table.add_row("cell", self._cell or "-")
        if self._progress:
            progress = self._progress
            table.add_row(
                "load",
                f"{progress.elapsed_s:.0f} s, {progress.tokens_per_s:,.0f} tokens/s, {progress.in_flight} in flight, "
                f"{progress.completed} completed, {progress.errors} errors",
            )
        table.add_row("left", f"{self._cells_left} cells, {self._servers_left} servers, about {self._left()}")
        table.add_row("failed attempts", str(self._failures))
        return Group(table)
