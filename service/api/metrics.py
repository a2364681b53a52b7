"""What is counted while requests are answered. One object per application: two in a process share nothing.

With several workers prometheus-client keeps the values in files of the folder PROMETHEUS_MULTIPROC_DIR, and any worker
tells those of all.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
REQUEST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RANK_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"


def is_multiprocess() -> bool:
    """Whether other workers answer for this address, too."""
    return bool(os.environ.get(MULTIPROCESS_DIR))


class Metrics:
    """on_ranking: told each ranking's seconds as well. Label values are bounded by whoever calls."""

    def __init__(self, *, on_ranking: Callable[[float], None] | None = None) -> None:
        # A time of creation beside each counter would double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "memorypolicy_http_requests",
            "Requests by what became of them.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "memorypolicy_http_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route",),
            buckets=REQUEST_BUCKETS_S,
            registry=self.registry,
        )
        self._rank_seconds = Histogram(
            "memorypolicy_rank_seconds",
            "Seconds to read one question, rank and word the answer; not its record.",
            buckets=RANK_BUCKETS_S,
            registry=self.registry,
        )
        self._decisions = Counter(
            "memorypolicy_decisions",
            "Decisions by door, and by reason where there is one.",
            ("door", "decision", "reason"),
            registry=self.registry,
        )
        self._out_of_support = Counter(
            "memorypolicy_out_of_support",
            "Questions of which this feature lay outside what the bundle was trained for.",
            ("feature",),
            registry=self.registry,
        )
        self._on_ranking = on_ranking
        # Looking a child up by its labels costs more than counting.
        self._by_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._by_decision: dict[tuple[str, str, str | None], Counter] = {}

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request that is over. route: a template, never a path."""
        key = route, method, status
        children = self._by_request.get(key)
        if children is None:
            children = self._requests.labels(route, method, str(status)), self._request_seconds.labels(route)
            self._by_request[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def observe_ranking(self, seconds: float) -> None:
        """One question that was read, ranked and worded."""
        self._rank_seconds.observe(seconds)
        if self._on_ranking is not None:
            self._on_ranking(seconds)

    def count_decision(self, door: str, decision: str, reason: str | None) -> None:
        """One decision that was answered. door: recommend, batch, endpoint-creation or inference-service."""
        key = door, decision, reason
        child = self._by_decision.get(key)
        if child is None:
            # A reason may go on with figures behind a colon.
            named = reason.partition(":")[0] if reason else "none"
            child = self._decisions.labels(door, decision, named)
            if reason is None or ":" not in reason:
                self._by_decision[key] = child
        child.inc()

    def count_out_of_support(self, features: Iterable[str]) -> None:
        """The features of one question that lay outside; none for most."""
        for feature in features:
            self._out_of_support.labels(feature).inc()

    def count_answer(self, door: str, content: Mapping[str, Any]) -> None:
        """The decision and what lay outside, of a body that `answer` built."""
        self.count_decision(door, content["decision"], content["reason"])
        self.count_outside(content)

    def count_outside(self, content: Mapping[str, Any]) -> None:
        """What lay outside of such a body alone, where somebody else decides."""
        if not content["support"]["in_distribution"]:
            self.count_out_of_support(entry["feature"] for entry in content["support"]["out_of_range"])

    def exposition(self) -> bytes:
        """Everything, in the text format that Prometheus reads; of all workers where there are several."""
        if not is_multiprocess():
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)
