"""What the measuring machine is: recorded with every run, compared when a sweep goes on."""

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench_runner.plan import CPU
from service.domain.errors import ArtefactError, UnknownNameError
from service.domain.gpu import gpu_by_name

Device = Literal["gpu", "cpu"]
QUERY = "name,memory.total,driver_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Names of parts, never of the host. gpu_memory_mib and driver are None without a GPU."""

    device: Device
    gpu: str
    gpu_memory_mib: int | None
    driver: str | None
    host_cpu: str
    host_cores: int
    host_memory_gib: float
    kernel: str
    python: str
    commit: str | None

    def to_json(self) -> dict[str, Any]:
        """The members of a run file."""
        return asdict(self)

    @property
    def identity(self) -> tuple[str, int | None, str | None, str]:
        """What must stay the same for rows to share a folder."""
        return (self.gpu, self.gpu_memory_mib, self.driver, self.host_cpu if self.device == "cpu" else "")


def this_machine(device: Device) -> Machine:
    """Reads nvidia-smi, /proc and git. ArtefactError if a GPU is asked for and there is none."""
    name, memory, driver = (CPU, None, None) if device == "cpu" else _gpu()
    return Machine(
        device=device,
        gpu=name,
        gpu_memory_mib=memory,
        driver=driver,
        host_cpu=_cpu_model(),
        host_cores=len(os.sched_getaffinity(0)),
        host_memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        commit=_commit(),
    )


def check_machine(machine: Machine, *, gpu: str) -> None:
    """A plan for one GPU is not filled on another. ArtefactError names both."""
    found = _known_name(machine)
    if found != gpu:
        raise ArtefactError(
            f"the plan is for {gpu}, this machine has {found}; write one for it with `bench_runner plan --gpu {found}`"
        )


def _known_name(machine: Machine) -> str:
    """The name that plans use: ours for a GPU that we know, else nvidia-smi's."""
    if machine.device == "cpu":
        return CPU
    try:
        return gpu_by_name(machine.gpu).name
    except UnknownNameError:
        return machine.gpu


def _gpu() -> tuple[str, int | None, str | None]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise ArtefactError("no GPU: nvidia-smi is not on PATH; run on a GPU machine, or measure with --device cpu")
    command = [tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired as error:
        raise ArtefactError("no GPU: nvidia-smi does not answer within 30 s; look at the driver") from error
    if answer.returncode or not answer.stdout.strip():
        reason = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or ["no output"]
        raise ArtefactError(
            f"no GPU: nvidia-smi says {reason[0]!r}; run on a GPU machine, or measure with --device cpu"
        )
    name, memory, driver = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
    return name, int(memory) if memory.isdecimal() else None, driver


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str | None:
    """The commit of this checkout, `+` behind it if files differ; an image says it in MEMORYPOLICY_COMMIT."""
    root = Path(__file__).parent.parent
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return os.environ.get("MEMORYPOLICY_COMMIT")
    head, changes = (
        subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "") if head.returncode == 0 else None
