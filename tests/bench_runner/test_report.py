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


def test_a_further_candidate_is_shown_where_it_is_asked_for() -> None:
    cells = read_cells(CELLS / "reference.parquet"), read_cells(CELLS / "engine_default.parquet")
    lines = list(
        report(model="Qwen/Qwen3-8B", reference=cells[0], engine_default=cells[1], config_ids=["s128-b2048-g0.85-p1"])
    )
    assert sum("| s128-b2048-g0.85-p1 |" in line for line in lines) == 24
    with pytest.raises(UnknownNameError, match=r"s256-b8192-g0\.90-p1"):
        list(report(model="Qwen/Qwen3-8B", reference=[], engine_default=[], config_ids=["s1-b1-g1.00-p1"]))


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
