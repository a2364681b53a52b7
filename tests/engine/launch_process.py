"""Answers with all their forms, in the service's own environment: JSON list of questions in, JSON list of answers out.

A question that is a number asks for the forms of that candidate.
"""

import json
import sys
from typing import Any, get_args

from service.api.answer import answer
from service.api.launch import Launch, renders
from service.api.query import read_query
from service.api.request_schemas import Form
from service.domain.candidate import CANDIDATES
from service.policies import load_policies
from service.settings import DEFAULT_BUNDLE_DIR

FORMS = get_args(Form)


def of_candidate(index: int) -> dict[str, Any]:
    """What an answer that chooses it would hold."""
    flags = CANDIDATES[index].engine_args()
    launch = Launch(
        model="Qwen/Qwen3-8B",
        engine_version="0.28.0",
        flags=flags,
        whole=flags,
        prefix_caching=CANDIDATES[index].enable_prefix_caching,
    )
    return {"set": flags, "renders": renders(launch, FORMS)}


def main() -> None:
    """One answer for each question."""
    policies = load_policies(DEFAULT_BUNDLE_DIR)

    def answered(question: dict[str, Any]) -> dict[str, Any]:
        read = read_query({**question, "render": list(FORMS)}, policies=policies, default_gpu=None)
        return answer(read, recommendation_id="r")

    questions = json.load(sys.stdin)
    json.dump([of_candidate(one) if isinstance(one, int) else answered(one) for one in questions], sys.stdout)


if __name__ == "__main__":
    main()
