"""The published tables beside the simulator: what is counted, what a fit says, and that the test table opens once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_runner.plan import reference_plan
from bench_runner.published import TEST_TABLE, open_test, read_fit, read_opened
from bench_runner.published_cells import (
    FAILED,
    RULES,
    CellRunner,
    Outcome,
    Scenario,
    counted,
    dev_metrics,
    heur_index,
    outcome_of,
    scenarios,
    table_metrics,
)
from bench_runner.published_command import FIT, FOLDER, OPENED, PLOT, SECTION, WorkFile
from bench_runner.published_drawing import draw
from bench_runner.published_fit import (
    DEV_TABLE,
    RANGES,
    Evaluated,
    assumed_values,
    first_round,
    latin_hypercube,
    second_round,
    settings_of,
    sources_sha256,
    summary,
)
from bench_runner.published_section import section
from bench_runner.report import read_cells
from bench_runner.simulator import SimulationSettings, Window
from bench_runner.step_time import load_step_tables
from offline.policies import heuristic_candidate
from service.domain.candidate import CANDIDATES, INDEX_BY_CONFIG_ID
from service.domain.errors import ArtefactError
from service.domain.slo import REFERENCE_SLO

ROOT = Path(__file__).parents[2]
WINDOW = Window(warm_up_ms=4000.0, length_ms=15000.0)


def outcome(tps: float, *, ttft_ms: float = 100.0, met: bool = True) -> Outcome:
    return Outcome(throughput_tps=tps, ttft_p95_ms=ttft_ms, tpot_p95_ms=10.0, slo_met=met)


def found(*outcomes: dict[int, Outcome]) -> list[tuple[Scenario, dict[int, Outcome]]]:
    """Scenarios in which HEUR chooses candidate 4."""
    some = [replace(scenario, heur=4) for scenario in scenarios("dev")]
    return list(zip(some, outcomes, strict=False))


def test_heur_is_the_rule_that_the_evaluation_uses_on_all_96_scenarios() -> None:
    plan = reference_plan()
    workloads = {key.scenario_id: plan.workload(key) for key in plan.cells()}
    assert len(workloads) == 96
    for workload in workloads.values():
        assert heur_index(workload) == INDEX_BY_CONFIG_ID[heuristic_candidate(workload).config_id]


def test_the_splits_are_the_references_sixteen_each() -> None:
    dev, test = scenarios("dev"), scenarios("test")
    assert (len(dev), len(test)) == (16, 16)
    assert {scenario.key.workload for scenario in dev} == {"summarize"}
    assert {scenario.key.model for scenario in test} == {"Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"}


def test_with_the_assumed_settings_the_cells_are_the_committed_ones() -> None:
    """Also those of candidates that share a run with another."""
    committed = {row.key.cell_id: row for row in read_cells(ROOT / "bench_runner" / "cells" / "reference.parquet")}
    runner = CellRunner(plan=reference_plan(), tables=load_step_tables(), settings=SimulationSettings())
    for scenario in scenarios("dev")[:4]:
        for index, seen in runner.outcomes(scenario, range(len(CANDIDATES)))["completed"].items():
            row = committed[f"{scenario.key.scenario_id}|{CANDIDATES[index].config_id}"]
            assert seen.throughput_tps == row.output_throughput_tps
            assert seen.ttft_p95_ms == row.ttft_p95_ms
            assert seen.tpot_p95_ms == pytest.approx(row.tpot_p95_ms, rel=1e-12)
            assert seen.slo_met == row.slo_met


def test_the_second_rule_leaves_out_what_was_sent_during_the_warm_up() -> None:
    """(client, sent, first, last) in ms: early; sent early and completed inside; wholly inside; completed too late."""
    log = np.array([[0, 0, 500, 3999], [1, 3000, 5000, 9000], [2, 4000, 4500, 18_999], [3, 5000, 6000, 19_000]])
    assert counted(log, "completed", window=WINDOW)[:, 0].tolist() == [1, 2]
    assert counted(log, "sent-after-warm-up", window=WINDOW)[:, 0].tolist() == [2]


def test_a_counted_log_gives_latencies_of_its_requests() -> None:
    """One request: TTFT 2 s, then 100 further tokens in 4 s, 40 ms each; meets 3 s and 60 ms."""
    log = np.array([[1.0, 3000.0, 5000.0, 9000.0]])
    seen = outcome_of(log, tps=7.0, answer_tokens=101, slo=REFERENCE_SLO)
    assert seen == Outcome(throughput_tps=7.0, ttft_p95_ms=2000.0, tpot_p95_ms=40.0, slo_met=True)
    assert outcome_of(log, tps=7.0, answer_tokens=51, slo=REFERENCE_SLO).slo_met is False
    assert outcome_of(log[:0], tps=7.0, answer_tokens=101, slo=REFERENCE_SLO) == FAILED


def test_the_dev_tables_numbers_by_hand() -> None:
    """Scenario 1: the best is candidate 2 with 200; FIXED (0) has 100, HEUR (4) 150 and violates. 2: nobody meets."""
    first = {0: outcome(100), 2: outcome(200), 4: outcome(150, met=False)}
    second = {0: FAILED, 2: outcome(50, met=False), 4: outcome(60, met=False)}
    metrics = dev_metrics(found(first, second))
    assert metrics == {
        "FIXED violation": 0.5,
        "FIXED failure": 0.5,
        "FIXED goodput_tps": 50.0,
        "FIXED regret": 0.5,
        "HEUR violation": 1.0,
        "HEUR failure": 0.0,
        "HEUR goodput_tps": 0.0,
        # As published, a violating choice counts its throughput.
        "HEUR regret": 0.25,
    }
    assert dev_metrics(found(second))["FIXED regret"] is None


def test_the_test_tables_numbers_by_hand() -> None:
    first = {0: outcome(100, ttft_ms=1000), 4: outcome(150, ttft_ms=2000)}
    second = {0: outcome(300, ttft_ms=3000), 4: FAILED}
    metrics = table_metrics(found(first, second))
    assert metrics["FIXED throughput_tps"] == 200
    assert metrics["HEUR throughput_tps"] == 75
    assert metrics["HEUR throughput_ratio"] == 1.5
    # The 95th percentile of 1 and 3 seconds lies 0.95 of the way; a failure is left out, as published.
    assert metrics["FIXED ttft_p95_s"] == pytest.approx(2.9)
    assert metrics["HEUR ttft_p95_s"] == 2.0
    assert table_metrics(found({0: FAILED, 4: FAILED}))["HEUR throughput_ratio"] is None


def evaluated(values: Mapping[str, float], **off: float) -> Evaluated:
    """A setting that gives the dev table's numbers but for those in `off`, whose spaces are underscores."""
    metrics: dict[str, float | None] = {
        name: value + off.get(name.replace(" ", "_"), 0) for name, value in DEV_TABLE.items()
    }
    return Evaluated(values=values, metrics=dict.fromkeys(RULES, metrics))


def test_the_misfit_counts_in_tolerances() -> None:
    exact = evaluated(assumed_values())
    assert exact.misfit("completed") == 0
    assert exact.within("completed") == list(DEV_TABLE)
    # Two scenarios of 16 and 5 % of 682: 2² + 1².
    off = evaluated(assumed_values(), FIXED_failure=2 / 16, HEUR_goodput_tps=34.1)
    assert off.misfit("completed") == pytest.approx(5)
    assert set(DEV_TABLE) - set(off.within("completed")) == {"FIXED failure"}


def test_an_undefined_number_fits_nothing() -> None:
    metrics: dict[str, float | None] = {**DEV_TABLE, "FIXED regret": None}
    one = Evaluated(values=assumed_values(), metrics=dict.fromkeys(RULES, metrics))
    assert one.misfit("completed") == float("inf")
    assert "FIXED regret" not in one.within("completed")


def test_the_design_has_one_value_in_every_part_of_every_range() -> None:
    design = latin_hypercube(np.random.default_rng(1), 10, {"a": (0.1, 1000.0), "b": (1.0, 2.0)})
    assert sorted(int(np.floor((np.log10(one["a"]) + 1) / 0.4)) for one in design) == list(range(10))
    assert sorted(int(np.floor(np.log2(one["b"]) * 10)) for one in design) == list(range(10))
    assert first_round(count=3)[0] == assumed_values()
    assert first_round(count=3) == first_round(count=3)


def spoilt_by_request_ms(count: int = 400) -> list[Evaluated]:
    """Only request_ms matters: one scenario too many violates for every e-fold away from 10 ms."""
    design = latin_hypercube(np.random.default_rng(2), count, RANGES)
    return [evaluated(values, FIXED_violation=float(np.log(values["request_ms"] / 10)) / 16) for values in design]


def test_the_interval_is_narrow_where_the_table_decides_and_wide_where_it_does_not() -> None:
    """The misfit is ln(request_ms / 10)², so 3.84 is reached at 10 · e^±1.96: 1.41 and 71."""
    record = summary(spoilt_by_request_ms(), "completed")
    low, high = record["interval"]["request_ms"]
    assert low == pytest.approx(10 * np.exp(-1.96), rel=0.1)
    assert high == pytest.approx(10 * np.exp(1.96), rel=0.1)
    least, most = record["interval"]["host_step_ms"]
    assert least < 0.33
    assert most > 11
    assert record["misfit"]["limit"] == pytest.approx(3.84, abs=0.01)
    assert record["best"]["request_ms"] == pytest.approx(10, rel=0.05)
    assert len(record["kept"]) == 24


def test_a_table_that_no_setting_meets_widens_the_interval() -> None:
    """A constant misfit of 12 is four times the three degrees of freedom: the rise is four times 3.84."""
    spoilt = [
        replace(one, metrics={rule: {**one.metrics[rule], "HEUR failure": 0.125 + 12**0.5 / 16} for rule in RULES})
        for one in spoilt_by_request_ms()
    ]
    record = summary(spoilt, "completed")
    assert record["settings_with_every_number_within"] == 0
    assert record["misfit"]["limit"] == pytest.approx(12 + 4 * 3.84, abs=0.02)


def test_the_second_round_stays_in_the_box_of_the_best() -> None:
    inside = [one["request_ms"] for one in second_round(spoilt_by_request_ms(), count=50)]
    assert len(inside) == 100
    assert 5 < min(inside) < max(inside) < 20


def test_a_stopped_fit_goes_on_with_what_is_on_disk(tmp_path: Path) -> None:
    """The line in the file holds numbers that no run gives, so a setting that is simulated again would be noticed."""
    path = tmp_path / "work.jsonl"
    line = json.dumps(evaluated({"request_ms": 5.0}).to_json())
    path.write_text(f"{line}\n{line[:40]}")
    work = WorkFile(path, tables=load_step_tables())
    try:
        assert work.evaluated({"request_ms": 5.0}).misfit("completed") == 0
        assert work.evaluated(assumed_values()).misfit("completed") > 0
    finally:
        work.close()
    assert len(path.read_text().splitlines()) == 2
    assert json.loads(path.read_text().splitlines()[1])["values"] == assumed_values()


@pytest.fixture
def fit_path(tmp_path: Path) -> Path:
    """The committed fit record as if it had been made by the present sources, with little to simulate."""
    record = json.loads((FOLDER / FIT).read_text())
    record["sources_sha256"] = sources_sha256()
    record["exploratory"] = {}
    for rule in RULES:
        record["rules"][rule]["kept"] = []
    (tmp_path / FIT).write_text(json.dumps(record))
    return tmp_path / FIT


def test_the_test_table_is_compared_once(tmp_path: Path, fit_path: Path) -> None:
    output = tmp_path / OPENED
    content = open_test(fit_path, output, tables=load_step_tables())
    assert read_opened(output, fit_path) == content
    assert set(content["rules"]["completed"]["best"]) == set(TEST_TABLE)
    before = output.read_bytes()
    with pytest.raises(ArtefactError, match="compared under this name before"):
        open_test(fit_path, output, tables=load_step_tables())
    assert output.read_bytes() == before


def test_a_fit_of_another_simulator_opens_nothing(tmp_path: Path, fit_path: Path) -> None:
    fit_path.write_text(fit_path.read_text().replace(sources_sha256(), "0" * 64))
    with pytest.raises(ArtefactError, match="fitted with sources 000000000000"):
        open_test(fit_path, tmp_path / OPENED, tables=load_step_tables())
    assert not (tmp_path / OPENED).exists()


def test_a_comparison_belongs_to_the_fit_record_byte_for_byte(tmp_path: Path) -> None:
    shutil.copy(FOLDER / FIT, tmp_path / FIT)
    with (tmp_path / FIT).open("a") as file:
        file.write(" ")
    with pytest.raises(ArtefactError, match="restore the committed file"):
        read_opened(FOLDER / OPENED, tmp_path / FIT)


def test_the_committed_section_says_what_the_committed_records_say() -> None:
    fit, opened = read_fit(FOLDER / FIT), read_opened(FOLDER / OPENED, FOLDER / FIT)
    assert (FOLDER / SECTION).read_text() == section(fit, opened, plot=PLOT)
    assert draw(fit).startswith(b"\x89PNG")
    assert "Simulated" in section(fit, opened, plot=PLOT)
    assert settings_of(fit["rules"]["completed"]["best"]) != SimulationSettings()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fit",), "a fit record does not change"),
        (("compare",), "that is done once"),
        (("report", "--fit", "{folder}/none.json"), "cannot be read as JSON"),
        (("report", "--fit", "{folder}/other.json"), "no record of this program's `published fit`"),
    ],
)
def test_what_was_recorded_is_not_written_again(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "other.json").write_text('{"schema_version": 99}')
    filled = [part.format(folder=tmp_path) for part in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "bench_runner", "published", *filled],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
