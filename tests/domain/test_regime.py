import pytest

from service.domain.errors import InvalidInputError
from service.domain.regime import RIDGE_TOKENS, Regime, regime_of, regime_of_state


def expected(
    prompt: int,
    new: int,
    concurrency: int,
    *,
    shared: float = 0.0,
    kv: int = 1_000_000,
    seqs: int = 256,
    batched: int = 8192,
) -> Regime:
    return regime_of(
        prompt_tokens=prompt,
        max_new_tokens=new,
        shared_prefix_ratio=shared,
        concurrency=concurrency,
        kv_cache_tokens=kv,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
    )


def test_few_short_requests_are_light() -> None:
    assert expected(512, 256, 4) == "light"


def test_many_sequences_with_short_prompts_are_bound_by_decoding() -> None:
    # 64 · 256 ÷ 300 = 55 readings of the weights for the prompts, 1,024 for the answers.
    assert expected(256, 1024, 64) == "decode-bound"


def test_long_prompts_and_short_answers_are_bound_by_prompts() -> None:
    # 64 · 6000 ÷ 300 = 1,280 readings against 128.
    assert expected(6000, 128, 64) == "prefill-bound"


def test_a_shared_prefix_is_computed_and_held_once() -> None:
    # 16 · 12000 ÷ 300 = 640 readings against 256; with nine tenths shared 64 against 256, and few sequences.
    assert expected(12_000, 256, 16) == "prefill-bound"
    assert expected(12_000, 256, 16, shared=0.9) == "light"
    # Eight answers at half their length: 8 · (500 + 500) tokens of their own, 500 in common.
    assert expected(1000, 1000, 8, shared=0.5, kv=8499) == "kv-bound"
    assert expected(1000, 1000, 8, shared=0.5, kv=8500) == "light"


def test_memory_for_fewer_than_may_run_binds_before_everything_else() -> None:
    assert expected(6000, 128, 64, kv=64 * 6064 - 1) == "kv-bound"
    assert expected(6000, 128, 64, kv=64 * 6064) == "prefill-bound"


def test_a_limit_on_sequences_is_not_a_limit_of_memory() -> None:
    # 32 run and 224 wait for a place, not for memory: nothing is light where somebody waits.
    assert expected(256, 1024, 256, kv=32 * 768, seqs=32) == "decode-bound"
    assert expected(256, 1024, 32, kv=32 * 768, seqs=32) == "light"


def test_small_chunks_of_a_prompt_read_the_weights_as_often_as_large_ones_compute() -> None:
    # 40 · 512 tokens: 68 readings in large chunks, 320 in chunks of 64, against 256.
    assert expected(512, 256, 40) == "decode-bound"
    assert expected(512, 256, 40, batched=64) == "prefill-bound"


def test_beyond_the_ridge_decode_steps_last_longer_too() -> None:
    # Twice the ridge: 600 · 200 ÷ 300 = 400 readings of prompts, 300 · 2 = 600 of answers.
    assert expected(200, 300, 2 * RIDGE_TOKENS, seqs=1024) == "decode-bound"


def test_a_moment_is_judged_by_what_waits_and_what_takes_the_time() -> None:
    assert regime_of_state(waiting=1, running=8, kv_full=True, prefill_share=0.9) == "kv-bound"
    assert regime_of_state(waiting=0, running=8, kv_full=True, prefill_share=0.1) == "light"
    assert regime_of_state(waiting=0, running=8, kv_full=False, prefill_share=0.6) == "prefill-bound"
    assert regime_of_state(waiting=0, running=33, kv_full=False, prefill_share=0.5) == "decode-bound"
    assert regime_of_state(waiting=1, running=8, kv_full=False, prefill_share=0.5) == "decode-bound"


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"new": True}, {"shared": 1.1}, {"kv": -1}, {"seqs": 0}])
def test_impossible_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used"):
        expected(**{"prompt": 512, "new": 256, "concurrency": 4, **wrong})
