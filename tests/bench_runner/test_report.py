from pathlib import Path

import pytest

from bench_runner.report import read_cells, report
from service.domain.errors import ArtefactError, UnknownNameError

CELLS = Path(__file__).parents[2] / "bench_runner" / "cells"


def lines_of(model: str) -> list[str]:
    return list(
        report(
            model=model,
            reference=read_cells(CELLS / "reference.parquet"),
            engine_default=read_cells(CELLS / "engine_default.parquet"),
        )
    )


def test_every_scenario_has_its_best_candidate_fixed_and_the_engines_default() -> None:
    lines = lines_of("Qwen/Qwen3-8B")
    assert len(lines) == 2 + 3 * 24
    assert [line.split(" | ")[2].split(":")[0] for line in lines[2:5]] == ["best", "FIXED", "ENGINE_DEFAULT"]


def test_the_test_split_is_not_shown() -> None:
    lines = lines_of("Qwen/Qwen3-4B")
    assert len(lines) == 2 + 3 * 16
    assert not [line for line in lines if "agent" in line or "codeassist" in line]


def test_an_unknown_model_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Qwen/Qwen3-8B"):
        lines_of("nobody/nothing")
    (tmp_path / "cells.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ArtefactError, match=r"cells\.parquet"):
        read_cells(tmp_path / "cells.parquet")
