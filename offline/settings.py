"""Everything that a run of training and evaluation can be told; all of it is registered before the test is opened."""

from dataclasses import asdict, dataclass, field
from typing import Any

from service.domain.scenario import check_float, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One setting of AdamW; batch_lists: ranking lists per step."""

    learning_rate: float
    weight_decay: float
    batch_lists: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The MLP's training. The grid is the product of the three tuples, in this order, the first value the simplest.

    epochs, seed and temperature are the reference's; learning rate, weight decay and batch it did not publish.
    """

    epochs: int = 400
    seed: int = 0
    temperature: float = 0.1
    batch_lists: tuple[int, ...] = (48, 16, 8)
    learning_rates: tuple[float, ...] = (0.001, 0.0003, 0.003)
    weight_decays: tuple[float, ...] = (0.0, 0.01, 0.1)

    def __post_init__(self) -> None:
        check_int("epochs", self.epochs, high=1_000_000)
        check_int("seed", self.seed, low=0, high=2**31)
        check_float("temperature", self.temperature, low=1e-6, high=1e6)
        if not (self.batch_lists and self.learning_rates and self.weight_decays):
            raise ValueError("the grid needs at least one batch size, learning rate and weight decay")

    def grid(self) -> tuple[GridPoint, ...]:
        """All combinations, simplest first: an exact tie on dev goes to the earlier one."""
        return tuple(
            GridPoint(learning_rate=rate, weight_decay=decay, batch_lists=batch)
            for batch in self.batch_lists
            for rate in self.learning_rates
            for decay in self.weight_decays
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """LightGBM's classifier and regressor: small trees, because there are 720 rows."""

    rounds: int = 200
    learning_rate: float = 0.05
    num_leaves: int = 15
    min_data_in_leaf: int = 5
    seed: int = 0
    threshold: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSettings:
    """Paired bootstrap over scenarios, percentile interval."""

    replicates: int = 2000
    confidence: float = 0.95
    seed: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one run."""

    training: TrainingSettings = field(default_factory=TrainingSettings)
    trees: TreeSettings = field(default_factory=TreeSettings)
    bootstrap: BootstrapSettings = field(default_factory=BootstrapSettings)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)
