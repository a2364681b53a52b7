"""Where estimates say more than the runs behind them carry, or contradict each other, it is said; worked out by hand.

Of 32 sequences and of vLLM's default (1,024): throughput, TTFT, TPOT and chances, each linear in the logarithm of the
sequences between the two.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench_runner.true_workload import window_of
from service.__main__ import main
from service.api.estimate_warnings import WATCHED_MS
from service.app import create_app
from service.domain.manifest import Abstention
from service.settings import Settings
from tests.service.bundles import Linear, estimator_graph, only_sequences, write_bundle
from tests.service.conftest import QUESTION, Client

SEQS = "log2_max_num_seqs"
Build = Callable[..., Client]


def between(ours: float, theirs: float) -> Linear:
    """`ours` for 32 sequences (2 to the 5th), `theirs` for 1,024 (2 to the 10th)."""
    return Linear(at=2 * ours - theirs, by={SEQS: (theirs - ours) / 5})


def in_logarithms(ours: float, theirs: float) -> Linear:
    return between(math.log(ours), math.log(theirs))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Each pair is of 32 sequences and of vLLM's default; 32 sequences rank first."""

    def client(
        *,
        tps: tuple[float, float] = (5000, 5000),
        ttft: tuple[float, float] = (200, 200),
        tpot: tuple[float, float] = (20, 20),
        slo: tuple[float, float] = (0.9, 0.9),
        not_worse: tuple[float, float] = (0.99, 0.99),
        margin: float = 0.01,
        **changes: Any,
    ) -> Client:
        estimator = estimator_graph(
            throughput=in_logarithms(*tps),
            ttft=in_logarithms(*ttft),
            tpot=in_logarithms(*tpot),
            chances=(between(*slo), between(*not_worse)),
        )
        folder = write_bundle(
            tmp_path / "bundle",
            model=only_sequences(-1.0),
            estimator=estimator,
            abstention=Abstention(margin=margin),
            **changes,
        )
        return Client(create_app(Settings(bundle_dir=folder, data_dir=tmp_path / "data")))

    return client


def asked(client: Client, *, confidence: str = "exact", **changes: Any) -> dict[str, Any]:
    return client.answer({**QUESTION, "workload": {**QUESTION["workload"], "confidence": confidence}, **changes})


def watched(answer: dict[str, Any]) -> list[str]:
    return [text for text in answer["warnings"] if "were watched for" in text]


def test_simulated_runs_are_watched_for_no_longer_than_is_said() -> None:
    longest = window_of(1e9)
    assert longest.warm_up_ms + longest.length_ms == WATCHED_MS


def test_answers_that_no_simulated_run_saw_end_are_warned_of(build: Build) -> None:
    # 256 tokens of 50 ms are 12.8 s; of vLLM's default 2.56 s.
    (said,) = watched(asked(build(tpot=(50, 10))))
    assert said == (
        "Answers of 256 tokens take about 13 s with s32-b2048-g0.45-p1 at 50 ms each, longer than the 10.5 s that "
        "simulated runs were watched for at most: such runs count as violating the SLO, so chances and ranking say "
        "little here (simulated)."
    )
    # It is what is compared with that would not be seen to end.
    (said,) = watched(asked(build(tpot=(10, 50))))
    assert "with s1024-b16384-g0.92-p1 at 50 ms each" in said


def test_answers_that_end_in_time_are_not_warned_of(build: Build) -> None:
    # 256 tokens of 41 ms are 10,496 ms, of 41.1 ms 10,522.
    assert not watched(asked(build(tpot=(41, 41))))
    assert watched(asked(build(tpot=(41.1, 41))))


def test_it_is_the_mean_answer_that_has_to_end(build: Build) -> None:
    # As usual 0.7 of the limit are generated: 179 tokens of 50 ms are 8.96 s, of 60 ms 10.75 s.
    assert not watched(asked(build(tpot=(50, 50)), confidence="typical"))
    (said,) = watched(asked(build(tpot=(60, 60)), confidence="typical"))
    assert said.startswith("Answers of 179 tokens take about 11 s")


def test_measured_runs_have_no_such_window(build: Build) -> None:
    assert not watched(asked(build(tpot=(50, 50), evidence="measured")))


def lost(answer: dict[str, Any]) -> list[str]:
    return [text for text in answer["warnings"] if "is expected to deliver less than" in text]


# 0.8 · 1.1 is less than 1: in nearly all workloads 32 sequences deliver less.
LESS = (4000.0, 5000.0)
LEAD = "s32-b2048-g0.45-p1 is expected to deliver less than vLLM's defaults"


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        (
            (0.9, 0.9),
            [
                f"{LEAD}, and has no higher chance to meet the limits (simulated): the estimate and the ranking "
                "disagree; keeping vLLM's defaults is the safe choice."
            ],
        ),
        (
            (0.93, 0.9),
            [f"{LEAD}; it ranks first for its chance to meet the limits of training (93 % against 90 %: simulated)."],
        ),
        ((0.96, 0.9), []),  # said in the summary
    ],
)
def test_a_loss_that_is_told_has_a_reason_or_a_warning(build: Build, slo: tuple[float, float], said: list[str]) -> None:
    answer = asked(build(tps=LESS, slo=slo))
    assert answer["decision"] == "recommended"
    assert lost(answer) == said
    assert ("the SLO met in 96 %" in answer["summary"]) is (not said)


def test_with_limits_of_one_s_own_no_chance_says_what_a_loss_is_for(build: Build) -> None:
    answer = asked(build(tps=LESS), slo={"max_p95_ttft_ms": 2000})
    assert lost(answer) == [f"{LEAD} (simulated); it ranks first for the limits of training, which are not yours."]


def test_over_a_range_a_loss_is_that_of_its_middle(build: Build) -> None:
    client = build(tps=LESS)
    answer = client.answer({**QUESTION, "workload": {**QUESTION["workload"], "concurrency": [16, 256]}})
    (said,) = lost(answer)
    assert said.startswith(f"{LEAD} at the middle of the range, and has no higher chance")


def test_no_loss_is_warned_of_where_none_is_told_or_none_is_recommended(build: Build) -> None:
    # 0.95 · 1.1 is more than 1, and nothing is known of the error; a gain is no loss; nor is what is not set.
    assert not lost(asked(build(tps=(4750, 5000))))
    assert not lost(asked(build(tps=(6000, 5000))))
    assert not lost(asked(build(tps=LESS, margin=9.0)))


def test_against_what_is_fixed_the_two_numbers_say_what_is_less(build: Build) -> None:
    # 1,000 and 5,000 tokens/s, a quarter around each.
    (said,) = lost(asked(build(tps=(1000, 5000)), fixed={"max_num_batched_tokens": 8192}))
    assert "deliver less than what you fixed with vLLM's defaults for the rest, and has no higher chance" in said


WORDS = (
    "--model Qwen/Qwen3-8B --gpu B200 --prompt-tokens 512 --max-new-tokens 256 --shared-prefix-ratio 0 --concurrency 64"
)
SEPARATELY = " of the workloads (estimated separately), "


@pytest.mark.parametrize(
    ("slo", "shown"),
    [
        # TTFT is 200 ms of 3,000 for 32 sequences, and 4,000 for vLLM's default.
        ((0.4, 0.6), ("meets the limits, the SLO met in 40 %" + SEPARATELY, "the SLO met in 60 %" + SEPARATELY)),
        ((0.6, 0.4), ("meets the limits, the SLO met in 60 % of the workloads, ", "met in 40 % of the workloads, ")),
    ],
)
def test_a_chance_that_says_the_opposite_of_the_verdict_beside_it_is_told_from_it(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slo: tuple[float, float],
    shown: tuple[str, str],
) -> None:
    build(ttft=(200, 4000), slo=slo)
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(tmp_path / "bundle"))
    assert main(["recommend", *WORDS.split()]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("expected of ")]
    assert [words in line for words, line in zip(shown, lines, strict=True)] == [True, True]
    assert "misses max_p95_ttft_ms, " in lines[1]
