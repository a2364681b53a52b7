"""Random cells on our scheduler and the installed one: where they differ first, if at all."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bench_runner.random_cells import RandomCell
from bench_runner.stop import InterruptedRunError
from tests.requalify.finished import Finished
from tests.requalify.verdict import Equivalence

# Seen once is enough to know that it decides otherwise; which cells it are is the equivalence's own business.
MOST_DIFFERENT = 5
# Simulated time of a cell.
VIRTUAL_MS = 4000.0


def differences(
    cells: Sequence[RandomCell], *, difference: Callable[[RandomCell], str | None], finished: Finished
) -> Iterator[str | None]:
    """None for a cell that agrees, otherwise the difference; cells that are finished are not run again."""
    for cell in cells:
        # Which cell an index is depends on how many there are.
        key = f"cell {cell.index} of {len(cells)}, seed {cell.seed}, {VIRTUAL_MS:g} ms"
        if key not in finished:
            finished.keep(key, difference(cell))
        found: str | None = finished[key]
        yield None if found is None else f"cell {cell.index}, {found}"


def agreement(found: Iterable[str | None], *, count: int) -> Equivalence:
    """Counts them until enough differ or none can be run any more; `count` cells were asked for."""
    agreed, different, first = 0, 0, None
    try:
        for one in found:
            agreed += one is None
            different += one is not None
            first = first or one
            if different == MOST_DIFFERENT:
                return Equivalence(cells=agreed + different, agreed=agreed, first_difference=first)
    except InterruptedRunError:
        raise
    except Exception as error:
        # Another version's scheduler may fail in any way; that it cannot be driven as 0.28's is the finding.
        return Equivalence(cells=count, agreed=agreed, problem=one_line(error))
    return Equivalence(cells=count, agreed=agreed, first_difference=first)


def one_line(error: Exception) -> str:
    """What went wrong, for a report of lines."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
