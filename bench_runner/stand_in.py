"""One run in place of many: which other limits would have given the same run, step for step.

A configuration acts on a run only where one of its limits binds. From what a run asked of its limits follows for which
other limits every decision of the scheduler would have been the same:

- max_num_seqs: any number from the most that ever ran together, unless a request was kept out by it.
- max_num_batched_tokens: any number from the largest step, unless a step was cut or ended by it.
- KV blocks: any larger pool, unless a request found too few free blocks or content that could still be asked for was
  evicted; any smaller one that held the most blocks in use, unless a hit was on a block that nobody held.
- prefix caching: off is the same as on where nothing was ever found in the cache.

Content that nobody can ask for again may be evicted sooner or later without a trace: only block numbers differ. The
larger of two pools always holds what the smaller one holds, because both evict the least recently used first.
tests/bench_runner/test_stand_in.py compares runs that were skipped with runs that were made, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench_runner.kv_cache import blocks_of
from bench_runner.request_stream import RequestStream, longest
from bench_runner.simulator import Observed, SimulationSettings, Window, simulate
from bench_runner.step_time import StepTable
from service.domain.candidate import Candidate

# Room beyond what all clients can hold at once, in blocks, for contents that stay in the cache unheld.
_SPARE_BLOCKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that was made: its limits, and what it showed."""

    candidate: Candidate
    kv_blocks: int
    observed: Observed

    def stands_for(self, candidate: Candidate, *, kv_blocks: int) -> bool:
        """Whether this candidate with so many blocks gives the same run."""
        use = self.observed.limits_use
        mine = self.candidate
        caching = candidate.enable_prefix_caching == mine.enable_prefix_caching or not use.hit
        # Without caching nothing is found, which does not say that caching would find nothing.
        caching = caching and (mine.enable_prefix_caching or not candidate.enable_prefix_caching)
        return (
            caching
            and _covers(candidate.max_num_seqs, mine.max_num_seqs, bound=use.running_bound, least=use.running)
            and _covers(
                candidate.max_num_batched_tokens, mine.max_num_batched_tokens, bound=use.tokens_bound, least=use.tokens
            )
            and self._same_with(kv_blocks)
        )

    def _same_with(self, kv_blocks: int) -> bool:
        use = self.observed.limits_use
        if kv_blocks == self.kv_blocks:
            return True
        if use.blocks_bound:
            return False
        if kv_blocks > self.kv_blocks:
            return not use.content_lost
        # One block is set aside as the null block.
        return not use.free_hit and use.blocks <= kv_blocks - 1


def _covers(limit: int, own: int, *, bound: bool, least: int) -> bool:
    return limit == own or (not bound and limit >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A candidate with the KV blocks that it has; None where its server would not start."""

    candidate: Candidate
    kv_blocks: int | None


def run_all(
    stream: RequestStream,
    setups: Sequence[Setup],
    *,
    table: StepTable,
    settings: SimulationSettings,
    window: Window,
    seed: int,
) -> tuple[list[Observed | None], int]:
    """What each setup shows, in order (None: it does not start), and how many runs that took."""
    runs: list[Run] = []
    found: list[Observed | None] = [None] * len(setups)
    enough = len(stream.queue_of) * blocks_of(longest(stream)) + stream.shared_numbers + _SPARE_BLOCKS
    for index in _order(setups):
        candidate, kv_blocks = setups[index].candidate, setups[index].kv_blocks
        if kv_blocks is None:
            continue
        run = next((run for run in runs if run.stands_for(candidate, kv_blocks=kv_blocks)), None)
        # A small pool costs less to set up; where it turns out to matter, the true one is run after all.
        for blocks in sorted({min(kv_blocks, enough), kv_blocks}):
            if run is not None:
                break
            observed = simulate(
                stream, candidate, kv_blocks=blocks, table=table, settings=settings, window=window, seed=seed
            )
            made = Run(candidate=candidate, kv_blocks=blocks, observed=observed)
            runs.append(made)
            run = made if made.stands_for(candidate, kv_blocks=kv_blocks) else None
        found[index] = run.observed if run is not None else None
    return found, len(runs)


def _order(setups: Sequence[Setup]) -> list[int]:
    """Caching first, then small pools and large other limits first: those stand for most of the others."""

    def key(index: int) -> tuple[bool, int, int, int]:
        setup = setups[index]
        candidate = setup.candidate
        return (
            not candidate.enable_prefix_caching,
            setup.kv_blocks or 0,
            -candidate.max_num_seqs,
            -candidate.max_num_batched_tokens,
        )

    return sorted(range(len(setups)), key=key)
