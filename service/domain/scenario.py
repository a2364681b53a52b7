"""A scenario is one ranking query: a model architecture under an announced workload."""

from dataclasses import dataclass, field

from service.domain.architecture import Architecture
from service.domain.errors import InvalidInputError

# Upper bounds refuse typing errors (a byte count for a token count), not large deployments.
MAX_TOKENS = 10_000_000
MAX_CONCURRENCY = 100_000
MAX_WEIGHT_GB = 10_000.0
MAX_LAYERS = 1_000
MAX_HIDDEN_SIZE = 1_000_000
MAX_KV_BYTES_PER_TOKEN = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the user announces before launch. Every request carries the same numbers.

    prompt_tokens and max_new_tokens in tokens per request; shared_prefix_ratio is the designed share of
    the prompt that all requests have in common (0 to 1); concurrency is the number of clients in a closed loop.
    """

    prompt_tokens: int
    max_new_tokens: int
    shared_prefix_ratio: float
    concurrency: int

    def __post_init__(self) -> None:
        check_int("prompt_tokens", self.prompt_tokens, high=MAX_TOKENS)
        check_int("max_new_tokens", self.max_new_tokens, high=MAX_TOKENS)
        check_float("shared_prefix_ratio", self.shared_prefix_ratio, low=0.0, high=1.0)
        check_int("concurrency", self.concurrency, high=MAX_CONCURRENCY)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of one request when it ends."""
        return self.prompt_tokens + self.max_new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArch:
    """The numbers of a model that the ranker and the memory rules need.

    weight_gb: loaded weights in 1e9 bytes, tied embeddings once; kv_bytes_per_token: key and value of all layers.
    max_model_len: the context the engine derives when none is set, None where only four numbers were given.
    architecture: how its config.json was read, None where only numbers were given; models of equal numbers are equal.
    """

    weight_gb: float
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    name: str | None = None
    max_model_len: int | None = None
    parameters: int | None = None
    assumed: tuple[tuple[str, str | int | bool], ...] = ()
    architecture: Architecture | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_float("weight_gb", self.weight_gb, low=0.001, high=MAX_WEIGHT_GB)
        check_int("num_layers", self.num_layers, high=MAX_LAYERS)
        check_int("hidden_size", self.hidden_size, high=MAX_HIDDEN_SIZE)
        check_int("kv_bytes_per_token", self.kv_bytes_per_token, high=MAX_KV_BYTES_PER_TOKEN)
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len, high=MAX_TOKENS * 10)

    @property
    def kind(self) -> str:
        """What its config.json describes; of a model by numbers only the size is known."""
        return "dense" if self.architecture is None else self.architecture.kind

    @property
    def quantisation(self) -> str | None:
        """The method of quantised weights, None for 16-bit ones."""
        return None if self.architecture is None else self.architecture.quantisation

    @property
    def adapter(self) -> str | None:
        """The LoRA adapters that are served on it, in words; their memory is part of weight_gb."""
        return None if self.architecture is None else self.architecture.adapter

    @property
    def adapter_args(self) -> dict[str, int | bool]:
        """The engine's arguments that make room for its adapters."""
        return {} if self.architecture is None else dict(self.architecture.adapter_args)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not counted, or not exactly."""
        return () if self.architecture is None else self.architecture.warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model under a workload; refuses requests longer than the model's own context."""

    model: ModelArch
    workload: Workload

    def __post_init__(self) -> None:
        limit = self.model.max_model_len
        if limit is not None and self.workload.sequence_tokens > limit:
            raise InvalidInputError(
                path="workload.prompt_tokens",
                value=self.workload.prompt_tokens,
                remedy=f"prompt_tokens + max_new_tokens = {self.workload.sequence_tokens} exceeds the "
                f"{limit}-token context of {self.model.name or 'this model'}; shorten one of them",
            )


def check_int(path: str, value: object, *, low: int = 1, high: int) -> int:
    """The value if it is a whole number in [low, high]; bool is not a number here."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInputError(path=path, value=value, remedy=f"give a whole number from {low} to {high}")
    return value


def check_bool(path: str, value: object) -> bool:
    """The value if it is true or false and not merely truthy."""
    if not isinstance(value, bool):
        raise InvalidInputError(path=path, value=value, remedy="give true or false")
    return value


def check_float(path: str, value: object, *, low: float, high: float) -> float:
    """The value as a float if it is in [low, high]; the bounds are finite, so NaN and infinities are refused."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise InvalidInputError(path=path, value=value, remedy=f"give a finite number from {low:g} to {high:g}")
