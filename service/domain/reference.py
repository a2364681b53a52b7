"""The reference experiment: 4 models × 6 workloads × 4 concurrencies, and which scenario is in which split."""

from dataclasses import dataclass
from typing import Literal

from service.domain.scenario import Workload

Split = Literal["train", "dev", "test", "retired"]

REFERENCE_MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
REFERENCE_CONCURRENCIES = (4, 16, 64, 256)
# The first published version looked at the test workloads with these two models, so they can prove nothing now.
TEST_MODELS = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkload:
    """A workload shape of the reference, without its concurrency."""

    name: str
    prompt_tokens: int
    max_new_tokens: int
    shared_prefix_ratio: float
    split: Literal["train", "dev", "test"]

    def at(self, concurrency: int) -> Workload:
        """This shape under a number of clients."""
        return Workload(
            prompt_tokens=self.prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            shared_prefix_ratio=self.shared_prefix_ratio,
            concurrency=concurrency,
        )


def _workload(name: str, prompt: int, new: int, ratio: float, split: Literal["train", "dev", "test"]) -> NamedWorkload:
    return NamedWorkload(name=name, prompt_tokens=prompt, max_new_tokens=new, shared_prefix_ratio=ratio, split=split)


REFERENCE_WORKLOADS: tuple[NamedWorkload, ...] = (
    _workload("chat", 512, 256, 0.0, "train"),
    _workload("rag", 6000, 128, 0.7, "train"),
    _workload("longgen", 256, 1024, 0.0, "train"),
    _workload("summarize", 12000, 256, 0.1, "dev"),
    _workload("agent", 3000, 256, 0.9, "test"),
    _workload("codeassist", 1500, 512, 0.5, "test"),
)


def split_of(*, model: str, workload: str) -> Split:
    """The split of a reference scenario. KeyError for a workload that is not in the reference."""
    split = {named.name: named.split for named in REFERENCE_WORKLOADS}[workload]
    if split == "test" and model not in TEST_MODELS:
        return "retired"
    return split
