"""A registration from writing to its one opening, and everything that it refuses afterwards."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from offline.artefacts import sha256_file, sha256_json
from offline.dataset import CellFiles
from offline.pipeline import Run, card_stage, evaluate_stage, export_stage, register_stage, train_stage
from offline.registration import State, analysis_sha256, analysis_sources, read_registration, verify
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError
from tests.offline.synthetic import ROOT, CellWriter


def _opened(run: Run) -> Run:
    train_stage(run)
    register_stage(run)
    evaluate_stage(run, open_test=True)
    return run


def test_without_a_registration_the_test_split_stays_closed(quick_run: Run) -> None:
    train_stage(quick_run)
    assert "T1" not in evaluate_stage(quick_run)["test_sets"]
    with pytest.raises(ArtefactError, match=r"does not exist, so the test split stays closed; register first"):
        evaluate_stage(quick_run, open_test=True)


def test_a_registration_alone_opens_nothing(quick_run: Run) -> None:
    train_stage(quick_run)
    register_stage(quick_run)
    evaluation = evaluate_stage(quick_run)
    assert "T1" not in evaluation["test_sets"]
    assert evaluation["registration"]["opened"] is False
    assert evaluation["openings"] == []


def test_the_opening_stores_the_whole_evaluation_and_every_gate(quick_run: Run) -> None:
    _opened(quick_run)
    record = json.loads((quick_run.registrations / "first.opened.json").read_bytes())
    assert record["registration_sha256"] == sha256_file(quick_run.registrations / "first.json")
    assert record["test_set"]["n"] == 16
    assert len(record["test_set"]["gates"]["verdicts"]) == 7
    assert set(record["models"]) == {"MLP", "LightGBM"}


def test_a_second_opening_under_one_registration_is_refused(quick_run: Run) -> None:
    with pytest.raises(ArtefactError, match="opened under registration 'first' before"):
        evaluate_stage(_opened(quick_run), open_test=True)


def test_a_registration_is_never_overwritten(quick_run: Run) -> None:
    train_stage(quick_run)
    register_stage(quick_run)
    with pytest.raises(ArtefactError, match="registrations do not change; choose another"):
        register_stage(quick_run)


def test_everything_can_be_made_again_from_the_record_bit_for_bit(quick_run: Run) -> None:
    _opened(quick_run)
    bundles = []
    for _ in range(2):
        train_stage(quick_run)
        evaluate_stage(quick_run)
        export_stage(quick_run)
        card_stage(quick_run)
        bundles.append({path.name: path.read_bytes() for path in quick_run.bundle.iterdir()})
    assert bundles[0] == bundles[1]
    assert set(bundles[0]) == {
        "MODEL_CARD.md",
        "T1_differences.png",
        "T1_policies.png",
        "dev_differences.png",
        "dev_policies.png",
        "evaluation.json",
        "manifest.json",
        "model.onnx",
    }


def test_a_tampered_cell_file_is_named_with_both_hashes(quick_run: Run, cell_writer: CellWriter) -> None:
    _opened(quick_run)
    honest = sha256_file(quick_run.files.reference)

    def better(cells: list[CellResult]) -> list[CellResult]:
        return [*cells[:-1], replace(cells[-1], output_throughput_tps=cells[-1].output_throughput_tps + 1)]

    tampered = replace(quick_run, files=cell_writer.write(better))
    train_stage(tampered)
    found = sha256_file(tampered.files.reference)
    with pytest.raises(ArtefactError, match=f"the reference cells is {found}, registered is {honest}"):
        evaluate_stage(tampered)


def _checkout(folder: Path) -> Path:
    """A copy of the sources that make up the analysis, and one that does not."""
    for source in [*analysis_sources(ROOT), ROOT / "offline" / "card.py"]:
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return folder


def test_changed_analysis_code_is_refused_with_the_remedy(quick_run: Run, tmp_path: Path) -> None:
    run = _opened(replace(quick_run, root=_checkout(tmp_path / "checkout")))
    registered = analysis_sha256(run.root)
    with (run.root / "offline" / "metrics.py").open("a") as file:
        file.write("# kinder\n")
    train_stage(run)
    with pytest.raises(
        ArtefactError,
        match=f"analysis code is {analysis_sha256(run.root)}, registered is {registered}; .*under a new name",
    ):
        evaluate_stage(run)


def test_an_unregistered_change_cannot_open_the_test_split(quick_run: Run, tmp_path: Path) -> None:
    run = replace(quick_run, root=_checkout(tmp_path / "checkout"))
    train_stage(run)
    register_stage(run)
    with (run.root / "service" / "domain" / "slo.py").open("a") as file:
        file.write("# kinder\n")
    train_stage(run)
    with pytest.raises(ArtefactError, match=r"analysis code is .*register this state under a new name"):
        evaluate_stage(run, open_test=True)
    assert not (run.registrations / "first.opened.json").exists()


def test_weights_that_other_code_trained_are_neither_registered_nor_evaluated(quick_run: Run, tmp_path: Path) -> None:
    run = replace(quick_run, root=_checkout(tmp_path / "checkout"))
    train_stage(run)
    trained_by = analysis_sha256(run.root)
    with (run.root / "offline" / "losses.py").open("a") as file:
        file.write("# other loss\n")
    now = analysis_sha256(run.root)
    for stage in (register_stage, evaluate_stage):
        with pytest.raises(
            ArtefactError, match=f"trained with analysis code of sha256 {trained_by}, now {now}; run .*train"
        ):
            stage(run)


def test_a_registration_that_vanished_after_its_opening_is_refused(quick_run: Run) -> None:
    _opened(quick_run)
    (quick_run.registrations / "first.json").unlink()
    with pytest.raises(ArtefactError, match=r"first\.json is gone, yet .*first\.opened\.json opened it; restore"):
        evaluate_stage(quick_run)


def test_an_opening_that_crashes_while_it_is_written_may_be_repeated(
    quick_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_stage(quick_run)
    register_stage(quick_run)

    def crash(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("os.fsync", crash)
        with pytest.raises(OSError, match="No space left"):
            evaluate_stage(quick_run, open_test=True)
    assert evaluate_stage(quick_run)["openings"] == []
    assert "T1" in evaluate_stage(quick_run, open_test=True)["test_sets"]


def test_the_wording_of_the_card_is_no_part_of_the_analysis(tmp_path: Path) -> None:
    root = _checkout(tmp_path)
    before = analysis_sha256(root)
    with (root / "offline" / "card.py").open("a") as file:
        file.write("# better worded\n")
    assert analysis_sha256(root) == before


def test_the_analysis_code_is_all_that_decides_a_number() -> None:
    names = {str(path.relative_to(ROOT)) for path in analysis_sources(ROOT)}
    deciding = ("dataset", "cells", "train", "ranker", "losses", "utility", "policies", "trees", "metrics", "bootstrap")
    assert names >= {f"offline/{name}.py" for name in (*deciding, "comparison", "gates", "evaluate", "settings")}
    assert "offline/arithmetic.py" in names
    domain = {name for name in names if name.startswith("service/domain/")}
    assert domain == {
        f"service/domain/{name}.py" for name in ("candidate", "cell", "features", "ranking", "reference", "slo")
    }


def test_a_model_whose_numbers_change_is_caught_by_its_features(quick_run: Run) -> None:
    _opened(quick_run)
    registration = read_registration(quick_run.registrations, "first")
    assert registration is not None
    state = State(**{key: registration.content[key] for key in State.__slots__})
    with pytest.raises(ArtefactError, match=r"the sha256 of the features is 0{64}"):
        verify(registration, replace(state, features_sha256="0" * 64))


def test_changed_settings_are_refused(quick_run: Run) -> None:
    _opened(quick_run)
    settings = replace(quick_run.settings, bootstrap=replace(quick_run.settings.bootstrap, seed=7))
    changed = replace(quick_run, settings=settings)
    train_stage(changed)
    with pytest.raises(ArtefactError, match=r"the sha256 of the settings is \w{64}, registered is \w{64}"):
        evaluate_stage(changed)


def test_a_tampered_registration_is_named_with_both_hashes(quick_run: Run) -> None:
    _opened(quick_run)
    path = quick_run.registrations / "first.json"
    registered = sha256_file(path)
    path.write_text(path.read_text().replace('"limit": 0.05', '"limit": 0.5'))
    with pytest.raises(ArtefactError, match=f"sha256 {registered}, the file of that name has {sha256_file(path)}"):
        evaluate_stage(quick_run)


def test_tampered_results_are_refused(quick_run: Run) -> None:
    _opened(quick_run)
    path = quick_run.registrations / "first.opened.json"
    record = json.loads(path.read_bytes())
    record["test_set"]["policies"]["MLP"]["goodput_tps"] = 1e6
    path.write_text(json.dumps(record))
    with pytest.raises(ArtefactError, match=rf"results of sha256 \w{{64}}, recorded was {record['results_sha256']}"):
        evaluate_stage(quick_run)


def test_weights_other_than_the_evaluated_ones_are_not_shipped(quick_run: Run) -> None:
    _opened(quick_run)
    path = quick_run.registrations / "first.opened.json"
    record = json.loads(path.read_bytes())
    # As if the opening had happened on a machine whose training ends in other last bits.
    record["models"]["MLP"] = "0" * 64
    results = {"models": record["models"], "test_set": record["test_set"]}
    record["results_sha256"] = sha256_json(results)
    path.write_text(json.dumps(record))
    with pytest.raises(ArtefactError, match=r"MLP trained here has sha256 \w{64}, .* opened with 0{64}.*left as it is"):
        evaluate_stage(quick_run)
    with pytest.raises(ArtefactError, match="run `python -m offline evaluate` again"):
        export_stage(quick_run)
    assert not quick_run.bundle.exists()


def test_a_new_registration_lists_the_earlier_openings(quick_run: Run) -> None:
    second = replace(_opened(quick_run), registration="second")
    register_stage(second)
    assert evaluate_stage(second)["openings"] == ["first"]


@pytest.mark.parametrize("name", ["", "../evil", "A", "a.opened", "x" * 65])
def test_a_registrations_name_is_a_plain_file_name(quick_run: Run, name: str) -> None:
    train_stage(quick_run)
    with pytest.raises(ArtefactError, match="registration name"):
        register_stage(replace(quick_run, registration=name))


def test_weights_of_other_cells_are_not_evaluated(quick_run: Run, cell_writer: CellWriter) -> None:
    train_stage(quick_run)
    other: CellFiles = cell_writer.write(lambda cells: cells[::-1])
    with pytest.raises(ArtefactError, match=r"trained with cells of sha256 \w{64}, now \w{64}; run .*train"):
        evaluate_stage(replace(quick_run, files=other))
