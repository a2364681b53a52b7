import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner.plan import Plan, engine_default_plan, load_plan, reference_plan, save_plan
from service.domain.errors import ArtefactError, UnknownNameError


def test_the_reference_plan_is_1440_cells_none_twice() -> None:
    cells = [key.cell_id for key in reference_plan().cells()]
    assert len(cells) == len(set(cells)) == 1440
    assert cells[0] == "Qwen/Qwen3-0.6B|chat|c4|s256-b8192-g0.90-p1"
    assert cells[-1] == "Qwen/Qwen3-8B|codeassist|c256|s128-b2048-g0.85-p0"


def test_the_engine_default_plan_is_the_same_96_scenarios_under_what_the_engine_chooses() -> None:
    cells = list(engine_default_plan().cells())
    assert len(cells) == 96
    assert {key.config_id for key in cells} == {"s1024-b16384-g0.92-p1"}
    assert [key.scenario_id for key in cells] == list(dict.fromkeys(k.scenario_id for k in reference_plan().cells()))


def test_a_plan_survives_its_file_and_keeps_its_hash(tmp_path: Path) -> None:
    save_plan(reference_plan(), tmp_path / "plan.json")
    loaded = load_plan(str(tmp_path / "plan.json"))
    assert loaded == reference_plan()
    assert loaded.sha256 == reference_plan().sha256


def test_every_part_of_the_protocol_changes_the_hash() -> None:
    plan = reference_plan()
    others = [replace(plan, seed=1), replace(plan, memory_gib=100.0), replace(plan, window_s=30.0)]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 4


def test_an_edited_plan_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    content = {**reference_plan().to_json(), "seed": 5}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ArtefactError, match=reference_plan().sha256):
        load_plan(str(tmp_path / "plan.json"))


@pytest.mark.parametrize("content", [{}, {"schema_version": 1}, {"schema_version": 1, "models": 3}])
def test_what_is_no_plan_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(ArtefactError):
        Plan.from_json(content)


def test_an_unknown_plan_names_the_known_ones() -> None:
    with pytest.raises(ArtefactError, match="reference, engine_default"):
        load_plan("no-such-plan")


def test_a_part_of_a_plan_keeps_its_order_and_is_a_plan_of_its_own() -> None:
    part = reference_plan().restricted(models=[], workloads=["longgen", "chat"], config_ids=["s32-b2048-g0.45-p1"])
    assert [workload.name for workload in part.workloads] == ["chat", "longgen"]
    assert len(list(part.cells())) == 4 * 2 * 4
    assert part.sha256 != reference_plan().sha256
    assert reference_plan().restricted(models=[], workloads=[], config_ids=[]) == reference_plan()


@pytest.mark.parametrize(
    ("models", "workloads", "config_ids", "known"),
    [
        (["nobody/nothing"], [], [], "Qwen/Qwen3-0.6B"),
        ([], ["poetry"], [], "chat, rag, longgen"),
        ([], [], ["s1-b1-g1.00-p1"], "s256-b8192-g0.90-p1"),
    ],
)
def test_an_unknown_model_workload_or_configuration_is_refused_with_the_known_ones(
    models: list[str], workloads: list[str], config_ids: list[str], known: str
) -> None:
    with pytest.raises(UnknownNameError, match=known):
        reference_plan().restricted(models=models, workloads=workloads, config_ids=config_ids)


def test_all_candidates_of_a_scenario_meet_the_same_arrivals_and_scenarios_differ() -> None:
    plan = reference_plan()
    cells = list(plan.cells())
    seeds = {
        key.scenario_id: {plan.scenario_seed(k) for k in cells[i : i + 15]} for i, key in list(enumerate(cells))[::15]
    }
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == 96
