"""Another engine's facts against what was learnt: what widens, what retrains and what refuses."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from service import engine_options
from service.api.argument_effects import SAME_QUESTION
from service.domain.gpu import ENGINE_VERSION, GPUS
from tests.requalify.scenarios import scenarios
from tests.requalify.verdict import (
    EXIT_CODES,
    Equivalence,
    Facts,
    Rehearsal,
    ScenarioResult,
    Side,
    is_unsafe,
    judge,
    known_options,
    lines_of,
    newly_unsafe,
)

AS_LEARNT = Facts(
    version=ENGINE_VERSION,
    options=known_options(),
    short_forms=engine_options.SHORT_FORMS,
    defaults={"gpu_memory_utilization": 0.92, **{name: values[0] for name, values in SAME_QUESTION.items()}},
    batch_defaults={
        gpu.name: (gpu.engine_default.max_num_seqs, gpu.engine_default.max_num_batched_tokens) for gpu in GPUS
    },
)
AGREES = Equivalence(cells=294, agreed=294)
GOOD, BAD = Side(goodput_tps=100.0, slo_met=True), Side(goodput_tps=0.0, slo_met=False)
HELD = Rehearsal(
    bundle="simulated-0123456789ab",
    asked=200,
    kept=199,
    results=(ScenarioResult(scenario=7, learnt=(GOOD, GOOD), installed=(GOOD, GOOD)),),
)


def outcome(facts: Facts = AS_LEARNT, equivalence: Equivalence = AGREES, rehearsal: Rehearsal = HELD) -> str:
    return judge(facts, equivalence, rehearsal).outcome


def without(options: Mapping[str, str], name: str) -> dict[str, str]:
    return {other: kind for other, kind in options.items() if other != name}


def test_an_engine_that_is_the_same_widens() -> None:
    verdict = judge(AS_LEARNT, AGREES, HELD)
    assert (verdict.outcome, verdict.tables, EXIT_CODES[verdict.outcome]) == ("widen", [], 0)
    assert lines_of(AS_LEARNT, AGREES, HELD, verdict)[-2:] == [
        "scenarios: 200 asked of simulated-0123456789ab, 199 keep the engine's default, 1 simulated: worse than the "
        "default in 0 as learnt and in 0 as installed",
        "verdict: widen",
    ]


def test_new_and_lost_options_are_work_for_the_tables_and_no_retraining() -> None:
    options = {**without(AS_LEARNT.options, "headless"), "warp-drive": "SWITCHES", "seed": "TEXTS"}
    facts = replace(AS_LEARNT, version="0.29.0", options=options, short_forms={"-asc": "api-server-count"})
    verdict = judge(facts, AGREES, HELD)
    assert verdict.outcome == "widen"
    assert verdict.tables[:3] == [
        "new option --warp-drive (SWITCHES): out of support until somebody looked at it",
        "option --headless is gone",
        "--seed takes TEXTS and took INTEGERS",
    ]
    assert verdict.tables[3].startswith("short forms differ: -ac attention-config, ")
    lines = lines_of(facts, AGREES, HELD, verdict)
    assert lines[-2:] == [
        "before the version is named, the differences in the tables have to be taken over",
        "verdict: widen",
    ]


def test_an_engine_whose_options_cannot_be_read_is_refused_for_that_alone() -> None:
    facts = replace(AS_LEARNT, options={}, short_forms={}, defaults={}, problems=("its options cannot be read: no",))
    verdict = judge(facts, AGREES, HELD)
    assert (verdict.refuse, verdict.retrain, verdict.tables) == (["its options cannot be read: no"], [], [])


@pytest.mark.parametrize("name", ["max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"])
def test_an_engine_without_an_argument_that_is_set_is_refused(name: str) -> None:
    verdict = judge(replace(AS_LEARNT, options=without(AS_LEARNT.options, name)), AGREES, HELD)
    assert verdict.outcome == "refuse"
    assert f"--{name}, which is set, is no option of it" in verdict.refuse


def test_an_argument_that_is_set_and_takes_another_value_retrains() -> None:
    facts = replace(AS_LEARNT, options={**AS_LEARNT.options, "max-num-seqs": "TEXTS"})
    assert judge(facts, AGREES, HELD).retrain == ["--max-num-seqs takes TEXTS and took INTEGERS"]


def test_another_start_on_any_gpu_retrains() -> None:
    facts = replace(AS_LEARNT, batch_defaults={**AS_LEARNT.batch_defaults, "NVIDIA-L4": (512, 4096)})
    assert judge(facts, AGREES, HELD).retrain == [
        "on NVIDIA-L4 it starts with 512 sequences and 4096 batched tokens, not 256 and 2048"
    ]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gpu_memory_utilization", 0.9, "its gpu_memory_utilization is 0.9, not 0.92"),
        ("scheduling_policy", "priority", "the default of --scheduling-policy is 'priority', not 'fcfs'"),
        ("stream_interval", 8, "the default of --stream-interval is 8, not 1"),
    ],
)
def test_another_default_retrains(name: str, value: object, words: str) -> None:
    facts = replace(AS_LEARNT, defaults={**AS_LEARNT.defaults, name: value})
    assert judge(facts, AGREES, HELD).retrain == [words]


def test_a_default_that_is_left_open_is_no_other_default() -> None:
    assert outcome(replace(AS_LEARNT, defaults={**AS_LEARNT.defaults, "enable_chunked_prefill": None})) == "widen"


def test_a_scheduler_that_decides_otherwise_retrains_and_one_that_cannot_be_run_is_refused() -> None:
    other = Equivalence(cells=10, agreed=9, first_difference="cell 3, step ends")
    assert judge(AS_LEARNT, other, HELD).retrain == [
        "its scheduler decides otherwise in 1 of 10 random cells, first: cell 3, step ends"
    ]
    assert outcome(equivalence=Equivalence(cells=10, agreed=0, problem="ImportError: no")) == "refuse"


def test_a_recommendation_that_became_worse_than_the_default_retrains() -> None:
    worse = ScenarioResult(scenario=3, learnt=(GOOD, GOOD), installed=(BAD, GOOD))
    found = replace(HELD, results=(*HELD.results, worse))
    assert judge(AS_LEARNT, AGREES, found).retrain == [
        "in 1 of 2 scenarios the recommendation is now worse than its default and was not before, first: scenario 3"
    ]


def test_a_recommendation_that_always_was_worse_is_not_the_engine_s_doing() -> None:
    always = ScenarioResult(scenario=3, learnt=(BAD, GOOD), installed=(BAD, GOOD))
    better = ScenarioResult(scenario=4, learnt=(BAD, GOOD), installed=(GOOD, GOOD))
    assert newly_unsafe([always, better]) == []


@pytest.mark.parametrize(
    ("chosen", "default", "expected"),
    [
        (GOOD, GOOD, False),
        (BAD, GOOD, True),
        (BAD, BAD, False),
        (GOOD, BAD, False),
        (replace(GOOD, goodput_tps=95.0), GOOD, False),
        (replace(GOOD, goodput_tps=94.9), GOOD, True),
    ],
)
def test_unsafe_is_a_newly_violated_slo_or_five_percent_of_goodput(chosen: Side, default: Side, expected: bool) -> None:
    assert is_unsafe(chosen, default) is expected


def test_a_verdict_on_little_is_called_provisional_and_one_on_nothing_is_refused() -> None:
    little = replace(AGREES, cells=24, agreed=24)
    assert "provisional: 294 cells" in lines_of(AS_LEARNT, little, HELD, judge(AS_LEARNT, little, HELD))[-2]
    assert "provisional" not in " ".join(lines_of(AS_LEARNT, AGREES, HELD, judge(AS_LEARNT, AGREES, HELD)))
    assert outcome(equivalence=replace(AGREES, cells=0, agreed=0)) == "refuse"
    assert outcome(rehearsal=replace(HELD, asked=0)) == "refuse"


def test_the_gravest_reason_decides() -> None:
    facts = replace(AS_LEARNT, problems=("nothing can be read",), defaults={})
    assert outcome(facts) == "refuse"
    assert (EXIT_CODES["retrain"], EXIT_CODES["refuse"]) == (3, 4)
    assert outcome(rehearsal=replace(HELD, problem="the service did not answer")) == "refuse"


def test_scenarios_are_the_same_for_every_engine_and_inside_the_contexts() -> None:
    asked = scenarios(200)
    assert asked == scenarios(200)
    assert len({one.workload for one in asked}) > 190
    # The shortest context of these models is 40,960 tokens.
    assert max(one.workload.sequence_tokens for one in asked) <= 17_024
    assert asked[0].arguments()[:4] == ["recommend", f"--model={asked[0].model}", "--gpu=B200", "--json"]
