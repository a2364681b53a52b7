"""Whatever is said of a workload, it is answered or refused by name: never a failure inside."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.app import create_app
from service.domain.manifest import Abstention
from service.settings import Settings
from tests.service.bundles import graph, random_layers, write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.test_expected import ESTIMATOR


def _or_range(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return numbers | st.lists(numbers, min_size=2, max_size=2)


COUNTS = _or_range(st.integers(0, 3000) | st.sampled_from([1, 10_000, 10_000_000, 10_000_001]))
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(["chat", "rag", "agent", "longgen"]),
        "prompt_tokens": COUNTS,
        "max_new_tokens": COUNTS,
        "output_tokens": COUNTS,
        "max_output_tokens": st.integers(1, 3000) | st.just(10_000_000),
        "shared_prefix_ratio": _or_range(st.floats(0, 1.01)),
        "shared_prefix_tokens": COUNTS,
        "concurrency": _or_range(st.integers(1, 4096) | st.just(100_000)),
        "requests_per_second": _or_range(st.floats(1e-7, 1e6)),
        "replicas": st.integers(1, 9) | st.just(100_000),
        "confidence": st.sampled_from(["exact", "typical", "rough"]),
    },
) | st.fixed_dictionaries(
    # Mostly answered: one shape, and a prefix that may hold the shape's own.
    {"preset": st.sampled_from(["chat", "rag", "agent"])},
    optional={
        "shared_prefix_tokens": st.tuples(st.sampled_from([0, 100, 2700]), st.integers(0, 8000)).map(sorted),
        "replicas": st.integers(1, 9),
    },
).flatmap(lambda shape: st.integers(1, 900).map(lambda clients: {**shape, "concurrency": clients}))


@pytest.fixture(scope="module")
def any_client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Of a bundle that expects numbers."""
    abstention = Abstention(margin=0.0, threshold=0.9, near_tie=0.05, low_utilisation_gain=0.1)
    folder = tmp_path_factory.mktemp("any") / "bundle"
    write_bundle(folder, model=graph(random_layers(1)), estimator=ESTIMATOR, abstention=abstention)
    return Client(create_app(Settings(bundle_dir=folder)))


@settings(max_examples=250, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(words=WORDS, by_config=st.booleans(), explain=st.booleans())
def test_any_words_are_answered_or_refused_by_name(
    any_client: Client, words: dict[str, Any], by_config: bool, explain: bool
) -> None:
    # One model whose config states a context, and one by its numbers, which any length fits.
    numbers = {"weight_gb": 16.4, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456}
    model = QUESTION["model"] if by_config else numbers
    response = any_client.recommend({**QUESTION, "model": model, "workload": words, "explain": explain})
    assert response.status_code in (200, 422), response.text
    content = json.loads(response.content)
    if response.status_code == 422:
        for detail in content["details"]:
            field = detail["path"].removeprefix("$.workload.").partition("[")[0]
            assert field in words or detail["message"].startswith("this field is required"), response.text
    else:
        assert all(math.isfinite(row["score"]) for row in content["ranked"])
