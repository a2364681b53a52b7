"""The hook's decisions about many strings, in the service's own environment: JSON list in, JSON list out."""

import json
import sys
from typing import Any

from service.api.hook import asked_of, hook_answer, read_hook
from service.api.hook_decision import HookDecision, decide, skipped
from service.api.mapping import NO_MAPPING
from service.api.skip import SkipError
from service.policies import load_policies
from service.settings import DEFAULT_BUNDLE_DIR


def request(extra_args: str) -> dict[str, Any]:
    """A creation of which nothing but the string changes."""
    return {
        "hook_version": "v1",
        "event": "endpoint.creating",
        "request": {
            "name": "e",
            "model": "Qwen/Qwen3-14B",
            "workload_type": "VLLM",
            "gpu": 1,
            "workload_config": {"extra_args": extra_args},
        },
        "context": {"gpu_product": "NVIDIA-B200", "engine_version": "0.28.0"},
        "workload": {"prompt_tokens": 1500, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 256},
    }


def main() -> None:
    """One answer for each string."""
    policies = load_policies(DEFAULT_BUNDLE_DIR)

    def answer(text: str) -> dict[str, Any]:
        hook = read_hook(request(text))
        decision: HookDecision
        try:
            decision = decide(asked_of(hook, NO_MAPPING), policies, recommendation_id="r")
        except SkipError as error:
            decision = skipped(error)
        return hook_answer(hook, decision, policies, decision_id="d")

    json.dump([answer(text) for text in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
