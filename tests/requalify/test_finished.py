"""A drill that was stopped goes on where it was, and starts anew where what it is computed with has changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_runner.random_cells import RandomCell, random_cells
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.gpu import B200
from service.domain.scenario import Workload
from tests.requalify.cells import agreement, differences
from tests.requalify.finished import COMPUTED_WITH, ROOT, Finished, sources_sha256
from tests.requalify.scenarios import Scenario, ours, results
from tests.requalify.verdict import Equivalence, ScenarioResult, Side

SMALL = Scenario(
    index=0,
    model="Qwen/Qwen3-0.6B",
    workload=Workload(prompt_tokens=200, max_new_tokens=20, shared_prefix_ratio=0.0, concurrency=4),
)


def test_a_stopped_rehearsal_goes_on_where_it_was(tmp_path: Path) -> None:
    store = tmp_path / "scenarios.jsonl"
    asked = [replace(SMALL, index=index) for index in range(3)]
    chosen: list[dict[str, Any] | None] = [CANDIDATES[0].engine_args(), None, CANDIDATES[2].engine_args()]
    calls: list[int] = []

    def installed(scenario: Scenario, candidate: Candidate) -> Side:
        calls.append(scenario.index)
        return ours(scenario, candidate)

    def rehearse() -> list[ScenarioResult]:
        found = results(
            asked,
            chosen,
            installed_default=B200.engine_default,
            installed=installed,
            finished=Finished(store, sources="as now"),
        )
        return list(found)

    first = rehearse()
    # Two of three are recommended something, each of them runs twice; on one scheduler both sides are alike.
    assert ([one.scenario for one in first], calls) == ([0, 2], [0, 0, 2, 2])
    assert all(one.learnt == one.installed for one in first)
    # Stopped behind the first.
    store.write_text(store.read_text().splitlines()[0] + "\n")
    assert (rehearse(), calls[4:]) == (first, [2, 2])
    assert (rehearse(), calls[6:]) == (first, [])
    # Another recommendation is another question.
    chosen[0] = CANDIDATES[5].engine_args()
    rehearse()
    assert calls[6:] == [0, 0]


CELLS = list(random_cells(seed=28, count=8))


class Scheduler:
    """Differs from ours in some cells, fails in others, and counts what it is asked."""

    def __init__(self, *, differs: set[int] | None = None, fails: set[int] | None = None) -> None:
        self.differs, self.fails = differs or set(), fails or set()
        self.asked: list[int] = []

    def difference(self, cell: RandomCell) -> str | None:
        self.asked.append(cell.index)
        if cell.index in self.fails:
            raise AttributeError("no attribute\nof that name")
        return "step ends" if cell.index in self.differs else None

    def compared(self, path: Path, *, sources: str = "as now", cells: list[RandomCell] = CELLS) -> Equivalence:
        finished = Finished(path, sources=sources)
        return agreement(differences(cells, difference=self.difference, finished=finished), count=len(cells))


def test_a_stopped_comparison_asks_only_for_the_cells_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    scheduler = Scheduler(differs={2})
    expected = Equivalence(cells=8, agreed=7, first_difference="cell 2, step ends")
    assert (scheduler.compared(path), scheduler.asked) == (expected, list(range(8)))
    # Stopped behind the sixth.
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:6]))
    assert (scheduler.compared(path), scheduler.asked[8:]) == (expected, [6, 7])
    assert (scheduler.compared(path), scheduler.asked[10:]) == (expected, [])


def test_cells_of_another_run_are_other_cells(tmp_path: Path) -> None:
    path, scheduler = tmp_path / "cells.jsonl", Scheduler()
    scheduler.compared(path)
    assert scheduler.compared(path, cells=CELLS[:2]).agreed == 2
    assert scheduler.asked[8:] == [0, 1]


def test_after_the_simulator_was_changed_nothing_of_before_answers(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    assert Scheduler(differs={2}).compared(path).agreed == 7
    mended = Scheduler()
    assert (mended.compared(path, sources="mended").agreed, len(mended.asked)) == (8, 8)


def test_sources_are_told_apart_by_name_and_content(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"

    def seen() -> str:
        return sources_sha256(tmp_path, ("*.py",))

    first.write_text("rule = 1\n")
    before = seen()
    first.write_text("rule = 2\n")
    assert len({before, seen()}) == 2
    first.write_text("rule = 1\n")
    assert seen() == before
    first.rename(second)
    assert seen() != before
    # A pattern without a file would watch nothing.
    assert [pattern for pattern in COMPUTED_WITH if not any(ROOT.glob(pattern))] == []


def test_five_different_cells_are_enough(tmp_path: Path) -> None:
    scheduler = Scheduler(differs={1, 2, 3, 5, 6, 7})
    found = scheduler.compared(tmp_path / "cells.jsonl")
    assert found == Equivalence(cells=7, agreed=2, first_difference="cell 1, step ends")


def test_a_scheduler_that_fails_is_a_problem_and_its_cell_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    found = Scheduler(fails={3}).compared(path)
    assert found == Equivalence(cells=8, agreed=3, problem="AttributeError: no attribute of that name")
    mended = Scheduler()
    assert (mended.compared(path).agreed, mended.asked) == (8, [3, 4, 5, 6, 7])
