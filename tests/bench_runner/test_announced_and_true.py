"""What is announced covers the space and keeps regions apart; what comes is off by as much as it is said to be."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench_runner.announced import BEYOND, Announced, draw_base, in_held_out_block, push_beyond
from bench_runner.architectures import HELD_OUT_FAMILIES, architectures
from bench_runner.list_sets import (
    EXACT,
    NOMINAL_DRAW,
    ROUGH,
    SETS,
    TYPICAL,
    ListSet,
    ScenarioSource,
    anchors_of,
    definition_sha256,
    kind_of,
)
from bench_runner.true_workload import TrueWorkload, Uncertainty, draw_numbers, lengths_of, stream_of, window_of
from service.domain.scenario import Workload


def anchors() -> list[tuple[str, Workload]]:
    """Enough of them that some lie near every region."""
    rng = np.random.default_rng(9)
    return [(one.architecture.name, one.workload) for one in (draw_base(rng, architectures()) for _ in range(300))]


ANCHORS = anchors()


def announced(*, prompt: int = 1000, output: int = 200, ratio: float = 0.5, clients: int = 32) -> Announced:
    one = next(a for a in architectures() if a.name == "Qwen/Qwen3-8B")
    workload = Workload(prompt_tokens=prompt, max_new_tokens=output, shared_prefix_ratio=ratio, concurrency=clients)
    return Announced(architecture=one, workload=workload, stratum="base")


def test_17_architectures_of_8_families_are_trained_and_6_of_2_whole_families_held_out() -> None:
    trained = [one for one in architectures() if one.family not in HELD_OUT_FAMILIES]
    held_out = [one for one in architectures() if one.family in HELD_OUT_FAMILIES]
    assert (len(trained), len({one.family for one in trained})) == (17, 8)
    assert (len(held_out), len({one.family for one in held_out})) == (6, 2)
    sizes = sorted(one.model.weight_gb / 2 for one in trained)
    assert sizes[0] < 0.5
    assert sizes[-1] > 32


def test_scenarios_fit_their_ranges_and_their_models() -> None:
    rng = np.random.default_rng(1)
    for one in (draw_base(rng, architectures()) for _ in range(300)):
        workload = one.workload
        assert 16 <= workload.prompt_tokens <= 32_768
        assert 1 <= workload.max_new_tokens <= 4096
        assert 1 <= workload.concurrency <= 512
        assert 0 <= workload.shared_prefix_ratio <= 0.95
        assert workload.sequence_tokens <= one.architecture.context


@pytest.mark.parametrize(
    ("name", "held_out"), [("train-base", False), ("train-focus", False), ("dev", False), ("T2", True), ("T5", False)]
)
def test_training_and_testing_regions_do_not_overlap(name: str, held_out: bool) -> None:
    source = ScenarioSource.of(SETS[name], ANCHORS)
    inside = source.list_set.base + source.list_set.focus
    for index in range(0, inside, inside // 40):
        assert in_held_out_block(source.scenario(index).workload) == held_out


def test_scenarios_beyond_the_hull_exceed_it_in_the_named_dimension_alone() -> None:
    source = ScenarioSource.of(SETS["T2"], ANCHORS)
    first = source.list_set.base + source.list_set.focus
    for index in range(first, first + 40):
        one = source.scenario(index)
        values = {
            "prompt": one.workload.prompt_tokens,
            "output": one.workload.max_new_tokens,
            "concurrency": one.workload.concurrency,
            "prefix": one.workload.shared_prefix_ratio,
        }
        beyond = [name for name, value in values.items() if value > BEYOND[name][0]]
        assert one.stratum.startswith(f"beyond {beyond[0]}")
        assert len(beyond) == 1


def test_what_no_context_holds_cannot_be_pushed_beyond() -> None:
    assert push_beyond(np.random.default_rng(0), announced(), "prompt") is None  # 40,960 positions


def test_a_scenario_is_the_same_whichever_were_drawn_before_it() -> None:
    source = ScenarioSource.of(SETS["train-base"], ())
    assert source.scenario(7) == source.scenario(7)
    assert source.scenario(7) != source.scenario(8)


def test_no_two_sets_share_their_seeds_but_the_levels_of_t6() -> None:
    draw_seeds = [one.draw_seed for one in SETS.values() if not one.further]
    assert len(set(draw_seeds)) == len(draw_seeds)
    assert SETS["T6-exact"].seed == SETS["T6-typical"].seed
    # What was tested on under the two registrations before is not tested on again, nor is what was trained on.
    tested = {one.seed for one in SETS.values() if one.test}
    assert tested.isdisjoint({*range(22, 29), *range(42, 53)})
    assert tested.isdisjoint(one.seed for one in SETS.values() if not one.test)
    seeds = [one.seed for one in SETS.values() if not one.test]
    assert len(set(seeds)) == len(seeds)


def test_errors_are_log_normal_with_the_announced_spread() -> None:
    rng = np.random.default_rng(2)
    draws = [draw_numbers(rng, announced(), TYPICAL) for _ in range(4000)]
    prompts = np.log([one.prompt_tokens / 1000 for one in draws])
    clients = np.log([one.clients / 32 for one in draws])
    # One standard deviation of 4,000 draws is 1 % of the spread.
    assert prompts.std() == pytest.approx(math.log(1.4), rel=0.05)
    assert clients.std() == pytest.approx(math.log(1.8), rel=0.05)
    assert abs(prompts.mean()) < 0.02
    rough = [draw_numbers(rng, announced(), ROUGH) for _ in range(4000)]
    assert np.log([one.clients / 32 for one in rough]).std() == pytest.approx(2 * math.log(1.8), rel=0.06)


def test_exactly_announced_is_exactly_that() -> None:
    true = draw_numbers(np.random.default_rng(3), announced(), EXACT)
    assert true == TrueWorkload(
        kind="fixed",
        prompt_tokens=1000.0,
        output_cap=200,
        shared_prefix_ratio=0.5,
        clients=32,
        prefixes=1,
        think_ms=0.0,
    )


def test_twice_the_clients_are_twice_the_clients_whatever_else_is_off() -> None:
    rng = np.random.default_rng(4)
    twice = replace(TYPICAL, clients_factor=2.0)
    assert {draw_numbers(rng, announced(), twice).clients for _ in range(20)} == {64}


def test_an_announced_ratio_of_nothing_stays_nothing() -> None:
    rng = np.random.default_rng(5)
    assert {draw_numbers(rng, announced(ratio=0.0), ROUGH).shared_prefix_ratio for _ in range(50)} == {0.0}


@pytest.mark.parametrize("kind", ["spread", "sharegpt", "servegen-m-large", "azure2023_conv", "mooncake_conversation"])
def test_lengths_have_the_announced_mean_prompt_and_stay_below_the_output_cap(kind: str) -> None:
    true = TrueWorkload(
        kind=kind,
        prompt_tokens=1000.0,
        output_cap=200,
        shared_prefix_ratio=0.5,
        clients=8,
        prefixes=1,
        think_ms=0.0,
    )
    own, output = lengths_of(np.random.default_rng(6), true, 40_000, context=40_960)
    # Half of the prompt is the prefix in front.
    assert own.mean() == pytest.approx(500, rel=0.1)
    assert output.max() <= 200
    assert output.min() >= 1


def test_a_stream_repeats_unless_clients_think() -> None:
    rng = np.random.default_rng(7)
    busy = TrueWorkload(
        kind="spread",
        prompt_tokens=400.0,
        output_cap=50,
        shared_prefix_ratio=0.25,
        clients=5,
        prefixes=3,
        think_ms=0.0,
    )
    stream = stream_of(rng, busy, context=4096, cycle_ms=500.0, end_ms=4000.0)
    assert stream.repeats
    assert len(stream.queue_of) == 5
    # Three prefixes of 100 tokens have six whole blocks each.
    assert stream.shared_numbers <= 18
    thinking = stream_of(rng, replace(busy, think_ms=500.0), context=4096, cycle_ms=500.0, end_ms=4000.0)
    assert not thinking.repeats


def test_a_window_is_long_where_a_clients_turn_is_and_has_bounds() -> None:
    assert (window_of(100.0).warm_up_ms, window_of(100.0).length_ms) == (1250.0, 3000.0)
    assert (window_of(2000.0).warm_up_ms, window_of(2000.0).length_ms) == (2000.0, 4000.0)
    assert (window_of(1e6).warm_up_ms, window_of(1e6).length_ms) == (2500.0, 8000.0)


def test_traces_shape_the_traffic_of_t4_alone_and_never_its_nominal_draw() -> None:
    assert kind_of(SETS["T4"], 0, 3) == "azure2023_conv"
    assert kind_of(SETS["T4"], 1, 3) == "mooncake_conversation"
    assert kind_of(SETS["T4"], 1, NOMINAL_DRAW) is None
    assert {kind_of(one, 0, 0) for name, one in SETS.items() if not name.startswith("T4")} == {None}


def test_draws_for_oracles_come_on_top_of_those_that_are_judged() -> None:
    one = ListSet(name="made", seed=1, draw_seed=2, base=4, focus=0, draws=8, further=True)
    items = one.items()
    # Of every scenario, twenty and the one in which exactly what was announced comes.
    for number in range(4):
        assert [draw for scenario, draw in items if scenario == number] == [*range(8, 28), NOMINAL_DRAW]
    assert len(items) == 4 * 21
    assert [draw for scenario, draw in replace(one, further=False).items() if scenario == 1] == [*range(8)]
    assert one.uncertainty_of(0) == Uncertainty()
    assert one.uncertainty_of(NOMINAL_DRAW) == EXACT


@pytest.mark.parametrize("name", ["T2", "T3", "T4", "T6-typical"])
def test_an_oracle_looks_at_the_very_scenarios_that_are_judged(name: str) -> None:
    judged, oracles = SETS[name], SETS[f"{name}-oracle"]
    assert replace(oracles, name=name, further=False) == judged
    assert {scenario for scenario, _ in oracles.items()} == {scenario for scenario, _ in judged.items()}
    assert not set(oracles.items()) & set(judged.items())


def test_the_choice_mattered_where_a_default_loses_more_than_a_twentieth() -> None:
    status = np.zeros((3, 16))
    throughput = np.full((3, 16), 100.0)
    throughput[0, 3] = 104.0  # the best is 4 % faster: no
    throughput[1, 3] = 110.0  # 9 % slower than the best: yes
    status[2, 15] = 1  # the engine's default violates what others keep: yes
    rows = {
        "status": status,
        "throughput_tps": throughput,
        "model": np.array(["m"] * 3),
        "prompt_tokens": np.array([10, 11, 12]),
        "max_new_tokens": np.array([5, 5, 5]),
        "shared_prefix_ratio": np.zeros(3),
        "concurrency": np.array([4, 4, 4]),
    }
    assert [workload.prompt_tokens for _, workload in anchors_of(rows)] == [11, 12]


def test_the_definition_has_one_name() -> None:
    assert definition_sha256() == definition_sha256()
    assert len(definition_sha256()) == 64
