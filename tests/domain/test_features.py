import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.candidate import CANDIDATES
from service.domain.features import (
    FEATURE_NAMES,
    FEATURES,
    NUM_FEATURES,
    NUM_STATE_FEATURES,
    encode,
    encode_candidate,
    encode_state,
    feature_schema_hash,
)
from service.domain.scenario import ModelArch, Scenario, Workload

# Qwen3-8B (8,190,735,360 parameters of 2 bytes) under chat with 64 clients.
QWEN3_8B = ModelArch(weight_gb=16.38147072, num_layers=36, hidden_size=4096, kv_bytes_per_token=147_456)
CHAT = Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=64)
SCENARIO = Scenario(model=QWEN3_8B, workload=CHAT)


def test_the_twelve_names_in_their_order() -> None:
    assert FEATURE_NAMES == (
        "weight_gb",
        "num_layers",
        "hidden_size",
        "kv_bytes_per_token",
        "prompt_tokens",
        "max_new_tokens",
        "shared_prefix_ratio",
        "log2_concurrency",
        "log2_max_num_seqs",
        "log2_max_num_batched_tokens",
        "gpu_memory_utilization",
        "enable_prefix_caching",
    )
    assert (NUM_FEATURES, NUM_STATE_FEATURES) == (12, 8)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("weight_gb", "1e9 bytes"),
        ("num_layers", "layers"),
        ("hidden_size", "channels"),
        ("kv_bytes_per_token", "bytes"),
        ("prompt_tokens", "tokens"),
        ("max_new_tokens", "tokens"),
        ("shared_prefix_ratio", "share of the prompt"),
        ("log2_concurrency", "log2 clients"),
        ("log2_max_num_seqs", "log2 sequences"),
        ("log2_max_num_batched_tokens", "log2 tokens"),
        ("gpu_memory_utilization", "share of memory"),
        ("enable_prefix_caching", "0 or 1"),
    ],
)
def test_each_feature_has_its_unit(name: str, unit: str) -> None:
    assert FEATURES[FEATURE_NAMES.index(name)].unit == unit


def test_each_feature_says_what_it_means_and_no_two_mean_the_same() -> None:
    meanings = [feature.meaning for feature in FEATURES]
    assert all(len(meaning) > 10 for meaning in meanings)
    assert len(set(meanings)) == 12


def test_the_prefix_ratio_says_that_it_is_designed_and_not_measured() -> None:
    assert "not measured" in FEATURES[FEATURE_NAMES.index("shared_prefix_ratio")].meaning


def test_a_scenario_encodes_as_15_rows_of_12_single_precision_numbers() -> None:
    rows = encode(SCENARIO)
    assert rows.shape == (15, 12)
    assert rows.dtype == np.float32


@pytest.mark.parametrize(
    ("index", "candidate_part"),
    [
        (0, [8.0, 13.0, 0.90, 1.0]),  # 256 = 2^8, 8192 = 2^13
        (1, [5.0, 11.0, 0.45, 1.0]),  # 32 = 2^5, 2048 = 2^11
        (6, [7.0, 11.0, 0.85, 1.0]),  # 128 = 2^7
        (12, [9.0, 13.0, 0.85, 1.0]),  # 512 = 2^9
        (13, [8.0, 13.0, 0.90, 0.0]),
        (14, [7.0, 11.0, 0.85, 0.0]),
    ],
)
def test_a_row_is_the_scenario_and_then_the_candidate(index: int, candidate_part: list[float]) -> None:
    state = [16.38147072, 36.0, 4096.0, 147456.0, 512.0, 256.0, 0.0, 6.0]  # 64 = 2^6
    expected = np.array([*state, *candidate_part], dtype=np.float32)
    np.testing.assert_array_equal(encode(SCENARIO)[index], expected)


def test_the_two_halves_of_a_row_are_the_two_encoders() -> None:
    assert encode_state(SCENARIO) == (16.38147072, 36.0, 4096.0, 147456.0, 512.0, 256.0, 0.0, 6.0)
    assert encode_candidate(CANDIDATES[0]) == (8.0, 13.0, 0.9, 1.0)


def test_no_two_candidates_encode_alike() -> None:
    assert len(np.unique(encode(SCENARIO), axis=0)) == 15


def test_a_callers_changes_to_an_encoding_stay_with_the_caller() -> None:
    encode(SCENARIO)[:] = -1.0
    assert encode(SCENARIO)[0, 8] == 8.0


@settings(deadline=None)
@given(
    weight_gb=st.floats(0.001, 10_000),
    num_layers=st.integers(1, 1000),
    hidden_size=st.integers(1, 1_000_000),
    kv_bytes=st.integers(1, 100_000_000),
    prompt=st.integers(1, 10_000_000),
    new=st.integers(1, 10_000_000),
    ratio=st.floats(0, 1),
    concurrency=st.integers(1, 100_000),
)
def test_every_allowed_scenario_encodes_finitely_and_alike_for_all_candidates(
    weight_gb: float,
    num_layers: int,
    hidden_size: int,
    kv_bytes: int,
    prompt: int,
    new: int,
    ratio: float,
    concurrency: int,
) -> None:
    model = ModelArch(weight_gb=weight_gb, num_layers=num_layers, hidden_size=hidden_size, kv_bytes_per_token=kv_bytes)
    workload = Workload(prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=ratio, concurrency=concurrency)
    rows = encode(Scenario(model=model, workload=workload))
    assert np.isfinite(rows).all()
    assert (rows[:, :8] == rows[0, :8]).all()
    np.testing.assert_array_equal(rows[:, 8:], encode(SCENARIO)[:, 8:])


def schema_hash(features: list[dict[str, str]]) -> str:
    """sha256 over names, units and meanings in order, independently of the module."""
    return hashlib.sha256(json.dumps(features, separators=(",", ":")).encode()).hexdigest()


def test_the_schema_hash_covers_names_units_meanings_and_order() -> None:
    features = [{"name": f.name, "unit": f.unit, "meaning": f.meaning} for f in FEATURES]
    assert feature_schema_hash() == schema_hash(features)
    renamed = [[{**features[0], key: "other"}, *features[1:]] for key in ("name", "unit", "meaning")]
    variants = [features[::-1], features[:11], *renamed]
    assert len({schema_hash(variant) for variant in variants} | {feature_schema_hash()}) == 6


def test_the_schema_hash_stays_what_it_is() -> None:
    # A change means that every bundle shipped so far reads its inputs differently and must be refused: train again
    # and ship new bundles. Never only update this value.
    assert feature_schema_hash() == "7bba99d3ca113ed81cbf2d23f08bc5f3d2357ffc5ee435b5ea02b7cca0c3def8"
