"""Splits, arrays, the closed test split and both leak guards."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from offline.dataset import (
    ENGINE_DEFAULT_CHOICE,
    CellFiles,
    Development,
    load_development,
    load_test,
    split_definition,
)
from offline.registration import Permit
from service.domain.candidate import INDEX_BY_CONFIG_ID
from service.domain.cell import CellKey, CellResult
from service.domain.errors import ArtefactError, LeakageError
from service.domain.features import FEATURE_NAMES, encode
from tests.offline.synthetic import CellWriter, leaking, synthetic_cell

TEST_ID = "Qwen/Qwen3-4B|agent|c64"


def test_the_splits_are_those_of_the_reference() -> None:
    splits = split_definition()
    assert {name: len(ids) for name, ids in splits.items()} == {"train": 48, "dev": 16, "test": 16, "retired": 16}
    assert {scenario.split("|")[1] for scenario in splits["dev"]} == {"summarize"}
    assert {scenario.split("|")[0] for scenario in splits["test"]} == {"Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"}
    assert "Qwen/Qwen3-8B|agent|c4" in splits["retired"]
    assert TEST_ID in splits["test"]


def test_no_split_that_is_handed_out_holds_a_retired_scenario(synthetic_data: Development) -> None:
    handed_out = {
        *synthetic_data.train.questions.scenario_ids,
        *synthetic_data.dev.questions.scenario_ids,
        *synthetic_data.test_questions.scenario_ids,
    }
    assert len(handed_out) == 80
    assert handed_out.isdisjoint(split_definition()["retired"])


def test_features_are_the_domains_own_encoding(synthetic_data: Development) -> None:
    for questions in (
        synthetic_data.train.questions,
        synthetic_data.dev.questions,
        synthetic_data.test_questions,
    ):
        assert questions.features.dtype == np.float32
        for row, scenario in enumerate(questions.scenarios):
            assert np.array_equal(questions.features[row], encode(scenario))


def test_an_outcome_stands_in_the_row_of_its_scenario_and_the_column_of_its_candidate(
    synthetic_data: Development,
) -> None:
    key = CellKey(model="Qwen/Qwen3-4B", workload="rag", concurrency=64, config_id="s128-b2048-g0.85-p0")
    train = synthetic_data.train
    row = train.questions.scenario_ids.index(key.scenario_id)
    column = INDEX_BY_CONFIG_ID[key.config_id]
    assert train.outcomes.throughput_tps[row, column] == synthetic_cell(key).output_throughput_tps
    default = replace(key, config_id="s1024-b16384-g0.92-p1")
    assert train.outcomes.throughput_tps[row, ENGINE_DEFAULT_CHOICE] == synthetic_cell(default).output_throughput_tps


def test_a_failed_cell_has_throughput_0_and_an_infinite_ttft(synthetic_data: Development) -> None:
    outcomes = synthetic_data.dev.outcomes
    assert outcomes.failed.any()
    assert (outcomes.throughput_tps[outcomes.failed] == 0).all()
    assert np.isposinf(outcomes.ttft_p95_ms[outcomes.failed]).all()
    assert not outcomes.slo_met[outcomes.failed].any()


def _arrays(value: object) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _arrays(getattr(value, field.name))


def test_what_development_gets_holds_no_outcome_of_the_test_split(cell_writer: CellWriter) -> None:
    secret = 123_456.789

    def marked(cells: list[CellResult]) -> list[CellResult]:
        hidden = {*split_definition()["test"], *split_definition()["retired"]}
        return [
            replace(cell, output_throughput_tps=secret)
            if cell.status == "ok" and cell.key.scenario_id in hidden
            else cell
            for cell in cells
        ]

    arrays = list(_arrays(load_development(cell_writer.write(marked, change_default=marked))))
    assert len(arrays) == 13
    assert not any((array == secret).any() for array in arrays)


def test_the_test_split_opens_only_for_the_cells_of_the_permit(
    synthetic_files: CellFiles, synthetic_data: Development
) -> None:
    permit = Permit(
        registration="first", registration_sha256="0" * 64, cells_sha256=synthetic_data.sources.cells_sha256
    )
    assert load_test(synthetic_files, permit=permit).questions.scenario_ids == tuple(split_definition()["test"])
    foreign = replace(permit, cells_sha256={**permit.cells_sha256, "reference": "f" * 64})
    with pytest.raises(ArtefactError, match="issued for other cells"):
        load_test(synthetic_files, permit=foreign)


def test_a_measured_quantity_in_the_data_stops_everything(cell_writer: CellWriter) -> None:
    with pytest.raises(LeakageError, match=r"state feature 6 differs between its candidates"):
        load_development(cell_writer.write(leaking))


def test_a_measured_quantity_in_the_feature_list_stops_everything(synthetic_files: CellFiles) -> None:
    leaking = (*FEATURE_NAMES[:-1], "ttft_p95_ms")
    with pytest.raises(LeakageError, match="'ttft_p95_ms' is the measured quantity 'ttft_p95'"):
        load_development(synthetic_files, feature_names=leaking)
