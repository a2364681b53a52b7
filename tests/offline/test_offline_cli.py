"""The command line: exit codes, one-line reasons, and nothing written after a refusal."""

import json
from pathlib import Path

import pytest

from offline.__main__ import STAGES, main
from offline.dataset import CellFiles
from service.domain.features import FEATURE_NAMES
from tests.offline.synthetic import CellWriter, leaking


def _arguments(stage: str, files: CellFiles, folder: Path, *more: str) -> list[str]:
    return [
        stage,
        f"--cells={files.reference}",
        f"--engine-default-cells={files.engine_default}",
        f"--work={folder / 'work'}",
        f"--bundle={folder / 'bundle'}",
        f"--registrations={folder / 'registrations'}",
        "--epochs=1",
        *more,
    ]


def test_all_makes_a_bundle_and_leaves_the_test_split_closed(
    synthetic_files: CellFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments("all", synthetic_files, tmp_path)) == 0
    out = capsys.readouterr().out
    assert "dataset: train 48, dev 16, test 16, retired 16" in out
    assert "test: closed" in out
    assert (tmp_path / "bundle" / "MODEL_CARD.md").exists()
    assert not (tmp_path / "registrations").exists()


def test_dataset_describes_itself_as_json(
    synthetic_files: CellFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments("dataset", synthetic_files, tmp_path, "--json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["scenarios"] == {"train": 48, "dev": 16, "test": 16, "retired": 16}
    assert content["evidence"] == "simulated"


def test_a_leak_in_the_data_ends_the_program_before_training_and_testing(
    cell_writer: CellWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments("all", cell_writer.write(leaking), tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("offline: scenario ")
    assert error.count("\n") == 1
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("stage", ["all", "train", "evaluate", "register", "export"])
def test_a_leak_in_the_feature_list_ends_every_stage_that_reads_cells(
    synthetic_files: CellFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    leaking = (*FEATURE_NAMES, "kv_usage_peak")
    assert main(_arguments(stage, synthetic_files, tmp_path), feature_names=leaking) == 1
    assert "'kv_usage_peak' is the measured quantity" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_a_stage_out_of_order_says_which_one_comes_first(
    synthetic_files: CellFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments("evaluate", synthetic_files, tmp_path)) == 1
    assert "run `python -m offline train` again" in capsys.readouterr().err
    assert main(_arguments("card", synthetic_files, tmp_path)) == 1
    assert "run `python -m offline export` again" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(
    synthetic_files: CellFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").write_text("a file where a folder belongs")
    assert main(_arguments("train", synthetic_files, tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("offline: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["sing"], ["train", "--epochs=0"], ["train", "--epochs=x"], ["all", "--test"]])
def test_bad_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_help(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([stage, "--help"])
    assert stopped.value.code == 0
    assert "--cells" in capsys.readouterr().out
