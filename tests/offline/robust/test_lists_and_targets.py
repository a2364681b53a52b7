"""Lists are read as they were written, and utilities and losses are what they are defined to be."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from offline.robust.lists import DEFAULT_ROW, Outcomes, concatenated, configurations, read_lists, rows_sha256
from offline.robust.panel import panel_of
from offline.robust.targets import centred_squared_error, listnet, soft_choice, utilities
from service.domain.errors import ArtefactError
from service.domain.gpu import gpu_by_name
from tests.offline.robust.made_lists import write


def outcomes(throughput: list[float], met: list[bool]) -> Outcomes:
    ones = np.ones(len(throughput))
    return Outcomes(
        throughput_tps=np.array(throughput),
        ttft_p95_ms=ones,
        tpot_p95_ms=ones,
        met=np.array(met),
        failed=np.array([not one and tps == 0 for one, tps in zip(met, throughput, strict=True)]),
    )


def test_the_sixteenth_configuration_is_what_the_engine_starts_with() -> None:
    assert DEFAULT_ROW == 15
    assert configurations()[15].config_id == "s1024-b16384-g0.92-p1"


def test_features_are_what_was_announced_for_all_16_configurations(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "made.parquet"))
    features = lists.features()
    assert features.shape == (16, 16, 12)
    # The first eight are equal for all configurations; log2 of the clients is the eighth.
    assert (features[:, :, :8] == features[:, :1, :8]).all()
    assert features[0, 0, 7] == np.float32(math.log2(lists.columns["concurrency"][0]))
    assert features[0, 15, 8:].tolist() == [10.0, 14.0, np.float32(0.92), 1.0]


@pytest.mark.parametrize(
    ("key", "value"), [("schema_version", "2"), ("evidence", "measured"), ("config_ids", "s1-b1-g0.10-p1")]
)
def test_lists_of_another_schema_evidence_or_order_are_refused(tmp_path: Path, key: str, value: str) -> None:
    path = write(tmp_path / "made.parquet", metadata={key: value})
    with pytest.raises(ArtefactError, match=key):
        read_lists(path)


def test_a_file_that_is_missing_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="bench_runner lists"):
        read_lists(tmp_path / "none.parquet")


def test_draws_are_grouped_by_scenario_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "made.parquet", rows=5, draws=3))
    assert panel_of(lists, draws=3).judged.met.shape == (5, 3, 16)
    with pytest.raises(ArtefactError, match="not 5 scenarios of 3 draws"):
        panel_of(lists[np.arange(1, 15)], draws=3)


def test_utility_is_the_share_of_the_best_that_meets_the_slo_and_a_violation_costs_what_is_asked() -> None:
    # 400 violates, so 200 is the best; 50 is a quarter of it.
    found = utilities(outcomes([400.0, 200.0, 50.0], [False, True, True]), violation=1.0)
    assert found.tolist() == [-1.0, 1.0, 0.25]
    halved = utilities(outcomes([400.0, 200.0, 50.0], [False, True, True]), violation=0.5, power=0.5)
    assert halved.tolist() == [-0.5, 1.0, 0.5]
    # A p95 TTFT of 1 ms is a 3,000th of its limit.
    waiting = utilities(outcomes([400.0, 200.0, 50.0], [False, True, True]), violation=1.0, latency=0.3)
    assert waiting.tolist() == pytest.approx([-1.0, 1.0 - 0.0001, 0.25 - 0.0001])


def test_a_list_in_which_nothing_meets_the_slo_prefers_nothing() -> None:
    assert utilities(outcomes([4.0, 0.0], [False, False]), violation=1.0).tolist() == [-1.0, -1.0]


def test_the_squared_error_does_not_see_a_constant_of_a_list() -> None:
    targets = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    assert centred_squared_error(targets + torch.tensor([[7.0], [-3.0]]), targets).item() == pytest.approx(0.0)
    # Centred scores (0, 0) against (0.5, −0.5) and (0.25, −0.25): mean of 0.25, 0.25, 0.0625, 0.0625.
    assert centred_squared_error(torch.zeros(2, 2), targets).item() == pytest.approx(0.15625)


def test_listnet_of_equal_scores_is_the_logarithm_of_their_number() -> None:
    assert listnet(torch.zeros(1, 4), torch.zeros(1, 4), temperature=0.1).item() == pytest.approx(math.log(4))


def test_a_soft_choice_between_equals_gets_their_mean_utility() -> None:
    assert soft_choice(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), temperature=0.1).item() == pytest.approx(-0.5)


def test_rows_have_a_digest_of_their_own_whatever_the_file_says_of_itself(tmp_path: Path) -> None:
    first = read_lists(write(tmp_path / "a.parquet", rows=5, draws=2))
    renamed = read_lists(write(tmp_path / "b.parquet", rows=5, draws=2, metadata={"definition_sha256": "e" * 64}))
    assert rows_sha256(first) == rows_sha256(renamed)
    assert renamed.definition == "e" * 64
    renamed.outcomes.throughput_tps[3, 7] += 1
    assert rows_sha256(first) != rows_sha256(renamed)


def test_lists_of_another_gpu_have_its_default_in_their_last_row_and_do_not_mix(tmp_path: Path) -> None:
    h100 = gpu_by_name("H100")
    ids = ",".join(one.config_id for one in configurations(h100))
    path = write(tmp_path / "h100.parquet", metadata={"gpu": h100.name, "config_ids": ids})
    lists = read_lists(path)
    # 8,192 tokens a step instead of the B200's 16,384.
    assert lists.features()[0, 15, 8:].tolist() == [10.0, 13.0, np.float32(0.92), 1.0]
    # 0.45 of 79 GiB, less 16.4 GB of weights and 3.5 GiB, holds one request of 40,960 tokens of 144 KiB: 5.6 GiB.
    assert lists.starts.all()
    with pytest.raises(ArtefactError, match="NVIDIA-B200, NVIDIA-H100-80GB-HBM3 do not belong together"):
        concatenated([lists, read_lists(write(tmp_path / "b200.parquet"))])
