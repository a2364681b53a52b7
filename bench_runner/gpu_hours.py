"""How long a plan keeps a GPU busy, estimated from its protocol alone."""

from dataclasses import dataclass
from typing import Self

from bench_runner.plan import CPU, Plan

# Assumed, not measured: load the weights of a model of a few billion parameters from a local disk, compile, capture
# CUDA graphs. A first start also downloads the weights, which no estimate can know.
START_UP_S = 120.0
# Until the server is idle, and for resetting its prefix cache.
BETWEEN_CELLS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHours:
    """servers · start_up_s + cells · (warm_up_s + window_s + between_cells_s), if nothing fails and nothing is evicted.

    A server is one (model, configuration) of the plan; it is started once and runs all its cells.
    """

    device: str
    servers: int
    cells: int
    start_up_s: float
    warm_up_s: float
    window_s: float
    between_cells_s: float = BETWEEN_CELLS_S

    @classmethod
    def of(cls, plan: Plan, *, start_up_s: float = START_UP_S) -> Self:
        """The estimate for a plan, with the given start-up time of a server."""
        keys = list(plan.cells())
        return cls(
            device=plan.gpu,
            servers=len({(key.model, key.config_id) for key in keys}),
            cells=len(keys),
            start_up_s=start_up_s,
            warm_up_s=plan.warm_up_s,
            window_s=plan.window_s,
        )

    @property
    def hours(self) -> float:
        """Hours on one device."""
        cell_s = self.warm_up_s + self.window_s + self.between_cells_s
        return (self.servers * self.start_up_s + self.cells * cell_s) / 3600

    def __str__(self) -> str:
        unit = "machine hours" if self.device == CPU else "GPU hours"
        hours = f"{self.hours:.1f}" if self.hours >= 1 else f"{self.hours:.2f}"
        return (
            f"estimate: {self.servers} servers × {self.start_up_s:g} s start-up (assumed, --start-up-s) + {self.cells} "
            f"cells × ({self.warm_up_s:g} + {self.window_s:g} + {self.between_cells_s:g}) s = {hours} {unit}"
        )
