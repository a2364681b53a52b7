"""`offline train --plan`: measured cells teach a ranker, judge it on lists it never saw, and are compared with others.

The cells are made here by a rule, so that what is right is known: long prompts want few sequences, short ones many.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench_runner.plan import save_plan
from offline.__main__ import main
from offline.bootstrap import mean_difference_interval
from offline.export import read_bundle
from offline.measured.evaluation import group_resamples
from offline.measured.held_out import folds_of
from offline.measured.lists import read_lists
from offline.measured.start import Start
from offline.measured.training import Recipe
from offline.onnx_graph import run_graph
from offline.ranker import Normalisation
from offline.settings import BootstrapSettings, TrainingSettings
from service.domain.cell import CellKey, Provenance
from service.domain.errors import ArtefactError
from tests.offline.measured.made_cells import FEW, MANY, SERVER, SIMULATOR, Rule, cell, measured_tps, plan, written

ROOT = Path(__file__).resolve().parents[3]
ROBUST = ROOT / "service" / "bundles" / "dense-b200-robust"
REFERENCE = ROOT / "service" / "bundles" / "qwen3-b200-reference"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """measured.parquet and plan.json."""
    written(tmp_path / "measured.parquet")
    save_plan(plan(), tmp_path / "plan.json")
    return tmp_path


def asked(folder: Path, *arguments: str | Path) -> list[str]:
    files = ["--cells", folder / "measured.parquet", "--plan", folder / "plan.json", "--work", folder / "work"]
    return ["train", *map(str, [*files, *arguments])]


def trained(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str | Path) -> dict[str, Any]:
    assert main(asked(folder, *arguments, "--epochs", "120", "--json")) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads((folder / "work" / "measured.json").read_text()) == record
    return record


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str | Path) -> str:
    assert main(asked(folder, *arguments)) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_a_ranker_learns_from_measured_cells_what_no_single_configuration_does(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    record = trained(capsys, folder)
    held_out = record["held_out"]
    assert (held_out["evidence"], held_out["n"], held_out["groups"]) == ("measured-cpu", 16, 8)
    # By the rule the best is always 300. Every single configuration has a mean of 200.
    goodput = {name: row["goodput_tps"] for name, row in held_out["policies"].items()}
    assert (goodput["ORACLE"], goodput["FIXED"]) == (300.0, 200.0)
    assert goodput["TRAINED"] == 300.0
    assert goodput["SINGLE_BEST"] <= 200.0
    against = held_out["comparisons"]["TRAINED-vs-FIXED"]["goodput_tps"]
    # 100 more in every one of the scenarios, so in every resample too.
    assert against == {"delta": 100.0, "ci": [100.0, 100.0]}
    assert "START" not in held_out["policies"]
    assert "ENGINE_DEFAULT" not in held_out["policies"], "the plan leaves it out"


@pytest.mark.parametrize("bundle", [ROBUST, REFERENCE], ids=["transforms", "plain"])
def test_fine_tuning_starts_from_a_bundle_and_leaves_its_transforms(
    capsys: pytest.CaptureFixture[str], folder: Path, bundle: Path
) -> None:
    record = trained(capsys, folder, "--fine-tune", bundle)
    manifest = read_bundle(bundle)
    assert record["trained_on"]["started_from"] == {
        "name": manifest.name,
        "version": manifest.version,
        "evidence": "simulated",
    }
    assert record["trained_on"]["provenance"]["evidence"] == record["held_out"]["evidence"] == "measured-cpu"
    assert record["recipe"]["epochs"] == 30
    assert {"START", "TRAINED"} <= record["held_out"]["policies"].keys()
    # The graph that was written is what was trained, behind the bundle's own transforms.
    lists = read_lists(folder / "measured.parquet", folder / "plan.json")
    start = Start.read(bundle)
    fitted = Recipe.of(TrainingSettings(epochs=120), start).fit(lists, np.ones(16, np.bool_))
    graph = (folder / "work" / "measured.onnx").read_bytes()
    assert run_graph(graph, lists.features) == pytest.approx(fitted.score(lists.features), rel=1e-4, abs=1e-4)


def test_fine_tuning_for_no_time_gives_the_bundle_s_own_scores(folder: Path) -> None:
    lists = read_lists(folder / "measured.parquet", folder / "plan.json")
    start = Start.read(ROBUST)
    inputs = start.transformed(lists.features)
    ranker = start.ranker(Normalisation.of(inputs))
    assert ranker.score(inputs) == pytest.approx(start.scores(lists.features), rel=1e-4, abs=1e-4)


def test_fine_tuning_moves_the_bundle_towards_what_was_measured(folder: Path) -> None:
    lists = read_lists(folder / "measured.parquet", folder / "plan.json")
    every = np.ones(16, np.bool_)
    losses = [
        Recipe.of(TrainingSettings(epochs=epochs), Start.read(ROBUST)).fit(lists, every).loss for epochs in (4, 400)
    ]
    assert losses[1] < losses[0]


def test_no_list_is_judged_by_a_ranker_that_saw_its_model_and_workload() -> None:
    groups = ["a", "a", "b", "c", "b", "d", "e", "f", "g"]
    folds = folds_of(groups)
    assert len(folds) == 5
    assert np.sum(folds, axis=0).tolist() == [1] * 9
    for held_out in folds:
        inside = {group for group, out in zip(groups, held_out, strict=True) if out}
        assert inside.isdisjoint({group for group, out in zip(groups, held_out, strict=True) if not out})


def test_intervals_draw_whole_groups() -> None:
    # Three lists that gain 1 and one that gains nothing, in two groups: means of a draw are 1, 0.75 or 0.
    draws = group_resamples(["a", "a", "a", "b"], BootstrapSettings(replicates=400))
    gains = np.array([1.0, 1.0, 1.0, 0.0, np.nan])
    assert set(np.nanmean(gains[draws], axis=1).tolist()) == {0.0, 0.75, 1.0}
    assert mean_difference_interval(gains, np.zeros(5), draws=draws, confidence=0.95) == (0.0, 1.0)


def test_cells_of_two_evidence_classes_are_never_in_one_evaluation(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    rows = [cell(key, measured_tps(key), SERVER if i else SIMULATOR).to_row() for i, key in enumerate(plan().cells())]
    pq.write_table(pa.Table.from_pylist(rows), folder / "measured.parquet")
    assert "of another provenance" in refused(capsys, folder)


def test_a_bundle_of_the_same_evidence_class_is_no_start(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    written(folder / "measured.parquet", provenance=SIMULATOR)
    message = refused(capsys, folder, "--fine-tune", ROBUST)
    assert "was itself trained on simulated cells, which may be among those that judge here" in message


def test_simulated_cells_are_compared_and_never_judge(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    alone = trained(capsys, folder)

    def simulated(key: CellKey) -> float:
        """10 % too fast throughout; in one workload many sequences do not start, in another few are too good."""
        if (key.workload, key.config_id) == ("w0", MANY):
            return 0.0
        if (key.workload, key.config_id) == ("w1", FEW):
            return 500.0
        return 1.1 * measured_tps(key)

    path = written(folder / "simulated.parquet", simulated, SIMULATOR)
    record = trained(capsys, folder, "--simulated", path)
    assert {name: value for name, value in record.items() if name != "disagreement"} == {
        name: value for name, value in alone.items() if name != "disagreement"
    }
    found = record["disagreement"]
    # 8 workloads × 2 concurrencies × 3 configurations; the two of w0 failed only where they were simulated.
    assert (found["shared"], found["failed_in_one_only"]) == (48, [f"Qwen/Qwen3-0.6B|w0|c{c}|{MANY}" for c in (16, 64)])
    assert found["slo_verdicts_alike"] == 46
    error = found["relative_error"]["output_throughput_tps"]
    assert error["n"] == 46
    assert error["median"] == pytest.approx(0.1)
    # 44 cells are 10 % off and two 400 %.
    assert error["mean_absolute"] == pytest.approx((44 * 0.1 + 2 * 4.0) / 46)
    assert [one["relative_error"] for one in found["largest"][:2]] == pytest.approx([4.0, 4.0])
    # In w0 the simulation chooses the 200 of candidate 0, in w1 the 100 of few sequences, instead of 300.
    assert (found["choices"]["scenarios"], found["choices"]["alike"]) == (16, 12)
    assert found["choices"]["mean_loss"] == pytest.approx((2 * (1 - 200 / 300) + 2 * (1 - 100 / 300)) / 16)
    assert found["choices"]["largest_loss"] == pytest.approx(2 / 3)


def test_a_person_is_told_what_was_trained_judged_and_compared(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    path = written(folder / "simulated.parquet", lambda key: 2 * measured_tps(key), SIMULATOR)
    assert main(asked(folder, "--epochs", "2", "--simulated", path)) == 0
    text = capsys.readouterr().out
    assert "16 of 16 measured-cpu lists teach an order, 3 configurations each" in text
    assert "held out by model and workload, 16 lists, judged by measured-cpu cells:" in text
    assert "simulated against measured-cpu, 48 shared cells: SLO verdicts alike in 48, best configuration alike" in text
    assert "output_throughput_tps: median +100.0%" in text


@pytest.mark.parametrize(
    ("rule", "provenance", "words"),
    [
        (measured_tps, SERVER, "both hold measured-cpu cells; give one file of each evidence class"),
        (None, SIMULATOR, "no cell in common with the measured ones"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, rule: Rule | None, provenance: Provenance, words: str
) -> None:
    path = folder / "other.parquet"
    if rule is None:
        key = next(iter(plan().cells()))
        other = cell(key, 1.0, provenance)
        renamed = replace(other, key=replace(key, config_id="s1-b2048-g0.90-p1"))
        pq.write_table(pa.Table.from_pylist([renamed.to_row()]), path)
    else:
        written(path, rule, provenance)
    assert words in refused(capsys, folder, "--epochs", "1", "--simulated", path)


def test_a_plan_that_is_not_the_cells_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    save_plan(replace(plan(), seed=1), folder / "plan.json")
    assert "give the plan file that the cells were filled by" in refused(capsys, folder)
    content = plan().to_json()
    content["window_s"] = 1.0
    (folder / "plan.json").write_text(json.dumps(content))
    assert "its content is" in refused(capsys, folder)
    (folder / "plan.json").write_text("{}")
    assert "not a plan ('plan_sha256')" in refused(capsys, folder)


def test_lists_without_a_configuration_that_meets_the_slo_teach_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    written(folder / "measured.parquet", lambda key: 0.0)
    assert "no list has a configuration that meets the SLO" in refused(capsys, folder)
    # One group of eight can be used: it trains, and there is nothing to learn from when it is held out.
    written(folder / "measured.parquet", lambda key: measured_tps(key) if key.workload == "w0" else 0.0)
    record = trained(capsys, folder)
    assert record["trained_on"]["lists_that_teach"] == 2
    assert record["held_out"]["n_no_feasible"] == 14


def test_what_goes_with_a_plan_is_refused_without_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "--fine-tune", str(ROBUST), "--work", str(tmp_path)]) == 1
    assert "--fine-tune goes with --plan" in capsys.readouterr().err


def test_a_graph_of_another_shape_is_no_start() -> None:
    manifest = read_bundle(REFERENCE)
    import onnx

    model = onnx.load(REFERENCE / "model.onnx")
    model.graph.initializer[0].name = "weights"
    with pytest.raises(ArtefactError, match="no ranker of three layers"):
        Start(model.SerializeToString(), manifest)
