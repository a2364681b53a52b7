"""What the service is compared with does the same work: the same candidates in the same order."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.types import Message

from service.api.query import read_query
from service.domain.features import encode
from service.domain.ranking import rank
from service.policies import Policies, load_policy
from service.settings import DEFAULT_BUNDLE_DIR
from tests.service_bench.kernel import Kernel
from tests.service_bench.questions import creations, questions
from tests.service_bench.variant import APPS, scope

# Its graph has no transformation before the first layer, so the kernel computes all of it.
WITHOUT_TRANSFORMATION = DEFAULT_BUNDLE_DIR.parent / "qwen3-b200-reference"


def ranked(name: str, folder: Path, question: dict[str, Any]) -> list[str]:
    """Ids of the configurations, best first, that a variant answers with."""
    sent: list[Message] = []
    body = json.dumps(question).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await APPS[name](folder)(scope(len(body)), receive, send)

    asyncio.run(ask())
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    return [row["config_id"] for row in answer["ranked"]]


@pytest.mark.parametrize("name", sorted(APPS.keys() - {"shipped"}))
def test_every_variant_ranks_as_the_service_does(name: str, tmp_path: Path) -> None:
    # 32B of weights and less fit everywhere on a B200: with nothing infeasible all of them order by score alone.
    question = questions(1)[0] | {"model": {"name": "Qwen/Qwen3-8B"}}
    assert ranked(name, tmp_path / "other", question) == ranked("shipped", tmp_path / "shipped", question)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_the_kernel_scores_and_orders_as_the_network_does(tmp_path: Path) -> None:
    policy = load_policy(WITHOUT_TRANSFORMATION)
    scenarios = [read_query(body, policies=Policies(policy), default_gpu=None).query.scenario for body in questions(50)]
    rows = np.ascontiguousarray([encode(scenario) for scenario in scenarios])
    scores, best_first = Kernel(tmp_path, policy.bundle.model).rank_all(rows)
    np.testing.assert_allclose(scores, policy.scorer.score(rows), rtol=1e-4, atol=1e-4)
    assert best_first.tolist() == [rank(row) for row in scores]


def test_questions_and_creations_differ_from_each_other() -> None:
    assert len({json.dumps(question) for question in questions(500)}) == 500
    assert len({json.dumps(creation) for creation in creations(500)}) == 500
