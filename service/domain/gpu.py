"""GPUs by name, their memory, and what vLLM 0.28 starts with on each when the user sets nothing."""

from dataclasses import dataclass

from service.domain.candidate import Candidate
from service.domain.errors import UnknownNameError

ENGINE_VERSION = "0.28.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """memory_gib is what the engine can use of the device."""

    name: str
    memory_gib: float
    aliases: tuple[str, ...] = ()

    @property
    def engine_default(self) -> Candidate:
        """vLLM 0.28 get_batch_defaults for the OpenAI API server, by device memory (engine/arg_utils.py)."""
        if self.memory_gib >= 160:
            seqs, tokens = 1024, 16384
        elif self.memory_gib >= 70 and "A100" not in self.name:
            seqs, tokens = 1024, 8192
        else:
            seqs, tokens = 256, 2048
        return Candidate(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=0.92,
            enable_prefix_caching=True,
        )


B200 = Gpu(name="NVIDIA-B200", memory_gib=178.0, aliases=("B200", "NVIDIA B200"))

# Memory of the other devices: vendors' data sheets, less what the driver reserves, rounded down to GiB. They are
# listed so that a user of one gets its numbers and an honest "not trained for this GPU" instead of a refusal.
GPUS: tuple[Gpu, ...] = (
    B200,
    Gpu(name="NVIDIA-H200", memory_gib=139.0, aliases=("H200", "NVIDIA H200")),
    Gpu(name="NVIDIA-H100-80GB-HBM3", memory_gib=79.0, aliases=("H100", "NVIDIA-H100", "NVIDIA H100 80GB HBM3")),
    Gpu(name="NVIDIA-A100-SXM4-80GB", memory_gib=79.0, aliases=("A100", "A100-80GB", "NVIDIA A100-SXM4-80GB")),
    Gpu(name="NVIDIA-A100-SXM4-40GB", memory_gib=39.0, aliases=("A100-40GB", "NVIDIA A100-SXM4-40GB")),
    Gpu(name="NVIDIA-L40S", memory_gib=44.0, aliases=("L40S", "NVIDIA L40S")),
    Gpu(name="NVIDIA-A10", memory_gib=22.0, aliases=("A10", "NVIDIA A10")),
    Gpu(name="NVIDIA-L4", memory_gib=22.0, aliases=("L4", "NVIDIA L4")),
)

_BY_ALIAS = {alias.casefold(): gpu for gpu in GPUS for alias in (gpu.name, *gpu.aliases)}


def gpu_by_name(name: str) -> Gpu:
    """The GPU of that name or alias, ignoring case; UnknownNameError lists the known ones."""
    found = _BY_ALIAS.get(name.strip().casefold())
    if found is None:
        raise UnknownNameError(path="gpu", value=name, known=(gpu.name for gpu in GPUS))
    return found
