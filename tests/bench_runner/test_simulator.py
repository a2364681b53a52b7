"""One client against an engine whose every step takes 10 ms: times can be worked out on paper."""

from dataclasses import replace

import numpy as np
import pytest

from bench_runner.simulator import Load, Observed, SimulationSettings, Window, simulate
from bench_runner.step_time import StepTable
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.scenario import Workload

IDEAL = SimulationSettings(
    asynchronous=False,
    host_step_ms=0.0,
    host_sequence_ms=0.0,
    request_ms=0.0,
    prompt_token_ms=0.0,
    output_token_ms=0.0,
    ramp_ms=0.0,
    step_jitter=0.0,
)


def constant_table(step_ms: float) -> StepTable:
    """Every step takes step_ms, whatever is in it."""
    grid, zeros = np.array([0.0, 1.0]), np.zeros((2, 2))
    return StepTable(np.full(2, step_ms), np.zeros(2), grid, grid, zeros, grid, grid, zeros)


def run(
    workload: Workload,
    *,
    settings: SimulationSettings = IDEAL,
    candidate: Candidate = CANDIDATES[0],
    blocks: int = 1000,
) -> Observed:
    return simulate(
        Load.of(workload).stream(),
        candidate,
        kv_blocks=blocks,
        table=constant_table(10.0),
        settings=settings,
        window=Window(warm_up_ms=0.0, length_ms=1000.0),
        seed=7,
    )


def workload(prompt: int = 16, output: int = 3, clients: int = 1, ratio: float = 0.0) -> Workload:
    return Workload(prompt_tokens=prompt, max_new_tokens=output, shared_prefix_ratio=ratio, concurrency=clients)


def test_a_lone_client_gets_a_token_every_step() -> None:
    observed = run(workload())
    # Tokens arrive at 10, 20, … ms; 99 of them before 1,000 ms, and every third ends a request.
    assert observed.tokens == 99
    assert observed.ttft_ms.tolist() == pytest.approx([10.0] * 33)
    assert observed.tpot_ms.tolist() == pytest.approx([10.0] * 33)


def test_an_answer_of_one_token_has_a_ttft_and_no_tpot() -> None:
    observed = run(workload(output=1))
    assert len(observed.ttft_ms) == 99
    assert observed.tpot_percentile(95) is None


def test_host_time_adds_to_a_synchronous_step_and_hides_behind_an_asynchronous_one() -> None:
    slow_host = replace(IDEAL, host_step_ms=4.0)
    assert run(workload(), settings=slow_host).tpot_percentile(50) == pytest.approx(14.0)
    hidden = replace(slow_host, asynchronous=True)
    assert run(workload(output=9), settings=hidden).tpot_percentile(50) == pytest.approx(10.0)


def test_front_end_time_per_request_prompt_token_and_output_token_is_on_the_clients_clock() -> None:
    costs = replace(IDEAL, request_ms=5.0, prompt_token_ms=0.25, output_token_ms=1.0)
    observed = run(workload(prompt=16, output=2), settings=costs)
    # 5 + 16 · 0.25 ms in, 10 ms step, 1 ms out.
    assert observed.ttft_percentile(50) == pytest.approx(20.0)
    assert observed.tpot_percentile(50) == pytest.approx(10.0)


def test_the_front_end_serves_one_event_at_a_time() -> None:
    costs = replace(IDEAL, request_ms=100.0)
    observed = run(workload(output=1, clients=2), settings=costs)
    # Both send at 0. The first is through at 100 ms and has its token at 110, but the front end is busy with the second
    # until 200; the first sends again at 200, so the second's token of 210 ms waits until 300.
    assert observed.ttft_ms[:2].tolist() == pytest.approx([200.0, 300.0])


def test_clients_beyond_max_num_seqs_wait_and_are_counted_at_the_end() -> None:
    narrow = replace(CANDIDATES[1], max_num_seqs=1)
    observed = run(workload(output=200, clients=3), candidate=narrow)
    assert observed.waiting_at_end == 2
    assert observed.running_at_end == 1


def test_the_cached_share_approaches_the_designed_prefix_and_is_zero_without_caching() -> None:
    shared = workload(prompt=320, output=2, clients=4, ratio=0.5)
    ratio = run(shared).cached_token_ratio
    assert ratio is not None
    assert 0.45 < ratio <= 0.5
    assert run(shared, candidate=CANDIDATES[13]).cached_token_ratio == 0.0


def test_a_prefix_of_less_than_a_block_can_never_be_hit() -> None:
    assert run(workload(prompt=31, output=2, clients=4, ratio=0.5)).cached_token_ratio == 0.0


def test_too_few_blocks_for_all_clients_lead_to_preemptions_and_full_use() -> None:
    # 4 clients of up to 48 tokens need 12 blocks; there are 8.
    observed = run(workload(prompt=16, output=32, clients=4), blocks=9)
    assert observed.preemptions > 0
    assert observed.kv_usage_peak == 1.0


def test_equal_seeds_give_equal_runs_and_other_seeds_other_arrivals() -> None:
    jittered = replace(IDEAL, ramp_ms=100.0, step_jitter=0.05)
    first, second = run(workload(clients=4), settings=jittered), run(workload(clients=4), settings=jittered)
    assert first.ttft_ms.tolist() == second.ttft_ms.tolist()
    assert len(set(first.ttft_ms.round(6).tolist())) > 10


def test_every_parameter_of_the_simulation_names_its_source() -> None:
    assert set(SimulationSettings().sources()) == set(SimulationSettings.__slots__)
