"""Expected blocks and GiB are worked out by hand beside each case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import CUDA_GRAPHS_GIB, Capacity, Demand, memory_rule, too_few_batched_tokens
from service.domain.gpu import gpu_by_name
from service.domain.kv_layout import BlockTables, KvLayout
from service.domain.memory import kv_blocks, start_up_feasibility
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch, Workload

# 0.5 GiB of weights; a block of 16 tokens takes exactly 1 MiB.
SMALL = ModelArch(weight_gb=0.536870912, num_layers=16, hidden_size=1024, kv_bytes_per_token=65_536)
# 8,030,261,248 parameters of 2 bytes.
LLAMA_8B = ModelArch(
    weight_gb=16.060522496, num_layers=32, hidden_size=4096, kv_bytes_per_token=131_072, max_model_len=131_072
)


def configuration(
    *, seqs: int = 128, tokens: int = 2048, utilization: float = 0.5, prefix_caching: bool = True
) -> Candidate:
    return Candidate(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=utilization,
        enable_prefix_caching=prefix_caching,
    )


def load(prompt: int, new: int = 1, *, shared: float = 0.0) -> Workload:
    return Workload(prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=shared, concurrency=1)


def capacity(
    model: ModelArch, workload: Workload, candidate: Candidate, memory_gib: float, version: str = "0.28.0"
) -> Capacity:
    return Demand.of(model, workload, engine_version=version).capacity(candidate, memory_gib=memory_gib)


@settings(max_examples=500, deadline=None)
@given(
    weight_gb=st.floats(0.1, 200),
    kv_bytes=st.integers(1, 1_000_000),
    context=st.none() | st.integers(1, 1_000_000),
    tokens=st.integers(2, 200_000),
    memory_gib=st.floats(0.5, 300),
    candidate=st.sampled_from([*CANDIDATES, *(gpu_by_name(name).engine_default for name in ("B200", "H100", "A10"))]),
)
def test_a_model_that_keeps_every_token_is_judged_as_the_registered_rule_judges_it(
    weight_gb: float, kv_bytes: int, context: int | None, tokens: int, memory_gib: float, candidate: Candidate
) -> None:
    model = ModelArch(
        weight_gb=weight_gb, num_layers=4, hidden_size=64, kv_bytes_per_token=kv_bytes, max_model_len=context
    )
    workload = load(tokens - 1)
    ours = capacity(model, workload, candidate, memory_gib)
    theirs = start_up_feasibility(model, workload, candidate, memory_gib=memory_gib)
    assert (ours.full_length_request_fits, ours.needed_gib, ours.available_gib) == (
        theirs.feasible,
        theirs.needed_gib,
        theirs.available_gib,
    )
    # Sequences of the context: each takes whole blocks.
    blocks, full = kv_blocks(model, candidate, memory_gib=memory_gib), context or tokens
    assert ours.kv_cache_tokens == blocks * full // -(-full // 16)


def test_requests_are_counted_in_whole_blocks_at_their_end() -> None:
    # 0.5 · 10 − 0.5 − 3.5 = 1 GiB: 1,024 blocks. 1,000 + 24 tokens are 64 blocks: 16 requests; one token more, 65: 15.
    assert capacity(SMALL, load(1000, 24), configuration(), 10.0).requests_that_fit == 16
    assert capacity(SMALL, load(1000, 25), configuration(), 10.0).requests_that_fit == 15
    assert capacity(SMALL, load(1000, 24), configuration(), 10.0).kv_cache_gib == pytest.approx(1.0)


def test_a_prefix_in_common_is_kept_once_where_it_is_cached() -> None:
    # Of 1,000 tokens 900 are common: 56 full blocks once. (1,024 − 56) ÷ (64 − 56) = 121; without caching 16.
    workload = load(1000, 24, shared=0.9)
    assert capacity(SMALL, workload, configuration(), 10.0).requests_that_fit == 121
    assert capacity(SMALL, workload, configuration(prefix_caching=False), 10.0).requests_that_fit == 16


def test_where_one_request_has_no_room_none_fits() -> None:
    # 1,024 blocks hold 16,384 tokens.
    full = capacity(SMALL, load(16_383), configuration(), 10.0)
    over = capacity(SMALL, load(16_384), configuration(), 10.0)
    assert (full.requests_that_fit, full.full_length_request_fits) == (1, True)
    assert (over.requests_that_fit, over.full_length_request_fits) == (0, False)
    nothing = capacity(SMALL, load(100), configuration(), 1.0)
    assert nothing == Capacity(
        kv_cache_gib=0.0,
        kv_cache_tokens=0,
        requests_that_fit=0,
        full_length_request_fits=False,
        # Weights, 7 blocks of 1 MiB and 3.5 GiB; half of 1 GiB.
        needed_gib=0.5 + 7 / 1024 + 3.5,
        available_gib=0.5,
    )


@pytest.mark.parametrize(
    ("version", "inside", "outside", "known"),
    [
        ("0.28.0", 3.5, 0.0, True),
        ("0.21.0", 3.5, 0.0, True),
        ("v0.22.1", 3.5, 0.0, True),
        ("0.20.2", 3.5 - CUDA_GRAPHS_GIB, CUDA_GRAPHS_GIB, True),
        ("0.9.1", 3.5 - CUDA_GRAPHS_GIB, CUDA_GRAPHS_GIB, True),
        # What nobody knows yet is taken to be like the newest.
        ("0.29.0", 3.5, 0.0, False),
        ("1.0.0", 3.5, 0.0, False),
        ("nightly", 3.5, 0.0, False),
    ],
)
def test_cuda_graphs_are_charged_inside_the_budget_from_0_21(
    version: str, inside: float, outside: float, known: bool
) -> None:
    rule = memory_rule(version)
    assert (rule.inside_gib, rule.outside_gib, rule.known) == (inside, outside, known)
    assert rule.graphs_inside is (outside == 0)


def test_before_0_21_there_is_more_cache_and_it_may_not_reach_the_end_of_the_device() -> None:
    new = capacity(SMALL, load(100), configuration(), 20.0)
    old = capacity(SMALL, load(100), configuration(), 20.0, "0.20.0")
    assert old.kv_cache_gib - new.kv_cache_gib == pytest.approx(CUDA_GRAPHS_GIB)
    # 0.99 of 20 GiB would leave 0.2 for graphs of 0.75.
    tight = capacity(SMALL, load(100), configuration(utilization=0.99), 20.0, "0.20.0")
    assert tight.available_gib == pytest.approx(19.25)


def test_the_case_r7_a_budget_below_the_prompt_is_enough_with_chunked_prefill_only() -> None:
    small = configuration(seqs=256, tokens=2048)
    assert not too_few_batched_tokens(small, context_tokens=16_384 + 256, chunked_prefill=True)
    assert too_few_batched_tokens(small, context_tokens=16_384 + 256, chunked_prefill=False)
    assert not too_few_batched_tokens(small, context_tokens=2048, chunked_prefill=False)
    assert too_few_batched_tokens(configuration(seqs=2049, tokens=2048), context_tokens=1, chunked_prefill=True)
    assert not too_few_batched_tokens(configuration(seqs=2048, tokens=2048), context_tokens=1, chunked_prefill=True)


def test_the_case_r3_a_derived_context_is_what_must_fit_not_the_workload() -> None:
    # 131,072 tokens · 131,072 B = 16 GiB; weights 14.96, overhead 3.5: 34.46 of 22.
    found = capacity(LLAMA_8B, load(1800, 200), configuration(utilization=0.9), 22.0)
    assert found.full_length_request_fits is False
    assert found.needed_gib == pytest.approx(34.457, abs=0.001)
    # (0.9 · 22 − 14.957 − 3.5) GiB = 1.343 GiB are 687 blocks of 2 MiB; a request of the load takes 125.
    assert found.requests_that_fit == 5


# Two of six layers see everything, four a window of 128; 2 KV heads of 64: 512 bytes a token and layer.
SLIDING = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 50_000,
    "max_position_embeddings": 32_768,
    "sliding_window": 128,
    "sliding_window_pattern": 3,
    "tie_word_embeddings": True,
}


def test_layers_with_a_window_take_the_blocks_that_the_engine_reserves_for_them() -> None:
    model = parse_config(SLIDING)
    # A block is 16 tokens of two layers: 16 KiB. 0.5 · 10 − 3.5 GiB less the weights.
    found = capacity(model, load(10_000, 240), configuration(tokens=2048), 10.0)
    blocks = int((1.5 * 2**30 - model.weight_gb * 1e9) // 16_384)
    # To start: 32,768 ÷ 16 = 2,048 blocks, and for each of two tables of windowed layers
    # ⌈(128 − 1 + 2 · 2,048) ÷ 16⌉ + 1 = 265.
    assert found.kv_cache_tokens == blocks * 32_768 // (2048 + 2 * 265)
    # While it generates: 10,240 ÷ 16 = 640, and ⌈128 ÷ 16⌉ + 1 = 9 twice.
    assert found.requests_that_fit == blocks // (640 + 18)
    wider = capacity(model, load(10_000, 240), configuration(tokens=8192), 10.0)
    # ⌈(127 + 16,384) ÷ 16⌉ + 1 = 1,033.
    assert wider.kv_cache_tokens == blocks * 32_768 // (2048 + 2 * 1033)


def test_a_short_request_of_a_windowed_model_takes_no_more_than_its_own_blocks() -> None:
    model = parse_config(SLIDING)
    found = capacity(model, load(40, 8), configuration(), 10.0)
    blocks = int((1.5 * 2**30 - model.weight_gb * 1e9) // 16_384)
    # 48 tokens: three blocks in each of three tables.
    assert found.requests_that_fit == blocks // 9


def test_a_prefix_is_not_in_common_where_a_window_has_passed_it() -> None:
    model = parse_config(SLIDING)
    found = capacity(model, load(10_000, 240, shared=0.5), configuration(), 10.0)
    blocks = int((1.5 * 2**30 - model.weight_gb * 1e9) // 16_384)
    # 5,000 tokens fill 312 blocks of the layers that see everything.
    assert found.requests_that_fit == (blocks - 312) // (640 + 18 - 312)


@settings(max_examples=200, deadline=None)
@given(
    prompt=st.integers(1, 30_000),
    new=st.integers(1, 2_000),
    shared=st.floats(0, 1),
    memory_gib=st.floats(1, 300),
    more_gib=st.floats(0, 100),
    candidate=st.sampled_from(CANDIDATES),
    config=st.sampled_from([None, SLIDING]),
)
def test_more_memory_never_holds_less(
    prompt: int,
    new: int,
    shared: float,
    memory_gib: float,
    more_gib: float,
    candidate: Candidate,
    config: dict[str, object] | None,
) -> None:
    model = SMALL if config is None else parse_config(config)
    little, much = (
        capacity(model, load(prompt, new, shared=shared), candidate, gib) for gib in (memory_gib, memory_gib + more_gib)
    )
    assert little.kv_cache_gib <= much.kv_cache_gib
    assert little.kv_cache_tokens <= much.kv_cache_tokens
    assert little.requests_that_fit <= much.requests_that_fit
    assert little.full_length_request_fits <= much.full_length_request_fits


def test_a_recurrent_state_is_held_by_every_sequence_and_twice_where_prefixes_are_cached() -> None:
    # A block is 1 MiB; a state of 2.5 MiB takes 3 blocks, and two of them (5 MiB) take 5.
    layout = KvLayout(block_bytes=2**20, kinds=(BlockTables(tables=1, block_tokens=16),), state_bytes=5 * 2**19)
    assert layout.blocks_held(100, prefix_caching=False) == 7 + 3
    assert layout.blocks_held(100, prefix_caching=True) == 7 + 5
    assert layout.blocks_to_start(100, batched_tokens=2048, prefix_caching=True) == 7 + 5
    assert layout.blocks_shared(100) == 6


def test_a_chunk_begins_with_a_block_and_a_window_anywhere() -> None:
    window = BlockTables(tables=2, block_tokens=16, window=64)
    chunk = BlockTables(tables=2, block_tokens=16, window=64, is_chunk=True)
    # 64 − 1 + 10 = 73 tokens are 5 blocks, and one more; 64 + 10 = 74 are 5.
    assert (window.blocks(1000, in_flight=10), chunk.blocks(1000, in_flight=10)) == (2 * 6, 2 * 5)


@pytest.mark.parametrize("utilization", [0.01, 0.92])
def test_a_kv_cache_of_a_given_size_is_all_there_is_and_all_that_is_needed(utilization: float) -> None:
    demand = Demand.of(SMALL, load(160, 160), engine_version="0.28.0").of_given_cache()
    found = demand.capacity(configuration(utilization=utilization), memory_gib=0.0625)
    # 64 MiB are 64 blocks, 1,024 tokens; a request of 320 tokens holds 20, so that three fit.
    assert (found.kv_cache_gib, found.kv_cache_tokens, found.requests_that_fit) == (0.0625, 1024, 3)
    assert (found.needed_gib, found.available_gib) == (20 / 1024, 0.0625)
    assert found.full_length_request_fits
    assert not demand.capacity(configuration(), memory_gib=19 / 1024).full_length_request_fits
