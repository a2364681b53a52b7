"""What a bundle was calibrated with offline is what the service does with it: the same graphs, the same choices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from offline.robust.estimator_graph import run_estimator_graph
from offline.robust.forecast import RATIOS as RATIOS_OFFLINE
from offline.robust.rule import Question, Rule
from service.domain.candidate import CANDIDATES
from service.domain.catalogue import model_by_name
from service.domain.features import encode_candidate, encode_state
from service.domain.gpu import gpu_by_name
from service.domain.manifest import ESTIMATOR_FILE, Abstention
from service.domain.scenario import Scenario, Workload
from service.domain.slo import REFERENCE_SLO
from service.forecast_error import RATIOS
from service.policies import Policy, load_policy
from service.recommend import DEFAULT_ROW, Query, recommend_all
from service.settings import DEFAULT_BUNDLE_DIR
from tests.service.test_shipped_bundles import SHIPPED

# Small enough to start with each candidate on each of the GPUs.
MODELS = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
RULES = {
    "shipped": None,
    "both prices": Abstention(margin=0.01, risk_price=2.0, fixed_price=1.0, threshold=0.8, near_tie=0.01),
    "price of candidate 0": Abstention(margin=0.0, fixed_price=3.0, low_utilisation_gain=0.02),
    "price of the default": Abstention(margin=0.0, risk_price=3.0, near_tie=0.02),
    "no price": Abstention(margin=0.0),
}


def queries(policy: Policy, count: int) -> list[Query]:
    """Of the policy's GPU, inside of what it was trained for."""
    dice = np.random.default_rng(3)
    gpu = gpu_by_name(policy.manifest.gpu)
    return [
        Query(
            scenario=Scenario(
                model=model_by_name(MODELS[number % len(MODELS)]),
                workload=Workload(
                    prompt_tokens=int(2 ** dice.uniform(6, 12)),
                    max_new_tokens=int(2 ** dice.uniform(5, 10)),
                    shared_prefix_ratio=float(dice.uniform(0, 0.9)),
                    concurrency=int(2 ** dice.uniform(1, 8)),
                ),
            ),
            gpu=gpu,
            engine_version=policy.manifest.engine_version,
            slo=REFERENCE_SLO,
            fixed={},
        )
        for number in range(count)
    ]


def chosen_offline(policy: Policy, asked: list[Query], caution: Abstention) -> list[int]:
    """By offline's rule over what its own reader finds in the graphs."""
    configurations = [encode_candidate(one) for one in (*CANDIDATES, asked[0].gpu.engine_default)]
    features = np.array(
        [[[*encode_state(query.scenario), *one] for one in configurations] for query in asked], dtype=np.float32
    )
    ranker = onnxruntime.InferenceSession(policy.bundle.model)
    (scores,) = ranker.run(None, {"features": features.reshape(-1, features.shape[-1])})
    question = Question(
        scores=scores.reshape(features.shape[:2]),
        not_worse=run_estimator_graph(policy.bundle.files[ESTIMATOR_FILE], features).not_worse,
        starts=np.ones(features.shape[:2], dtype=np.bool_),
        supported=np.ones(len(features), dtype=np.bool_),
        engine_default=asked[0].gpu.engine_default,
    )
    given = {name: getattr(caution, name) for name in Abstention.__slots__}
    found: list[int] = question.choices(Rule(**{name: value or 0.0 for name, value in given.items()})).tolist()
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [name for name, *_ in SHIPPED])
def test_the_service_chooses_as_the_rule_that_was_calibrated(name: str, rule: str) -> None:
    shipped = load_policy(DEFAULT_BUNDLE_DIR.parent / name)
    caution = RULES[rule] or shipped.manifest.abstention
    assert caution is not None
    policy = Policy(replace(shipped.bundle, manifest=replace(shipped.manifest, abstention=caution)))
    asked = queries(policy, 200)
    answers = recommend_all(asked, policy)
    assert all(not one.out_of_range and all(row.exclusion is None for row in one.ranked) for one in answers)
    found = [one.ranked[0].candidate_index if one.decision == "recommended" else DEFAULT_ROW for one in answers]
    assert found == chosen_offline(policy, asked, caution)
    # Neither all nor none: the rule had something to decide.
    assert 0 < sum(index == DEFAULT_ROW for index in found) < len(found)


def test_both_prices_change_what_is_chosen() -> None:
    """Else the agreement would say nothing about them."""
    shipped = load_policy(Path(DEFAULT_BUNDLE_DIR))
    asked = queries(shipped, 200)
    by_rule = [
        chosen_offline(shipped, asked, Abstention(margin=0.0, risk_price=one, fixed_price=other))
        for one, other in ((0.0, 0.0), (3.0, 0.0), (0.0, 3.0), (3.0, 3.0))
    ]
    assert len({tuple(choices) for choices in by_rule}) == len(by_rule)


def test_errors_of_ratios_are_read_by_the_names_that_they_are_written_by() -> None:
    assert RATIOS == RATIOS_OFFLINE
