"""A bundle that scores the engine's default sets flags only where the best candidate promises more than its margin."""

from pathlib import Path

import pytest

from service.domain.catalogue import model_by_name
from service.domain.errors import ArtefactError
from service.domain.gpu import B200, ENGINE_VERSION
from service.domain.manifest import Abstention, Manifest
from service.domain.scenario import Scenario, Workload
from service.domain.slo import REFERENCE_SLO
from service.exclusion import EngineArgs
from service.policies import load_policy
from service.recommend import Query, Recommendation, recommend
from tests.service.bundles import only_sequences, write_bundle


def answer(folder: Path, *, slope: float, margin: float | None, fixed: EngineArgs | None = None) -> Recommendation:
    abstention = None if margin is None else Abstention(margin=margin)
    policy = load_policy(write_bundle(folder, model=only_sequences(slope), abstention=abstention))
    workload = Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=64)
    return recommend(
        Query(
            scenario=Scenario(model=model_by_name("Qwen/Qwen3-8B"), workload=workload),
            gpu=B200,
            engine_version=ENGINE_VERSION,
            slo=REFERENCE_SLO,
            fixed=fixed or {},
        ),
        policy,
    )


def test_the_default_stays_where_it_scores_highest(tmp_path: Path) -> None:
    found = answer(tmp_path, slope=1.0, margin=0.0)
    assert (found.decision, found.reason) == ("keep_engine_default", "no_better_than_engine_default")
    assert found.flags == {}
    assert len(found.ranked) == 15


@pytest.mark.parametrize(
    ("margin", "decision"),
    [
        (4.9, "recommended"),  # with slope −1 the best has −5 and the default −10
        (5.0, "keep_engine_default"),  # a gain of exactly the margin is not more than it
    ],
)
def test_flags_are_set_where_the_gain_exceeds_the_margin(tmp_path: Path, margin: float, decision: str) -> None:
    found = answer(tmp_path, slope=-1.0, margin=margin)
    assert found.decision == decision
    assert found.ranked[0].score == -5.0


def test_a_bundle_without_abstention_always_recommends(tmp_path: Path) -> None:
    assert answer(tmp_path, slope=1.0, margin=None).decision == "recommended"


def test_who_has_fixed_an_argument_compares_with_what_starts_then(tmp_path: Path) -> None:
    # With 8,192 tokens fixed vLLM starts with 1,024 sequences, -10 with slope -1; the best that agrees has 32, -5.
    fixed = {"max_num_batched_tokens": 8192}
    assert answer(tmp_path / "a", slope=-1.0, margin=4.9, fixed=fixed).decision == "recommended"
    assert answer(tmp_path / "b", slope=-1.0, margin=5.0, fixed=fixed).decision == "keep_engine_default"
    # With 32 sequences fixed everything has 5: vLLM's own 10 does not count, nor is anything gained.
    found = answer(tmp_path / "c", slope=1.0, margin=0.0, fixed={"max_num_seqs": 32})
    assert (found.reason, found.kept_score) == ("no_better_than_engine_default", 5.0)


def test_a_manifest_may_leave_abstention_out_and_keeps_it_where_it_is(tmp_path: Path) -> None:
    without = load_policy(write_bundle(tmp_path / "a")).bundle.manifest
    assert without.abstention is None
    assert "abstention" not in without.to_json()
    with_it = load_policy(write_bundle(tmp_path / "b", abstention=Abstention(margin=0.02))).bundle.manifest
    assert Manifest.from_json(with_it.to_json()).abstention == Abstention(margin=0.02)


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf"), True, "0.1"])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(ArtefactError, match="margin"):
        Abstention(margin=margin)
