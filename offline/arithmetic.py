"""The same weights on every x86-64 CPU: what must be settled before torch computes anything.

Left alone, torch and MKL take the widest kernels that the CPU has, AVX-512 here and AVX2 there. They add in another
order, the last bits differ, and 400 epochs make other weights of them: a bundle that only one kind of CPU can make
again, and a registration that every other kind must refuse. The plainest kernels cost half as much time again, seconds
for this network. LightGBM needs nothing here: its sums are scalar, and `trees` asks for one thread.
"""

import os

import torch

# Read once, when the first kernel runs; importing torch does not do so yet.
_PLAINEST_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}


def pin_arithmetic() -> None:
    """Plainest kernels, one thread, deterministic algorithms; RuntimeError if a kernel ran before with others."""
    os.environ.update(_PLAINEST_KERNELS)
    # Asking for the level settles it too.
    level = torch.backends.cpu.get_cpu_capability()
    if level != "DEFAULT":
        raise RuntimeError(f"torch computes with {level} kernels already; call pin_arithmetic before anything else")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
