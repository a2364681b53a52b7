"""What the server says about itself: /metrics, sampled over the timed region."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

# Names of vLLM 0.28 first, then those of other versions.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "generated": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One reading. Gauges are requests and a share of the KV cache, counters count since the server's start.

    None: the server has no metric of any known name.
    """

    at_s: float
    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None
    prefix_queries: float | None
    prefix_hits: float | None
    generated: float | None

    @property
    def idle(self) -> bool | None:
        """True if nothing runs or waits; None if the server does not say."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting == 0


def parse_metrics(text: str, *, at_s: float) -> EngineSample:
    """A reading from Prometheus text; the engines of one server are added up. ValueError if it is none."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    found = {
        name: next((totals[alias] for alias in aliases if alias in totals), None) for name, aliases in ALIASES.items()
    }
    return EngineSample(at_s=at_s, **found)


def cache_config(text: str) -> dict[str, str]:
    """The labels of vllm:cache_config_info: block size, number of blocks and so on; empty if it is missing."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                return dict(sample.labels)
    return {}


def read_text(base_url: str) -> str | None:
    """The server's /metrics; None if it gives none."""
    try:
        answer = httpx.get(f"{base_url}/metrics", timeout=3)
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


def read_sample(base_url: str) -> EngineSample | None:
    """One reading now; None if the server gives none."""
    at_s = time.monotonic()
    text = read_text(base_url)
    try:
        return None if text is None else parse_metrics(text, at_s=at_s)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObserved:
    """The timed region as the server saw it. None where the server lacks the metric; `missing` names those."""

    kv_usage_peak: float | None
    running_mean: float | None
    waiting_mean: float | None
    waiting_peak: float | None
    preemptions: int | None
    cached_token_ratio: float | None
    samples: int
    missing: tuple[str, ...]


def observe(samples: list[EngineSample], *, start_s: float, end_s: float) -> EngineObserved:
    """Means and peaks over the samples in [start_s, end_s], what counters gained between those nearest to the ends."""
    inside = [sample for sample in samples if start_s <= sample.at_s <= end_s]
    kv_usage, running, waiting = (
        [value for sample in inside if (value := getattr(sample, name)) is not None]
        for name in ("kv_usage", "running", "waiting")
    )
    preemptions, queries, hits = (
        _increase(samples, name, start_s=start_s, end_s=end_s)
        for name in ("preemptions", "prefix_queries", "prefix_hits")
    )
    return EngineObserved(
        kv_usage_peak=max(kv_usage, default=None),
        running_mean=sum(running) / len(running) if running else None,
        waiting_mean=sum(waiting) / len(waiting) if waiting else None,
        waiting_peak=max(waiting, default=None),
        preemptions=None if preemptions is None else round(preemptions),
        cached_token_ratio=hits / queries if hits is not None and queries else None,
        samples=len(inside),
        missing=tuple(name for name in ALIASES if all(getattr(sample, name) is None for sample in inside)),
    )


def _increase(samples: list[EngineSample], name: str, *, start_s: float, end_s: float) -> float | None:
    """What a counter gained between the samples nearest to the two moments; None if that is one and the same."""
    told = [(sample.at_s, value) for sample in samples if (value := getattr(sample, name)) is not None]
    if not told:
        return None
    first, last = (min(told, key=lambda pair: abs(pair[0] - moment)) for moment in (start_s, end_s))
    return last[1] - first[1] if last[0] > first[0] else None


class EngineSampler:
    """Reads /metrics every interval in a thread of this process, which sends no load itself."""

    def __init__(self, base_url: str, *, interval_s: float) -> None:
        self.samples: list[EngineSample] = []
        self._base_url = base_url
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "EngineSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            sample = read_sample(self._base_url)
            if sample is not None:
                self.samples.append(sample)
            if self._stopped.wait(self._interval_s):
                return
