"""A set of scenarios with several draws each: what policies are judged on, what oracles may look at."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline.robust.lists import NOMINAL_DRAW, Lists, Outcomes
from service.domain.errors import ArtefactError


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """scenarios: one list each, for its features. judged: [scenarios, draws, 16].

    with_oracle: [k] scenarios that have further draws; further: [k, oracle draws, 16]; nominal: [k, 16], the outcome if
    exactly what was announced comes; None where a set has none.
    """

    scenarios: Lists
    judged: Outcomes
    with_oracle: NDArray[np.int64]
    further: Outcomes | None
    nominal: Outcomes | None

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def draws(self) -> int:
        """Draws of the true workload that a policy is judged on."""
        return int(self.judged.met.shape[1])

    def part(self, rows: NDArray[np.int64]) -> "Panel":
        """Some of the scenarios."""
        position = {int(row): number for number, row in enumerate(self.with_oracle)}
        kept = [(new, position[int(row)]) for new, row in enumerate(rows) if int(row) in position]
        inside = np.array([old for _, old in kept], dtype=np.int64)
        return Panel(
            scenarios=self.scenarios[rows],
            judged=self.judged[rows],
            with_oracle=np.array([new for new, _ in kept], dtype=np.int64),
            further=None if self.further is None else self.further[inside],
            nominal=None if self.nominal is None else self.nominal[inside],
        )


def panel_of(lists: Lists, *, draws: int) -> Panel:
    """Groups the lists of a set; ArtefactError if a scenario lacks one of its draws."""
    order = np.lexsort((lists.draw, lists.scenario))
    lists = lists[order]
    judged = lists[lists.draw < draws]
    count = len(np.unique(lists.scenario))
    if len(judged) != count * draws or not (judged.draw.reshape(count, draws) == np.arange(draws)).all():
        raise ArtefactError(f"{len(judged)} lists are not {count} scenarios of {draws} draws; simulate the set again")
    first = judged[judged.draw == 0]
    further = lists[(lists.draw >= draws) & (lists.draw != NOMINAL_DRAW)]
    nominal = lists[lists.draw == NOMINAL_DRAW]
    chosen = np.unique(further.scenario)
    return Panel(
        scenarios=first,
        judged=judged.outcomes.reshape(count, draws),
        with_oracle=np.searchsorted(first.scenario, chosen),
        further=further.outcomes.reshape(len(chosen), len(further) // len(chosen)) if len(chosen) else None,
        nominal=nominal.outcomes if len(chosen) and len(nominal) == len(chosen) else None,
    )
