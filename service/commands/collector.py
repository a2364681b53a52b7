"""vLLM's own metrics over a window, asked of Prometheus' HTTP API, as the `measured` of an outcome."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.domain.errors import ArtefactError

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was found. missing: names of what Prometheus has no value for; absent from `measured`, never zero."""

    measured: dict[str, float]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last `length_s` seconds before a Unix time."""

    end_unix: int
    length_s: int


def collect(prometheus_url: str, *, selector: str, window: Window) -> Collected:
    """selector: label matchers such as `model_name="qwen"`. ArtefactError if Prometheus cannot be asked.

    A metric that was renamed between versions of vLLM is looked for under each of its names.
    """
    measured: dict[str, float] = {"window_s": float(window.length_s), "window_end_unix": float(window.end_unix)}
    missing = []
    for name, queries in _queries(selector, f"{window.length_s}s"):
        found = (_ask(prometheus_url, query, at_unix=window.end_unix) for query in queries)
        value = next((value for value in found if value is not None), None)
        if value is None:
            missing.append(name)
        else:
            measured[name] = value
    return Collected(measured=measured, missing=tuple(missing))


def _queries(selector: str, window: str) -> Iterator[tuple[str, list[str]]]:
    """(member of `measured`, PromQL in order of preference). Histograms are in seconds, our times in milliseconds."""

    def increase(metric: str) -> str:
        return f"sum(increase(vllm:{metric}{{{selector}}}[{window}]))"

    def rate(metric: str) -> str:
        return f"sum(rate(vllm:{metric}{{{selector}}}[{window}]))"

    def quantile_ms(q: float, metric: str) -> str:
        buckets = f"sum by (le) (rate(vllm:{metric}_bucket{{{selector}}}[{window}]))"
        return f"1000 * histogram_quantile({q}, {buckets})"

    def ratio(part: str, whole: str) -> str:
        return f"{increase(part)} / {increase(whole)}"

    def peak(metric: str) -> str:
        return f"max(max_over_time(vllm:{metric}{{{selector}}}[{window}]))"

    tpot = ("request_time_per_output_token_seconds", "time_per_output_token_seconds")
    yield "output_throughput_tps", [rate("generation_tokens_total")]
    yield "request_throughput_rps", [rate("request_success_total")]
    yield "completed", [increase("request_success_total")]
    for q, name in ((0.5, "p50"), (0.95, "p95")):
        yield f"ttft_{name}_ms", [quantile_ms(q, "time_to_first_token_seconds")]
        yield f"tpot_{name}_ms", [quantile_ms(q, metric) for metric in tpot]
    yield "e2el_p95_ms", [quantile_ms(0.95, "e2e_request_latency_seconds")]
    yield "kv_usage_peak", [peak("kv_cache_usage_perc"), peak("gpu_cache_usage_perc")]
    yield "preemptions", [increase("num_preemptions_total")]
    yield (
        "cached_token_ratio",
        [
            ratio("prefix_cache_hits_total", "prefix_cache_queries_total"),
            ratio("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
        ],
    )


def _ask(prometheus_url: str, query: str, *, at_unix: int) -> float | None:
    """The one value of an instant query; None without a series, or where it is no number."""
    parameters = urllib.parse.urlencode({"query": query, "time": at_unix})
    url = f"{prometheus_url.rstrip('/')}/api/v1/query?{parameters}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content: Any = json.load(answer)
        result = content["data"]["result"]
        value = float(result[0]["value"][1]) if result else math.nan
    except urllib.error.HTTPError as error:
        raise ArtefactError(f"{prometheus_url}: Prometheus refuses {query!r} with {error.code}") from error
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{prometheus_url}: Prometheus cannot be asked ({error}); check --prometheus") from error
    except (KeyError, IndexError, TypeError) as error:
        raise ArtefactError(f"{prometheus_url}: not an answer of Prometheus' API; check --prometheus") from error
    return value if math.isfinite(value) and value >= 0 else None
