import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.domain.candidate import CANDIDATES, INDEX_BY_CONFIG_ID, Candidate
from service.domain.gpu import gpu_by_name
from service.domain.memory import kv_blocks, start_up_feasibility, start_up_tokens
from service.domain.scenario import ModelArch, Workload

GIB = 2**30
# 0.5 GiB of weights; a block of 16 tokens takes exactly 1 MiB.
SMALL = ModelArch(weight_gb=0.536870912, num_layers=16, hidden_size=1024, kv_bytes_per_token=65_536)
# Published sizes: 8,030,261,248 and 70,553,706,496 parameters of 2 bytes; context 131,072.
LLAMA_8B = ModelArch(
    weight_gb=16.060522496, num_layers=32, hidden_size=4096, kv_bytes_per_token=131_072, max_model_len=131_072
)
LLAMA_70B = ModelArch(
    weight_gb=141.107412992, num_layers=80, hidden_size=8192, kv_bytes_per_token=327_680, max_model_len=131_072
)
CHAT = Workload(prompt_tokens=1000, max_new_tokens=200, shared_prefix_ratio=0.0, concurrency=64)


def with_utilization(utilization: float) -> Candidate:
    return Candidate(
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=utilization,
        enable_prefix_caching=True,
    )


def numbers_only(model: ModelArch) -> ModelArch:
    """The same model from its four numbers, so that its context is unknown."""
    return ModelArch(
        weight_gb=model.weight_gb,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        kv_bytes_per_token=model.kv_bytes_per_token,
    )


def of_tokens(tokens: int) -> Workload:
    return Workload(prompt_tokens=tokens - 1, max_new_tokens=1, shared_prefix_ratio=0.0, concurrency=1)


@pytest.mark.parametrize(
    ("memory_gib", "utilization", "blocks"),
    [
        # 0.5 · 10 − 0.5 − 3.5 = 1 GiB free, 1024 blocks of 1 MiB.
        (10.0, 0.5, 1024),
        # 0.5 · 100 − 4 = 46 GiB.
        (100.0, 0.5, 46 * 1024),
        # 1 GiB · 0.5 − 4 is less than nothing.
        (1.0, 0.5, 0),
        # Exactly nothing is left.
        (8.0, 0.5, 0),
    ],
)
def test_blocks_are_what_weights_and_overhead_leave(memory_gib: float, utilization: float, blocks: int) -> None:
    assert kv_blocks(SMALL, with_utilization(utilization), memory_gib=memory_gib) == blocks


def test_blocks_of_qwen3_8b_on_a_b200() -> None:
    # 0.90 · 178 GiB − 16,381,470,720 − 3.5 GiB = 151,873,873,100.8 bytes; a block is 16 · 147,456 = 2,359,296 bytes.
    model = ModelArch(weight_gb=16.38147072, num_layers=36, hidden_size=4096, kv_bytes_per_token=147_456)
    assert kv_blocks(model, CANDIDATES[0], memory_gib=178.0) == 64_372


def test_the_largest_request_that_fits_is_feasible_and_one_token_more_is_not() -> None:
    # 1024 blocks of 16 tokens.
    half = with_utilization(0.5)
    assert start_up_feasibility(SMALL, of_tokens(16_384), half, memory_gib=10.0).feasible
    assert not start_up_feasibility(SMALL, of_tokens(16_385), half, memory_gib=10.0).feasible


def test_needed_and_available_are_stated_in_gib() -> None:
    # 2048 blocks of 1 MiB are 2 GiB, with 0.5 GiB of weights and 3.5 GiB of overhead.
    feasibility = start_up_feasibility(SMALL, of_tokens(32_768), with_utilization(0.5), memory_gib=10.0)
    assert not feasibility.feasible
    assert feasibility.needed_gib == pytest.approx(6.0)
    assert feasibility.available_gib == pytest.approx(5.0)


def test_a_partly_filled_block_is_a_whole_block() -> None:
    # One token still takes 1 MiB.
    feasibility = start_up_feasibility(SMALL, of_tokens(2), with_utilization(0.5), memory_gib=10.0)
    assert feasibility.needed_gib == pytest.approx(4.0 + 1 / 1024)


def test_the_engine_reserves_for_its_own_context_and_not_for_the_workload() -> None:
    assert start_up_tokens(LLAMA_8B, CHAT) == 131_072
    assert start_up_tokens(numbers_only(LLAMA_8B), CHAT) == 1200


def test_a_70b_model_starts_with_no_candidate_on_one_80_gb_gpu() -> None:
    # Weights 131.417 GiB, one request of 131,072 tokens 40 GiB, overhead 3.5 GiB.
    for candidate in CANDIDATES:
        feasibility = start_up_feasibility(LLAMA_70B, CHAT, candidate, memory_gib=gpu_by_name("H100").memory_gib)
        assert not feasibility.feasible
        assert feasibility.needed_gib == pytest.approx(174.917, abs=0.001)
        assert feasibility.available_gib < 80


def test_a_70b_model_does_not_start_on_80_gb_even_for_the_shortest_request() -> None:
    for candidate in CANDIDATES:
        assert not start_up_feasibility(numbers_only(LLAMA_70B), of_tokens(2), candidate, memory_gib=79.0).feasible


def test_an_8b_model_on_24_gb_starts_at_utilization_085_and_not_at_045() -> None:
    # Weights 14.957 GiB, 75 blocks of 2 MiB are 0.146 GiB, overhead 3.5 GiB: 18.604 of 0.85 · 22 = 18.7 GiB.
    memory_gib = gpu_by_name("A10").memory_gib
    model = numbers_only(LLAMA_8B)
    roomy = start_up_feasibility(
        model, CHAT, CANDIDATES[INDEX_BY_CONFIG_ID["s32-b2048-g0.85-p1"]], memory_gib=memory_gib
    )
    tight = start_up_feasibility(
        model, CHAT, CANDIDATES[INDEX_BY_CONFIG_ID["s32-b2048-g0.45-p1"]], memory_gib=memory_gib
    )
    assert roomy.needed_gib == tight.needed_gib == pytest.approx(18.604, abs=0.001)
    assert (roomy.feasible, tight.feasible) == (True, False)
    assert roomy.available_gib == pytest.approx(18.7)
    assert tight.available_gib == pytest.approx(9.9)


@settings(deadline=None)
@given(
    weight_gb=st.floats(0.001, 200),
    kv_bytes=st.integers(1024, 1_000_000),
    tokens=st.integers(2, 200_000),
    memory_gib=st.floats(1, 300),
    utilization=st.floats(0.01, 1.0),
)
def test_feasible_says_the_same_as_the_two_numbers_beside_it(
    weight_gb: float, kv_bytes: int, tokens: int, memory_gib: float, utilization: float
) -> None:
    model = ModelArch(weight_gb=weight_gb, num_layers=1, hidden_size=1, kv_bytes_per_token=kv_bytes)
    candidate = with_utilization(utilization)
    feasibility = start_up_feasibility(model, of_tokens(tokens), candidate, memory_gib=memory_gib)
    # On the edge itself rounding decides.
    assume(abs(feasibility.needed_gib - feasibility.available_gib) > 1e-6)
    assert feasibility.feasible == (feasibility.needed_gib < feasibility.available_gib)
    if feasibility.feasible:
        assert kv_blocks(model, candidate, memory_gib=memory_gib) * 16 >= tokens


@settings(deadline=None)
@given(low=st.floats(0.01, 1.0), high=st.floats(0.01, 1.0), memory_gib=st.floats(1, 300))
def test_more_utilization_never_gives_fewer_blocks(low: float, high: float, memory_gib: float) -> None:
    low, high = sorted((low, high))
    assert kv_blocks(SMALL, with_utilization(low), memory_gib=memory_gib) <= kv_blocks(
        SMALL, with_utilization(high), memory_gib=memory_gib
    )
