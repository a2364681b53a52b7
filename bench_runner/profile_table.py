"""Step times of a whole model from a profile of its layers.

Interpolation is linear in every size; beyond the profile the last segment is continued, never below zero. A step's
attention is the profile's for its prompts alone, for its decodes alone, or, where it has both, for prompts plus what
the same number of decodes adds to a chunk of as many prompt tokens: one kernel serves decodes beside a prompt worse.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.layer_profile import ONCE, PER_LAYER, PER_SEQUENCE, Attention, LayerProfile
from bench_runner.step_time import StepTable

US_PER_MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The smallest and the largest size that was profiled, of each kind; what lies outside is extrapolated."""

    tokens: tuple[float, float]
    sequences: tuple[float, float]
    chunk: tuple[float, float]
    chunk_past: tuple[float, float]
    decodes: tuple[float, float]
    mixed_decodes: tuple[float, float]
    context: tuple[float, float]


def step_table(
    profile: LayerProfile, *, layers: int, step_ms: float = 0.0, mixed: bool = True
) -> tuple[StepTable, Extent]:
    """The profile as step times of a model of so many decoder layers, and how far it reaches.

    step_ms is added to every step: what no profiled layer holds. Without `mixed`, attention of prompts and of decodes
    simply add up, as in tables that price them apart. The engine computes logits for every sequence of a step and
    samples where a prompt ends, so a step that samples nothing costs the head of one sequence.
    """
    tokens, dense_us = _sum_of(profile.layer_us, {**dict.fromkeys(ONCE, 1), **_times(PER_LAYER, layers)})
    sequences, head_us = _sum_of(profile.sequence_us, dict.fromkeys(PER_SEQUENCE, 1))
    attention = {sizes: layers * us / US_PER_MS for sizes, us in profile.attention_us.items()}
    chunks = sorted({chunk for chunk, _, decodes, _ in attention if chunk and not decodes})
    context_past, context_ms = _prompts(attention, chunks)
    generation_sequences, generation_context, generation_ms = _decodes(attention, 0, 0)
    beside, mixed_sequences, mixed_ms = _mixed(attention, chunks, generation_context)
    table = StepTable(
        dense_ms=_at_every(tokens, dense_us / US_PER_MS) + step_ms,
        head_ms=_at_every(sequences, head_us / US_PER_MS),
        context_new=np.array(chunks, dtype=np.float64),
        context_past=context_past,
        context_ms=context_ms,
        generation_sequences=generation_sequences,
        generation_context=generation_context,
        generation_ms=generation_ms,
    )
    if mixed and len(beside):
        table = table._replace(mixed_new=beside, mixed_sequences=mixed_sequences, mixed_ms=mixed_ms)
    extent = Extent(
        tokens=_ends(tokens),
        sequences=_ends(sequences),
        chunk=_ends(table.context_new),
        chunk_past=_ends(context_past),
        decodes=_ends(generation_sequences),
        mixed_decodes=_ends(table.mixed_sequences) if len(table.mixed_sequences) else _ends(generation_sequences),
        context=_ends(generation_context),
    )
    return table, extent


def _times(counts: Mapping[str, int], layers: int) -> dict[str, int]:
    return {name: count * layers for name, count in counts.items()}


def _ends(grid: NDArray[np.float64]) -> tuple[float, float]:
    return float(grid[0]), float(grid[-1])


def _sum_of(
    by_layer: Mapping[str, Mapping[int, float]], counts: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sizes, microseconds): each layer as often as counts says, at the sizes that any of them was measured at."""
    sizes = np.array(sorted({size for name in counts for size in by_layer[name]}), dtype=np.float64)
    total = np.zeros(len(sizes))
    for name, count in counts.items():
        known = sorted(by_layer[name].items())
        total += count * _continued(sizes, *_columns(known))
    return sizes, total


def _at_every(sizes: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values at 0, 1, 2 … the largest size. Below the smallest size its own value holds."""
    return np.interp(np.arange(int(sizes[-1]) + 1), sizes, values)


def _prompts(attention: Attention, chunks: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(tokens in the cache, milliseconds [chunks, tokens in the cache]): attention of prompts alone."""
    alone = {chunk: _alone(attention, chunk) for chunk in chunks}
    past = np.array(sorted({kept for known in alone.values() for kept in known}), dtype=np.float64)
    rows = [_continued(past, *_columns(sorted(alone[chunk].items()))) for chunk in chunks]
    return past, np.array(rows)


def _alone(attention: Attention, chunk: int) -> dict[int, float]:
    return {past: ms for (new, past, decodes, _), ms in attention.items() if new == chunk and not decodes}


def _decodes(
    attention: Attention, chunk: int, past: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(sequences, contexts, milliseconds [sequences, contexts]) of the rows with decodes beside that chunk."""
    rows: dict[int, dict[int, float]] = defaultdict(dict)
    for (new, kept, decodes, context), ms in attention.items():
        if new == chunk and kept == past and decodes:
            rows[decodes][context] = ms
    sequences = sorted(rows)
    contexts = np.array(sorted({context for row in rows.values() for context in row}), dtype=np.float64)
    values = np.array([_continued(contexts, *_columns(sorted(rows[count].items()))) for count in sequences])
    return np.array(sequences, dtype=np.float64), contexts, values


def _mixed(
    attention: Attention, chunks: list[int], contexts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(prompt tokens, sequences, milliseconds [prompt tokens, sequences, contexts]): what decodes add to a chunk.

    Each chunk with the fewest tokens in the cache that it was profiled with.
    """
    added: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for chunk in chunks:
        past = min(_alone(attention, chunk))
        sequences, known, values = _decodes(attention, chunk, past)
        if len(sequences) > 1 and len(known) > 1:
            more = np.array([_continued(contexts, known, row) for row in values - attention[chunk, past, 0, 0]])
            added[chunk] = sequences, more
    if len(added) < 2:
        return np.zeros(0), np.zeros(0), np.zeros((0, 0, 0))
    common = sorted(set.intersection(*({float(count) for count in sequences} for sequences, _ in added.values())))
    rows = [[more[list(sequences).index(count)] for count in common] for sequences, more in added.values()]
    return np.array(list(added), dtype=np.float64), np.array(common), np.array(rows)


def _columns(known: list[tuple[int, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sizes, values = zip(*known, strict=True)
    return np.array(sizes, dtype=np.float64), np.array(values, dtype=np.float64)


def _continued(at: NDArray[np.float64], sizes: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear interpolation; beyond either end the last segment goes on, never below zero. One point: constant."""
    if len(sizes) == 1:
        return np.full(len(at), values[0])
    index = np.clip(np.searchsorted(sizes, at, side="right") - 1, 0, len(sizes) - 2)
    share = (at - sizes[index]) / (sizes[index + 1] - sizes[index])
    return np.maximum((1 - share) * values[index] + share * values[index + 1], 0.0)
