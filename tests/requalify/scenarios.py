"""Scenarios on two schedulers: what was recommended and the engine's default, on ours and on the installed one."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench_runner.measurement import COMPLETED, TOKENS, WITH_TPOT, new_recorder, percentile
from bench_runner.reference_loop import run_with
from bench_runner.request_stream import longest
from bench_runner.simulator import Load, SimulationSettings, Window, new_engine, simulate
from bench_runner.step_time import StepTables, load_step_tables
from service.domain.candidate import Candidate
from service.domain.catalogue import model_by_name
from service.domain.gpu import B200
from service.domain.memory import kv_blocks
from service.domain.scenario import Workload
from service.domain.slo import REFERENCE_SLO
from tests.requalify.finished import Finished
from tests.requalify.verdict import Rehearsal, ScenarioResult, Side

ROOT = Path(__file__).resolve().parents[2]
SERVICE = Path(os.environ.get("MEMORYPOLICY_TEST_SERVICE_PYTHON", ROOT / ".venv" / "bin" / "python"))
SEED = 28
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B")
WINDOW = Window(warm_up_ms=1250.0, length_ms=3000.0)
MOST_REQUESTS = 400_000

Simulate = Callable[["Scenario", Candidate], Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model of the catalogue under a workload, on a B200."""

    index: int
    model: str
    workload: Workload

    def arguments(self) -> list[str]:
        """Of `python -m service recommend`."""
        flags = [
            f"--{name.replace('_', '-')}={getattr(self.workload, name)}" for name in self.workload.__dataclass_fields__
        ]
        return ["recommend", f"--model={self.model}", f"--gpu={B200.short_name}", "--json", *flags]


def scenarios(count: int) -> list[Scenario]:
    """Log-uniform lengths and concurrency inside what the bundle was trained for; the same for every engine."""
    rng = np.random.default_rng(SEED)

    def log_uniform(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    return [
        Scenario(
            index=index,
            model=MODELS[int(rng.integers(len(MODELS)))],
            workload=Workload(
                prompt_tokens=log_uniform(64, 16_000),
                max_new_tokens=log_uniform(16, 1_024),
                shared_prefix_ratio=float(rng.choice([0.0, 0.0, 0.5, 0.8])),
                concurrency=log_uniform(4, 400),
            ),
        )
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Of the service to each scenario: the engine arguments that are recommended, None where its default is kept."""

    bundle: str
    chosen: tuple[dict[str, Any] | None, ...]


def recommended(asked: list[Scenario]) -> Answers:
    """What the service's own bundle recommends."""
    done = subprocess.run(
        [SERVICE, "-m", "tests.requalify.answers"],
        cwd=ROOT,
        input=json.dumps([one.arguments() for one in asked]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the service did not answer: {done.stderr.strip()[-300:]}")
    answers = json.loads(done.stdout)
    return Answers(
        bundle=", ".join(sorted({answer["bundle"] for answer in answers})),
        chosen=tuple(answer["set"] for answer in answers),
    )


def results(
    asked: list[Scenario],
    chosen: Sequence[dict[str, Any] | None],
    *,
    installed_default: Candidate,
    installed: Simulate,
    finished: Finished,
) -> Iterator[ScenarioResult]:
    """One result for each recommendation; those that are finished already are not run again."""
    for scenario, arguments in zip(asked, chosen, strict=True):
        if arguments is None:
            continue
        candidate = Candidate(**arguments)
        # What was run for another bundle or other defaults is another question.
        key = f"{scenario}|{candidate.config_id}|{installed_default.config_id}"
        if key not in finished:
            result = ScenarioResult(
                scenario=scenario.index,
                learnt=(ours(scenario, candidate), ours(scenario, B200.engine_default)),
                installed=(installed(scenario, candidate), installed(scenario, installed_default)),
            )
            finished.keep(key, asdict(result))
        kept = finished[key]
        yield ScenarioResult(
            scenario=kept["scenario"], learnt=_both(kept["learnt"]), installed=_both(kept["installed"])
        )


def _both(sides: list[dict[str, Any]]) -> tuple[Side, Side]:
    chosen, default = sides
    return Side(**chosen), Side(**default)


@cache
def _tables() -> StepTables:
    return load_step_tables(system="b200_sxm")


def _blocks(scenario: Scenario, candidate: Candidate) -> int:
    return kv_blocks(model_by_name(scenario.model), candidate, memory_gib=B200.memory_gib)


def ours(scenario: Scenario, candidate: Candidate) -> Side:
    """On the fast simulator, whose rules are those of the vLLM that was learnt for."""
    seen = simulate(
        Load.of(scenario.workload).stream(),
        candidate,
        kv_blocks=_blocks(scenario, candidate),
        table=_tables().of(scenario.model),
        settings=SimulationSettings(),
        window=WINDOW,
        seed=scenario.index,
    )
    return _side(seen.tokens, seen.ttft_percentile(95), seen.tpot_percentile(95))


def on_installed(scenario: Scenario, candidate: Candidate) -> Side:
    """On the installed engine's own scheduler, with everything else as in ours."""
    from bench_runner.reference_scheduler import ReferenceScheduler

    stream = Load.of(scenario.workload).stream()
    blocks = _blocks(scenario, candidate)
    engine = new_engine(
        stream,
        candidate,
        kv_blocks=blocks,
        table=_tables().of(scenario.model),
        settings=SimulationSettings(),
        seed=scenario.index,
    )
    scheduler = ReferenceScheduler(
        requests=engine.requests,
        limits=engine.limits,
        blocks=blocks,
        caching=candidate.enable_prefix_caching,
        max_model_len=max(longest(stream), 64),
    )
    recorder = run_with(
        scheduler, engine, new_recorder(start_ms=WINDOW.warm_up_ms, end_ms=WINDOW.end_ms, capacity=MOST_REQUESTS)
    )
    return _side(
        int(recorder.counts[TOKENS]),
        percentile(recorder.ttft_ms[: recorder.counts[COMPLETED]], 95),
        percentile(recorder.tpot_ms[: recorder.counts[WITH_TPOT]], 95),
    )


def _side(tokens: int, ttft_p95_ms: float | None, tpot_p95_ms: float | None) -> Side:
    met = ttft_p95_ms is not None and REFERENCE_SLO.met(
        ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, error_rate=0.0
    )
    return Side(goodput_tps=1000 * tokens / WINDOW.length_ms if met else 0.0, slo_met=met)


def nothing(problem: str, *, asked: int) -> Rehearsal:
    """A rehearsal that could not be held."""
    return Rehearsal(bundle=None, asked=asked, kept=0, results=(), problem=problem)
