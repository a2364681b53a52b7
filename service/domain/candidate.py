"""The 15 candidate configurations, in the order in which they are scored and hashed."""

import hashlib
import json
from dataclasses import dataclass

from service.domain.scenario import check_bool, check_float, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One serving configuration: the four engine arguments that the ranker may set."""

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, high=1_000_000)
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, high=100_000_000)
        check_float("gpu_memory_utilization", self.gpu_memory_utilization, low=0.01, high=1.0)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)

    @property
    def config_id(self) -> str:
        """Readable, unique and stable, e.g. `s256-b8192-g0.90-p1`."""
        return (
            f"s{self.max_num_seqs}-b{self.max_num_batched_tokens}"
            f"-g{self.gpu_memory_utilization:.2f}-p{int(self.enable_prefix_caching)}"
        )

    def engine_args(self) -> dict[str, int | float | bool]:
        """The arguments by the names that vLLM's EngineArgs uses."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_prefix_caching": self.enable_prefix_caching,
        }

    def cli_args(self) -> tuple[str, ...]:
        """The arguments of `vllm serve`, one `--key=value` token each."""
        return tuple(cli_arg(name, value) for name, value in self.engine_args().items())


def cli_arg(name: str, value: float | bool) -> str:
    """One `vllm serve` token for an engine argument; a boolean that is off is spelled `--no-…`."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"


def _candidate(seqs: int, tokens: int, utilization: float, prefix_caching: bool) -> Candidate:
    return Candidate(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=utilization,
        enable_prefix_caching=prefix_caching,
    )


FIXED_INDEX = 0
GRID_MAX_NUM_SEQS = (32, 128, 512)

# fmt: off
CANDIDATES: tuple[Candidate, ...] = (
    _candidate(256, 8192, 0.90, True),
    _candidate(32, 2048, 0.45, True),
    _candidate(32, 2048, 0.85, True),
    _candidate(32, 8192, 0.45, True),
    _candidate(32, 8192, 0.85, True),
    _candidate(128, 2048, 0.45, True),
    _candidate(128, 2048, 0.85, True),
    _candidate(128, 8192, 0.45, True),
    _candidate(128, 8192, 0.85, True),
    _candidate(512, 2048, 0.45, True),
    _candidate(512, 2048, 0.85, True),
    _candidate(512, 8192, 0.45, True),
    _candidate(512, 8192, 0.85, True),
    _candidate(256, 8192, 0.90, False),
    _candidate(128, 2048, 0.85, False),
)
# fmt: on

INDEX_BY_CONFIG_ID: dict[str, int] = {c.config_id: i for i, c in enumerate(CANDIDATES)}


def candidates_fingerprint() -> str:
    """sha256 of the ordered candidates: scores are positional, so order is part of the contract."""
    payload = json.dumps([c.engine_args() for c in CANDIDATES], separators=(",", ":"))
    return hashlib.sha256(payload.encode()).hexdigest()
