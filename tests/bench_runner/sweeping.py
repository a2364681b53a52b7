"""A small plan, and the command line that fills it on scripted servers."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_runner.plan import CPU, Plan, reference_plan, save_plan
from service.domain.candidate import Candidate
from service.domain.reference import NamedWorkload
from tests.bench_runner.scripted import server_command

ROOT = Path(__file__).parents[2]


def candidate(max_num_seqs: int) -> Candidate:
    return Candidate(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=2048, gpu_memory_utilization=0.9, enable_prefix_caching=True
    )


def small_plan(*, configs: int = 2, concurrencies: tuple[int, ...] = (2,), window_s: float = 0.4) -> Plan:
    """One model, prompts of 64 tokens of which half are shared, answers of 8; configurations with 4, 8, 12 … places."""
    whole = reference_plan()
    return replace(
        whole,
        name="small",
        gpu=CPU,
        memory_gib=1.0,
        models=whole.models[:1],
        workloads=(
            NamedWorkload(name="short", prompt_tokens=64, max_new_tokens=8, shared_prefix_ratio=0.5, split="train"),
        ),
        concurrencies=concurrencies,
        candidates=tuple(candidate(4 * (index + 1)) for index in range(configs)),
        warm_up_s=0.2,
        window_s=window_s,
    )


def sweep_arguments(folder: Path, plan: Plan, *, options: Sequence[str] = (), **script: Any) -> list[str]:
    """`bench_runner sweep …` on scripted servers, results in folder/results."""
    save_plan(plan, folder / "plan.json")
    return [
        "sweep",
        f"--plan={folder / 'plan.json'}",
        f"--results={folder / 'results'}",
        "--device=cpu",
        f"--server-command={shlex.join(server_command(folder, **script))}",
        *options,
    ]


def start_runner(arguments: Sequence[str], *, largest_file_bytes: int | None = None) -> subprocess.Popen[str]:
    """The program as a process of its own; with a limit, longer files cannot be written, as on a full disk."""
    program = [sys.executable, "-m", "bench_runner"]
    if largest_file_bytes is not None:
        limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file_bytes},) * 2)"
        program = [
            sys.executable,
            "-c",
            f"import resource, sys; {limit}; from bench_runner.__main__ import main; sys.exit(main())",
        ]
    return subprocess.Popen(
        [*program, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_runner(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The program, run to its end."""
    with start_runner(arguments) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(list(arguments), process.returncode, out, err)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows on disk, torn ones as an error."""
    return [
        json.loads(line)
        for file in sorted((folder / "results").glob("cells-*.jsonl"))
        for line in file.read_text().splitlines()
    ]
