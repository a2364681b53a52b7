"""GPUs by name, their memory, and what vLLM 0.28 starts with on each when the user sets nothing."""

from dataclasses import dataclass

from service.domain.candidate import Candidate
from service.domain.errors import UnknownNameError

ENGINE_VERSION = "0.28.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """memory_gib is what the engine can use of the device; where cache_only, it is what the KV cache alone is given,
    and gpu_memory_utilization has no effect."""

    name: str
    memory_gib: float
    aliases: tuple[str, ...] = ()
    cache_only: bool = False

    @property
    def short_name(self) -> str:
        """What a person calls it."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def engine_default(self) -> Candidate:
        """vLLM 0.28 get_batch_defaults for the OpenAI API server, by device memory (engine/arg_utils.py)."""
        if self.cache_only:
            seqs, tokens = 128, 2048
        elif self.memory_gib >= 160:
            seqs, tokens = 1024, 16384
        elif self.memory_gib >= 70 and "a100" not in self.name.casefold():
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

# Memory of the other devices: the total that CUDA gives the engine (PyTorch's "total capacity" in public logs; behind
# each what nvidia-smi shows, which is more), rounded down. They are listed so that a user of one gets its numbers and
# an honest "not trained for this GPU" instead of a refusal. Names are the node label nvidia.com/gpu.product.
# fmt: off
GPUS: tuple[Gpu, ...] = (
    B200,  # 183,359 MiB
    Gpu(name="NVIDIA-B300-SXM6-AC", memory_gib=267.0, aliases=("B300",)),  # 275,040 MiB
    Gpu(name="NVIDIA-GB200", memory_gib=184.0, aliases=("GB200",)),  # 189,471 MiB
    Gpu(name="NVIDIA-H200", memory_gib=139.0, aliases=("H200", "H200 SXM", "NVIDIA H200")),  # 143,771 MiB
    Gpu(name="NVIDIA-H200-NVL", memory_gib=139.0, aliases=("H200 NVL",)),  # 143,771 MiB
    Gpu(name="NVIDIA-GH200-480GB", memory_gib=94.0, aliases=("GH200",)),  # 97,871 MiB
    Gpu(name="NVIDIA-H100-80GB-HBM3", memory_gib=79.0,
        aliases=("H100", "H100-80GB", "H100 SXM", "H100 SXM5", "NVIDIA-H100", "NVIDIA H100 80GB HBM3")),  # 81,559 MiB
    Gpu(name="NVIDIA-H100-PCIe", memory_gib=79.0, aliases=("H100 PCIe", "H100 80GB PCIe")),  # 81,559 MiB
    Gpu(name="NVIDIA-H100-NVL", memory_gib=93.0, aliases=("H100 NVL",)),  # 95,830 MiB
    Gpu(name="NVIDIA-H20", memory_gib=95.0, aliases=("H20",)),  # 97,871 MiB
    Gpu(name="NVIDIA-A100-SXM4-80GB", memory_gib=79.0,
        aliases=("A100", "A100-80", "A100-80GB", "A100 SXM", "NVIDIA A100-SXM4-80GB")),  # 81,920 MiB
    Gpu(name="NVIDIA-A100-80GB-PCIe", memory_gib=79.0, aliases=("A100 PCIe", "A100 PCIe 80GB")),  # 81,920 MiB
    Gpu(name="NVIDIA-A100-SXM4-40GB", memory_gib=39.0,
        aliases=("A100-40GB", "A100-40", "NVIDIA A100-SXM4-40GB")),  # 40,960 MiB
    Gpu(name="NVIDIA-A100-PCIE-40GB", memory_gib=39.0, aliases=("A100 PCIe 40GB",)),  # 40,960 MiB
    Gpu(name="NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", memory_gib=94.9,
        aliases=("RTX PRO 6000", "RTX PRO 6000 Blackwell")),  # 97,887 MiB
    Gpu(name="NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", memory_gib=94.9,
        aliases=("RTX PRO 6000 Workstation",)),  # 97,887 MiB
    Gpu(name="NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", memory_gib=94.9,
        aliases=("RTX PRO 6000 Max-Q",)),  # 97,887 MiB
    Gpu(name="NVIDIA-RTX-6000-Ada-Generation", memory_gib=47.4, aliases=("RTX 6000 Ada",)),  # 49,140 MiB
    Gpu(name="NVIDIA-L40S", memory_gib=44.0, aliases=("L40S", "NVIDIA L40S")),  # 46,068 MiB
    Gpu(name="NVIDIA-L40", memory_gib=44.0, aliases=("L40",)),  # 46,068 MiB
    Gpu(name="NVIDIA-RTX-A6000", memory_gib=47.4, aliases=("RTX A6000", "A6000")),  # 49,140 MiB
    Gpu(name="NVIDIA-L20", memory_gib=44.0, aliases=("L20",)),  # 46,068 MiB; 44.53 GiB in logs
    Gpu(name="NVIDIA-GeForce-RTX-4090", memory_gib=23.5, aliases=("RTX 4090",)),  # 24,564 MiB; 23.52 to 23.64 in logs
    Gpu(name="NVIDIA-A10", memory_gib=22.0, aliases=("A10", "NVIDIA A10")),  # 23,028 MiB
    Gpu(name="NVIDIA-A10G", memory_gib=21.9, aliases=("A10G",)),  # 23,028 MiB
    Gpu(name="NVIDIA-L4", memory_gib=22.0, aliases=("L4", "NVIDIA L4")),  # 23,034 MiB
    Gpu(name="NVIDIA-A30", memory_gib=23.0, aliases=("A30",)),  # 24,576 MiB
    Gpu(name="Tesla-V100-SXM2-32GB", memory_gib=31.7, aliases=("V100-32GB", "V100 SXM2 32GB")),  # 32,768 MiB
    Gpu(name="Tesla-V100-PCIE-32GB", memory_gib=31.7, aliases=("V100 PCIe 32GB",)),  # 32,768 MiB
    Gpu(name="Tesla-V100-SXM2-16GB", memory_gib=15.7, aliases=("V100", "V100-16GB", "V100 SXM2 16GB")),  # 16,384 MiB
    Gpu(name="Tesla-V100-PCIE-16GB", memory_gib=15.7, aliases=("V100 PCIe 16GB",)),  # 16,384 MiB
    Gpu(name="Tesla-T4", memory_gib=14.5, aliases=("T4", "NVIDIA-T4")),  # 15,360 MiB
)
# fmt: on
# A machine without a GPU, for rows and bundles of evidence class measured-cpu. No such machine has a size by its name:
# VLLM_CPU_KVCACHE_SPACE gives it one, so whoever asks about it says what it is. Not among those offered.
CPU = Gpu(name="CPU", memory_gib=1.0, cache_only=True)
# Names that devices of another size have, too; what they are taken for has to be said.
_SHORT_OF_A_SIZE = ("A100", "A100 SXM", "A100 PCIe", "V100")


def spelling(name: str) -> str:
    """What is alike in the spellings of a name: nvidia-smi's spaces are a node label's hyphens, and case is nothing."""
    words = name.casefold().replace("_", " ").replace("-", " ").split()
    return "-".join(words[1:] if words[:1] == ["nvidia"] else words)


_BY_SPELLING = {spelling(alias): gpu for gpu in (*GPUS, CPU) for alias in (gpu.name, *gpu.aliases)}
_AMBIGUOUS = frozenset(map(spelling, _SHORT_OF_A_SIZE))
# The spellings that there are come again and again.
_BY_NAME = {alias: gpu for gpu in (*GPUS, CPU) for alias in (gpu.name, *gpu.aliases)}


def gpu_by_name(name: str) -> Gpu:
    """The GPU of that name or alias, as nvidia-smi, a node label or a person spells it; UnknownNameError lists all.

    A slice of a device (…-MIG-1g.10gb) or a share of it (…-SHARED) is another device than the whole.
    """
    found = _BY_NAME.get(name) or _BY_SPELLING.get(spelling(name))
    if found is None:
        raise UnknownNameError(path="gpu", value=name, known=(gpu.short_name for gpu in GPUS))
    return found


def leaves_size_open(name: str) -> bool:
    """Whether devices of another memory have that name, too: an A100 may have 40 GB, and is taken for one of 80."""
    return spelling(name) in _AMBIGUOUS
