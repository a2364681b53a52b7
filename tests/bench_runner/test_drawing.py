import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner.drawing import draw
from bench_runner.plan import Plan, engine_default_plan, reference_plan, save_plan
from bench_runner.plan_request import PlanRequest
from bench_runner.report import read_cells
from bench_runner.results import PLAN_FILE, write_parquet
from bench_runner.scenario_cells import CellsOfPlan, ScenarioCells
from service.domain.cell import CellResult, Evidence, Provenance
from service.domain.errors import ArtefactError, InvalidInputError, MemoryPolicyError, UnknownNameError
from service.domain.slo import Slo

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "bench_runner" / "cells"
FAST, SLOW = "s64-b4096-g0.90-p1", "s8-b2048-g0.90-p1"


def own_plan() -> Plan:
    """One scenario under three configurations, the last of which is the engine's default."""
    request = PlanRequest(
        base=reference_plan(),
        name="mine",
        models=["Qwen/Qwen3-4B"],
        workloads=["agent"],
        concurrencies=[16],
        configs=[FAST, SLOW],
        engine_default=True,
    )
    return replace(request.plan(), slo=Slo(max_p95_ttft_ms=777.0))


def results_of(plan: Plan, *, evidence: Evidence = "measured") -> list[CellResult]:
    """FAST meets the SLO with 1,234 tokens/s, SLOW violates it, the engine's default did not start."""
    provenance = Provenance(
        evidence=evidence, gpu=plan.gpu, engine_version="0.28.0", scheduler="vllm serve 0.28.0", step_times="wall clock"
    )
    results = []
    for key, (tps, ttft_ms) in zip(plan.cells(), [(1234.0, 55.0), (432.0, 8765.0), (0.0, None)], strict=True):
        failed = ttft_ms is None
        results.append(
            CellResult(
                key=key,
                workload=plan.workload(key),
                plan_sha256=plan.sha256,
                provenance=provenance,
                status="failed" if failed else "ok",
                failure_cause="server_did_not_start" if failed else None,
                completed=0 if failed else 100,
                waiting_at_end=None,
                running_at_end=None,
                error_rate=1.0 if failed else 0.0,
                output_throughput_tps=tps,
                ttft_p50_ms=None,
                ttft_p95_ms=ttft_ms,
                tpot_p50_ms=None,
                tpot_p95_ms=None,
                kv_usage_peak=None,
                preemptions=None,
                cached_token_ratio=None,
                slo_met=key.config_id == FAST,
            )
        )
    return results


def folder_of(plan: Plan, results: list[CellResult], path: Path) -> Path:
    """A folder as a sweep leaves it: two shards, how it was measured beside each row, the last line torn."""
    path.mkdir()
    save_plan(plan, path / PLAN_FILE)
    for index in (0, 1):
        rows = [json.dumps({**result.to_row(), "run": {"flags": ["--x"]}}) for result in results[index::2]]
        torn = "" if index else '{"schema_version": 1, "cell'
        (path / f"cells-0000{index}-of-00002.jsonl").write_text("\n".join([*rows, torn]))
    return path


def agent(source: CellsOfPlan, **choices: object) -> ScenarioCells:
    wanted = {"model": "Qwen/Qwen3-4B", "workload": "agent", "concurrency": 16, **choices}
    return ScenarioCells.of(source, **wanted)  # type: ignore[arg-type] # choices of any field


def words(picture: bytes) -> str:
    """The texts of an SVG: matplotlib keeps each as a comment beside its outlines."""
    lines = picture.decode().splitlines()
    return "\n".join(line.strip() for line in lines if line.strip().startswith("<!--"))


def test_a_folder_of_measured_rows_is_drawn_with_the_slo_of_its_plan(tmp_path: Path) -> None:
    plan = own_plan()
    source = CellsOfPlan.read(folder_of(plan, results_of(plan), tmp_path / "results"))
    said = words(draw(agent(source), format_name="svg"))
    for text in ("1,234", "432", "55", "8,765", FAST, SLOW, "SLO: p95 TTFT ≤ 777 ms", "measured on a real server"):
        assert text in said
    assert "failed: server_did_not_start" in said
    assert "engine default: s1024" in said
    assert "simulated" not in said


def test_a_merged_file_is_drawn_with_the_plan_that_is_given(tmp_path: Path) -> None:
    plan, file = own_plan(), tmp_path / "cells.parquet"
    write_parquet(results_of(plan), file)
    save_plan(plan, tmp_path / "plan.json")
    scenario = agent(CellsOfPlan.read(file, plan=str(tmp_path / "plan.json")))
    from_folder = agent(CellsOfPlan.read(folder_of(plan, results_of(plan), tmp_path / "results")))
    assert draw(scenario, format_name="png") == draw(from_folder, format_name="png")
    with pytest.raises(ArtefactError, match="as --plan, it has the SLO"):
        CellsOfPlan.read(file)
    with pytest.raises(ArtefactError, match="give its --plan"):
        CellsOfPlan.read(file, plan="reference")


def test_only_the_configurations_that_are_named_are_shown() -> None:
    plan = own_plan()
    scenario = agent(CellsOfPlan(plan=plan, cells=tuple(results_of(plan))), config_ids=[SLOW])
    assert [cell.key.config_id for cell in scenario.cells] == [SLOW]


def test_simulated_cells_say_so_and_stand_beside_the_engines_default() -> None:
    source = CellsOfPlan.read(CELLS / "reference.parquet")
    scenario = ScenarioCells.of(source, model="Qwen/Qwen3-8B", workload="summarize", concurrency=256)
    scenario = scenario.beside(read_cells(CELLS / "engine_default.parquet"))
    said = words(draw(scenario, format_name="svg"))
    assert "simulated: a virtual clock, no server was measured" in said
    # The README's table of the same cells: FIXED and the engine's default completed nothing, the best has 1,288.
    assert said.count("failed: no_request_completed") == 2
    assert "1,288" in said
    assert "engine default: s1024" in said


@pytest.mark.parametrize(("workload", "model"), [("agent", "Qwen/Qwen3-1.7B"), ("codeassist", "Qwen/Qwen3-4B")])
def test_the_test_split_of_the_reference_is_not_drawn(workload: str, model: str) -> None:
    for name in ("reference", "engine_default"):
        with pytest.raises(InvalidInputError, match="test split"):
            ScenarioCells.of(
                CellsOfPlan.read(CELLS / f"{name}.parquet"), model=model, workload=workload, concurrency=64
            )


def test_simulating_a_test_scenario_in_a_plan_of_ones_own_is_no_way_around_and_measuring_it_is_allowed() -> None:
    plan = own_plan()
    plan = replace(plan, workloads=(replace(plan.workloads[0], name="renamed", split="train"),))
    simulated = CellsOfPlan(plan=plan, cells=tuple(results_of(plan, evidence="simulated")))
    with pytest.raises(InvalidInputError, match="test split"):
        agent(simulated, workload="renamed")
    measured = CellsOfPlan(plan=plan, cells=tuple(results_of(plan)))
    assert len(agent(measured, workload="renamed").cells) == 3


def test_what_was_not_run_is_refused_with_what_was() -> None:
    plan = own_plan()
    source = CellsOfPlan(plan=plan, cells=tuple(results_of(plan)))
    for choice in ({"model": "x"}, {"workload": "chat"}, {"concurrency": 17}, {"config_ids": ["s1-b1-g0.90-p1"]}):
        with pytest.raises(UnknownNameError, match=r"known: (Qwen/Qwen3-4B|agent|16|s64)"):
            agent(source, **choice)


def test_cells_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    plan = own_plan()
    results = results_of(plan)
    other = replace(results[0], provenance=replace(results[0].provenance, evidence="measured-cpu"))
    with pytest.raises(ArtefactError, match="provenance"):
        CellsOfPlan(plan=plan, cells=(other, *results[1:]))
    with pytest.raises(ArtefactError, match="doubled"):
        CellsOfPlan(plan=plan, cells=(*results, results[0]))
    two = agent(CellsOfPlan(plan=plan, cells=tuple(results[:2])))
    with pytest.raises(ArtefactError, match="another provenance"):
        two.beside([replace(results[2], provenance=other.provenance)])
    assert len(two.beside(results[2:]).cells) == 3
    assert two.beside([]) is two
    with pytest.raises(MemoryPolicyError, match=r"plan\.json"):
        CellsOfPlan.read(tmp_path)


@pytest.mark.parametrize("format_name", ["png", "svg"])
def test_equal_cells_give_equal_bytes_in_every_process(tmp_path: Path, format_name: str) -> None:
    pictures = []
    for name in ("a", "b"):
        file = tmp_path / f"{name}.{format_name}"
        # A user's settings must not show.
        (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\n" if name == "a" else "font.size: 20\n")
        command = [sys.executable, "-m", "bench_runner", "report", "--model", "Qwen/Qwen3-8B", "--workload", "rag"]
        done = subprocess.run(
            [*command, "--concurrency", "64", "--draw", str(file)],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "MATPLOTLIBRC": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.splitlines()[-1] == f"16 configurations (0 failed) in {file}"
        pictures.append(file.read_bytes())
    assert pictures[0] == pictures[1]


def test_a_name_with_a_dollar_sign_is_text_and_not_a_formula() -> None:
    plan = own_plan()
    plan = replace(plan, workloads=(replace(plan.workloads[0], name="$a_b$"),))
    source = CellsOfPlan(plan=plan, cells=tuple(results_of(plan)))
    assert "$a_b$" in words(draw(agent(source, workload="$a_b$"), format_name="svg"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--draw", "x.png"), 2, "needs --workload and --concurrency"),
        (("--workload", "chat"), 2, "go with --draw"),
        (("--draw", "x.gif", "--workload", "chat", "--concurrency", "4"), 1, ".png or .svg"),
        (("--draw", "x.png", "--workload", "poetry", "--concurrency", "4"), 1, "known: chat, rag"),
        (("--draw", "x.png", "--workload", "chat", "--concurrency", "4", "--cells", "nowhere"), 1, "nowhere"),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    placed = [str(tmp_path / argument) if argument.startswith("x.") else argument for argument in arguments]
    command = [sys.executable, "-m", "bench_runner", "report", "--model", "Qwen/Qwen3-8B", *placed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_engine_default_plan_can_be_drawn_alone() -> None:
    source = CellsOfPlan.read(CELLS / "engine_default.parquet")
    assert source.plan == engine_default_plan()
    scenario = ScenarioCells.of(source, model="Qwen/Qwen3-8B", workload="chat", concurrency=4)
    assert "engine default: s1024" in words(draw(scenario, format_name="svg"))
