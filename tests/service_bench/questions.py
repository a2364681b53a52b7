"""Questions that differ from each other, so that nothing is measured that only a repeated question gets."""

import json
import random
from typing import Any

from service.domain.catalogue import CATALOGUE, model_by_name
from service.domain.errors import InvalidInputError
from service.domain.gpu import GPUS
from service.domain.scenario import Scenario, Workload
from tests.service.hooking import CREATION

SEED = 20_261_129


def questions(count: int) -> list[dict[str, Any]]:
    """Bodies of POST /v1/recommend over the catalogue's models, with loads that each of them can serve."""
    numbers = random.Random(SEED)
    made: list[dict[str, Any]] = []
    while len(made) < count:
        name = numbers.choice(CATALOGUE).name
        workload: dict[str, Any] = {
            "prompt_tokens": numbers.randrange(64, 6_000),
            "max_new_tokens": numbers.randrange(16, 1_024),
            "shared_prefix_ratio": round(numbers.random() * 0.9, 3),
            "concurrency": numbers.randrange(1, 257),
        }
        try:
            Scenario(model=model_by_name(name), workload=Workload(**workload))
        except InvalidInputError:
            continue
        made.append({"model": {"name": name}, "gpu": GPUS[0].name, "workload": workload})
    return made


def widened(workload: dict[str, Any]) -> dict[str, Any]:
    """Every number of a workload as a range down to half of it."""
    return {
        name: [value / 2, value] if isinstance(value, float) else [max(value // 2, 1), value]
        for name, value in workload.items()
    }


def creations(count: int) -> list[dict[str, Any]]:
    """Bodies of the hook for endpoints of different names, each decided and recorded anew; every other one has args.

    Of a load for which flags are recommended, so that the whole of an answer is made: arguments and the patch.
    """
    load = {"prompt_tokens": 6000, "max_new_tokens": 128, "shared_prefix_ratio": 0.7, "concurrency": 128}
    configs = ({"max_model_len": 8192}, {"max_model_len": 8192, "extra_args": "--max-num-seqs 128 --seed=7"})
    return [
        {
            **CREATION,
            "request": {
                **CREATION["request"],
                "model": "Qwen/Qwen3-14B",
                "name": f"endpoint-{number}",
                "workload_config": configs[number % 2],
            },
            "workload": load,
        }
        for number in range(count)
    ]


def message(body: object, *, path: str) -> bytes:
    """The bytes of one HTTP request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content
