import json
from pathlib import Path

import numpy as np
import pytest

from bench_runner.scheduler import Requests, Step, new_requests, new_step
from bench_runner.step_time import StepTable, gpu_ms, load_step_tables
from service.domain.errors import ArtefactError
from service.domain.reference import REFERENCE_MODELS


def table() -> StepTable:
    """dense: 1 ms a token; head: 10 ms a sequence; context: 100 · new + past; generation: 1000 · sequences + past."""
    grid = np.array([0.0, 10.0, 20.0])
    new, past = np.meshgrid(grid, grid, indexing="ij")
    return StepTable(
        dense_ms=np.arange(5.0),
        head_ms=10 * np.arange(5.0),
        context_new=grid,
        context_past=grid,
        context_ms=100 * new + past,
        generation_sequences=grid,
        generation_context=grid,
        generation_ms=1000 * new + past,
    )


def step_of(rows: list[tuple[int, int, int, bool]]) -> tuple[Requests, Step]:
    """rows: (prompt, tokens, context, samples)."""
    requests, step = new_requests(slots=len(rows), max_tokens=64), new_step(slots=len(rows))
    for index, (prompt, tokens, context, samples) in enumerate(rows):
        requests.prompt[index] = prompt
        step.slot[index], step.tokens[index], step.context[index] = index, tokens, context
        step.samples[index] = samples
    step.size[0] = len(rows)
    return requests, step


def test_a_mixed_step_is_the_sum_of_its_parts() -> None:
    requests, step = step_of([(30, 5, 15, False), (10, 1, 11, True), (10, 1, 13, True)])
    # 7 tokens (beyond the table: slope continued), 2 samples, a chunk of 5 after 15, 2 decodes at mean context 13.
    assert gpu_ms(table(), requests, step) == pytest.approx(7 + 20 + (500 + 15) + (2000 + 13))


def test_values_between_grid_points_are_interpolated() -> None:
    requests, step = step_of([(40, 4, 7, False)])
    assert gpu_ms(table(), requests, step) == pytest.approx(4 + 0 + 400 + 7)


def test_the_committed_tables_hold_the_reference_models_and_name_their_source() -> None:
    tables = load_step_tables()
    assert set(REFERENCE_MODELS) <= set(tables.by_model)
    assert tables.source.startswith("aiconfigurator-core 0.12.0")
    for model in REFERENCE_MODELS:
        of_model = tables.of(model)
        assert (of_model.dense_ms > 0).all()
        assert of_model.context_ms.shape == (len(of_model.context_new), len(of_model.context_past))


def test_a_model_without_a_table_is_refused_with_the_list_of_those_that_have_one() -> None:
    with pytest.raises(ArtefactError, match="Qwen/Qwen3-8B"):
        load_step_tables().of("nobody/nothing")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", json.dumps({"schema_version": 99}).encode()])
def test_a_damaged_table_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tables.json"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"tables\.json"):
        load_step_tables(path)
