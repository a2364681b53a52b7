import io

from rich.console import Console

from bench_runner.load import LoadProgress
from bench_runner.measured_cell import MeasuredCell, failed_cell
from bench_runner.server_failure import ServerFailureError
from bench_runner.sweep_view import Estimate, SweepView
from service.domain.cell import CellKey, Provenance
from tests.bench_runner.sweeping import small_plan

PLAN = small_plan(configs=2)
MEASURED = Provenance(
    evidence="measured-cpu", gpu="CPU", engine_version="0.28.0", scheduler="a real vllm serve", step_times="wall clock"
)


def first_cell() -> CellKey:
    return next(PLAN.cells())


def failed() -> MeasuredCell:
    return failed_cell(first_cell(), ServerFailureError("server_died", "code 1"), plan=PLAN, provenance=MEASURED)


def test_the_time_left_comes_from_what_starts_and_cells_took() -> None:
    estimate = Estimate(start_s=100, cell_s=10)
    assert estimate.remaining_s(starts=2, cells=3) == 230
    estimate.add("start", 40)
    estimate.add("start", 60)
    estimate.add("cell", 20)
    assert estimate.remaining_s(starts=2, cells=3) == 2 * 50 + 3 * 20


def test_a_terminal_shows_server_state_tokens_and_what_is_left() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    with SweepView(console, name="small", estimate=Estimate(start_s=60, cell_s=20)) as view:
        view.begin(servers=2, cells=2)
        view.server_starting("tiny|s4")
        view.server_ready(30.0)
        view.cell(first_cell())
        view.progress(LoadProgress(elapsed_s=7.0, tokens_per_s=1234.0, in_flight=2, completed=5, errors=1))
        console.print(view.table())
        view.finished(failed(), took_s=19.0)
    shown = screen.getvalue()
    assert "tiny|s4 (under load)" in shown
    assert "7 s, 1,234 tokens/s, 2 in flight, 5 completed, 1 errors" in shown
    assert "2 cells, 2 servers, about 0:01:40" in shown
    assert "failed: server_died (1 of 2 left" in shown


def test_elsewhere_every_event_is_a_line_and_nothing_is_redrawn() -> None:
    file = io.StringIO()
    with SweepView(Console(file=file, width=160), name="small", estimate=Estimate(start_s=60, cell_s=20)) as view:
        view.begin(servers=1, cells=1)
        view.server_starting("tiny|s4")
        view.progress(LoadProgress(elapsed_s=7.0, tokens_per_s=1234.0, in_flight=2, completed=5, errors=1))
        view.failed("tiny|s4", "server_died: code 1")
    assert file.getvalue().splitlines() == [
        "small: 1 cells on 1 servers, about 0:01:20",
        "starting tiny|s4",
        "tiny|s4: attempt failed, server_died: code 1",
    ]
