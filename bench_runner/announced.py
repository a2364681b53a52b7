"""What users announce: how scenarios are drawn, which regions are held out, and what lies beyond the trained hull.

A scenario is drawn from the whole space (stratum base) or close to one in which the choice of a configuration mattered
(stratum focus). `in_held_out_block` cuts the space of prompt, output and concurrency into blocks and sets an eighth of
them aside; training never sees a scenario from those.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_runner.architectures import Architecture
from bench_runner.length_shapes import shapes
from service.domain.scenario import Workload

PROMPTS, OUTPUTS, CONCURRENCIES = (16, 32_768), (1, 4_096), (1, 512)
MOST_PREFIX = 0.95
# One dimension of a scenario beyond the hull lies in one of these, half open at the low end.
BEYOND = {
    "prompt": (32_768, 65_536),
    "output": (4_096, 8_192),
    "concurrency": (512, 1_024),
    "prefix": (0.95, 0.99),
}
BLOCK_LOG2 = 1.5
HELD_OUT_ONE_IN = 8
SHARE_OF_REAL_TRAFFIC, SHARE_WITHOUT_PREFIX = 0.5, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A model and the workload that was announced for it. stratum: how it came to be drawn."""

    architecture: Architecture
    workload: Workload
    stratum: str


def in_held_out_block(workload: Workload) -> bool:
    """Whether prompt, output and concurrency fall into a block that is set aside for testing."""
    values = (workload.prompt_tokens, workload.max_new_tokens, workload.concurrency)
    block = ",".join(str(int(math.log2(value) // BLOCK_LOG2)) for value in values)
    return hashlib.sha256(f"block {block}".encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def draw_base(rng: np.random.Generator, models: Sequence[Architecture]) -> Announced:
    """Half log-uniform over the ranges, half around what real services see; log-uniform concurrency."""
    while True:
        architecture = models[int(rng.integers(len(models)))]
        if rng.random() < SHARE_OF_REAL_TRAFFIC:
            shape = shapes()[int(rng.integers(len(shapes())))]
            share, spread = rng.random(2), np.exp(rng.normal(0.0, 0.3, 2))
            prompt = int(shape.prompt.at(share[:1])[0] * spread[0])
            output = int(shape.output.at(share[1:])[0] * spread[1])
        else:
            prompt, output = _log_uniform(rng, PROMPTS), _log_uniform(rng, OUTPUTS)
        ratio = 0.0 if rng.random() < SHARE_WITHOUT_PREFIX else float(rng.uniform(0.0, MOST_PREFIX))
        workload = _workload(prompt, output, ratio, _log_uniform(rng, CONCURRENCIES))
        if _fits(architecture, workload):
            return Announced(architecture=architecture, workload=workload, stratum="base")


def draw_focus(
    rng: np.random.Generator, models: Sequence[Architecture], anchors: Sequence[tuple[str, Workload]]
) -> Announced:
    """Close to one of the anchors (model, workload), half of the time with its model where that one is allowed."""
    by_name = {architecture.name: architecture for architecture in models}
    while True:
        name, near = anchors[int(rng.integers(len(anchors)))]
        other = models[int(rng.integers(len(models)))]
        architecture = by_name.get(name, other) if rng.random() < 0.5 else other
        factor = np.exp(rng.normal(0.0, (0.25, 0.25, 0.3)))
        ratio = min(max(near.shared_prefix_ratio + float(rng.normal(0.0, 0.05)), 0.0), MOST_PREFIX)
        workload = _workload(
            int(near.prompt_tokens * factor[0]),
            int(near.max_new_tokens * factor[1]),
            ratio if near.shared_prefix_ratio > 0 else 0.0,
            round(near.concurrency * factor[2]),
        )
        if _fits(architecture, workload):
            return Announced(architecture=architecture, workload=workload, stratum="focus")


def push_beyond(rng: np.random.Generator, announced: Announced, dimension: str) -> Announced | None:
    """The same with one dimension beyond the hull; None if the model's context does not allow it."""
    low, high = BEYOND[dimension]
    workload = announced.workload
    value = float(np.exp(rng.uniform(math.log(low), math.log(high))))
    pushed = _workload(
        int(value) + 1 if dimension == "prompt" else workload.prompt_tokens,
        int(value) + 1 if dimension == "output" else workload.max_new_tokens,
        round(value, 4) if dimension == "prefix" else workload.shared_prefix_ratio,
        int(value) + 1 if dimension == "concurrency" else workload.concurrency,
    )
    if pushed.sequence_tokens > announced.architecture.context:
        return None
    return Announced(
        architecture=announced.architecture, workload=pushed, stratum=f"beyond {dimension}, {announced.stratum}"
    )


def _log_uniform(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return min(int(np.exp(rng.uniform(math.log(low), math.log(high + 1)))), high)


def _workload(prompt: int, output: int, ratio: float, concurrency: int) -> Workload:
    return Workload(
        prompt_tokens=max(prompt, 1),
        max_new_tokens=max(output, 1),
        shared_prefix_ratio=round(ratio, 4),
        concurrency=max(concurrency, 1),
    )


def _fits(architecture: Architecture, workload: Workload) -> bool:
    """Within the ranges and the model's context."""
    inside = (
        PROMPTS[0] <= workload.prompt_tokens <= PROMPTS[1]
        and OUTPUTS[0] <= workload.max_new_tokens <= OUTPUTS[1]
        and workload.concurrency <= CONCURRENCIES[1]
    )
    return inside and workload.sequence_tokens <= architecture.context
