import hashlib
import json
from typing import Any

import pytest

from service.domain.candidate import (
    CANDIDATES,
    FIXED_INDEX,
    GRID_MAX_NUM_SEQS,
    INDEX_BY_CONFIG_ID,
    Candidate,
    candidates_fingerprint,
    cli_arg,
)
from service.domain.errors import InvalidInputError

# index → max_num_seqs, max_num_batched_tokens, gpu_memory_utilization, enable_prefix_caching, config_id.
# The reference names the values; their order, which scores and hashes depend on, is this project's.
TABLE: list[tuple[int, int, float, bool, str]] = [
    (256, 8192, 0.90, True, "s256-b8192-g0.90-p1"),
    (32, 2048, 0.45, True, "s32-b2048-g0.45-p1"),
    (32, 2048, 0.85, True, "s32-b2048-g0.85-p1"),
    (32, 8192, 0.45, True, "s32-b8192-g0.45-p1"),
    (32, 8192, 0.85, True, "s32-b8192-g0.85-p1"),
    (128, 2048, 0.45, True, "s128-b2048-g0.45-p1"),
    (128, 2048, 0.85, True, "s128-b2048-g0.85-p1"),
    (128, 8192, 0.45, True, "s128-b8192-g0.45-p1"),
    (128, 8192, 0.85, True, "s128-b8192-g0.85-p1"),
    (512, 2048, 0.45, True, "s512-b2048-g0.45-p1"),
    (512, 2048, 0.85, True, "s512-b2048-g0.85-p1"),
    (512, 8192, 0.45, True, "s512-b8192-g0.45-p1"),
    (512, 8192, 0.85, True, "s512-b8192-g0.85-p1"),
    (256, 8192, 0.90, False, "s256-b8192-g0.90-p0"),
    (128, 2048, 0.85, False, "s128-b2048-g0.85-p0"),
]


def valid(**changes: Any) -> dict[str, Any]:
    """Arguments of a candidate that is accepted, with changes."""
    arguments = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": True,
    }
    return {**arguments, **changes}


def test_there_are_15_candidates() -> None:
    assert len(CANDIDATES) == len(TABLE) == 15


@pytest.mark.parametrize(("index", "row"), list(enumerate(TABLE)))
def test_each_index_holds_its_row_of_the_table(index: int, row: tuple[int, int, float, bool, str]) -> None:
    candidate = CANDIDATES[index]
    assert (
        candidate.max_num_seqs,
        candidate.max_num_batched_tokens,
        candidate.gpu_memory_utilization,
        candidate.enable_prefix_caching,
        candidate.config_id,
    ) == row
    assert INDEX_BY_CONFIG_ID[row[-1]] == index


def test_ids_are_unique() -> None:
    assert len(INDEX_BY_CONFIG_ID) == 15
    assert len(set(CANDIDATES)) == 15


def test_the_fixed_policy_is_the_first_candidate_and_the_grid_names_its_own_values() -> None:
    assert FIXED_INDEX == 0
    assert {candidate.max_num_seqs for candidate in CANDIDATES[1:13]} == set(GRID_MAX_NUM_SEQS) == {32, 128, 512}


def test_command_line_arguments_are_one_token_each_and_a_boolean_that_is_off_says_no() -> None:
    assert CANDIDATES[0].cli_args() == (
        "--max-num-seqs=256",
        "--max-num-batched-tokens=8192",
        "--gpu-memory-utilization=0.9",
        "--enable-prefix-caching",
    )
    assert CANDIDATES[14].cli_args() == (
        "--max-num-seqs=128",
        "--max-num-batched-tokens=2048",
        "--gpu-memory-utilization=0.85",
        "--no-enable-prefix-caching",
    )


def test_engine_arguments_carry_the_engines_own_names() -> None:
    assert CANDIDATES[13].engine_args() == {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": False,
    }


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [
        ("max_model_len", 4096, "--max-model-len=4096"),
        ("enforce_eager", True, "--enforce-eager"),
        ("enforce_eager", False, "--no-enforce-eager"),
        ("gpu_memory_utilization", 0.45, "--gpu-memory-utilization=0.45"),
        # 0 and 1 are numbers, not switches.
        ("max_num_seqs", 1, "--max-num-seqs=1"),
        ("swap_space", 0, "--swap-space=0"),
    ],
)
def test_an_argument_is_spelled_as_the_engine_reads_it(name: str, value: float | bool, token: str) -> None:
    assert cli_arg(name, value) == token


def fingerprint(candidates: list[Candidate]) -> str:
    """sha256 over the arguments in order, written down independently of the module."""
    rows = ",".join(
        f'{{"max_num_seqs":{c.max_num_seqs},"max_num_batched_tokens":{c.max_num_batched_tokens},'
        f'"gpu_memory_utilization":{c.gpu_memory_utilization},'
        f'"enable_prefix_caching":{json.dumps(c.enable_prefix_caching)}}}'
        for c in candidates
    )
    return hashlib.sha256(f"[{rows}]".encode()).hexdigest()


def test_the_fingerprint_is_over_the_ordered_list_so_another_order_is_another_fingerprint() -> None:
    in_order = list(CANDIDATES)
    swapped = [in_order[1], in_order[0], *in_order[2:]]
    assert candidates_fingerprint() == fingerprint(in_order)
    assert fingerprint(swapped) != fingerprint(in_order)
    assert fingerprint(in_order[:14]) != fingerprint(in_order)


def test_the_fingerprint_stays_what_it_is() -> None:
    # A change means that every score of every bundle shipped so far points at other configurations: train again,
    # ship new bundles, and say so in the changelog. Never only update this value.
    assert candidates_fingerprint() == "c76fefc999e821ffad27095fb6f594a6849f47eba53a34fc239c09ce528f6f8c"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", -1),
        ("max_num_seqs", 1_000_001),
        ("max_num_seqs", True),
        ("max_num_seqs", 256.0),
        ("max_num_seqs", "256"),
        ("max_num_batched_tokens", 0),
        ("max_num_batched_tokens", 100_000_001),
        ("max_num_batched_tokens", None),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("gpu_memory_utilization", float("inf")),
        ("gpu_memory_utilization", True),
        ("gpu_memory_utilization", "0.9"),
        ("enable_prefix_caching", "false"),
        ("enable_prefix_caching", 1),
        ("enable_prefix_caching", None),
    ],
)
def test_an_impossible_argument_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Candidate(**valid(**{field: value}))
    assert caught.value.path == field
    assert caught.value.value is value
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_num_seqs", 1), ("max_num_seqs", 1_000_000), ("gpu_memory_utilization", 0.01), ("gpu_memory_utilization", 1)],
)
def test_the_bounds_themselves_are_accepted(field: str, value: float) -> None:
    assert getattr(Candidate(**valid(**{field: value})), field) == value
