"""What is read off the journal, the watch and the policy at times, for /metrics.

It is read when somebody scrapes; with several workers each also reads itself once a second, for the others to tell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from service import __version__
from service.api.state import ApiState
from service.db.journal import Journal
from service.policies import Policies

REFRESH_S = 1.0
OUTCOMES = ("committed", "spooled", "replayed", "refused", "rejected", "damaged")
_AUDIT = "memorypolicy_audit"
_POLICY = "memorypolicy_policy"


class Gauges:
    """Called from one thread. Of several workers, those that live count: sums of sizes, the worst of states."""

    def __init__(self, registry: CollectorRegistry, *, audit: bool) -> None:
        self._audit = _AuditGauges(registry) if audit else None
        self._swaps = _Rising(Counter(f"{_POLICY}_swaps", "Policies that were swapped in.", registry=registry))
        self._refusals = _Rising(
            Counter(f"{_POLICY}_refusals", "Activated bundles that this replica refused.", registry=registry)
        )
        self._refused = _worst(registry, f"{_POLICY}_refused", "1 while the bundle that is activated is refused.")
        self._draining = _worst(registry, "memorypolicy_draining", "1 after SIGTERM: /readyz says no.")
        self._info = Gauge(
            f"{_POLICY}_info", "1 for the policies that answer: their one name.", ("sha256",),
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self._bundle = Gauge(
            "memorypolicy_bundle_info", "1 for each bundle that answers, by what it says of itself.",
            ("version", "sha256", "gpu", "engine_version", "evidence"),
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip
        build = Gauge(
            "memorypolicy_build_info", "1 for the release that runs.", ("version",),
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip
        build.labels(__version__).set(1)
        self._told: list[Gauge] = []
        self._policies: Policies | None = None

    def refresh(self, state: ApiState, *, draining: bool) -> None:
        """As it is now."""
        watch = state.memory.watch
        if self._audit is not None and state.memory.journal is not None:
            self._audit.refresh(state.memory.journal)
        self._swaps.reach(watch.swaps)
        self._refusals.reach(watch.refusals)
        self._refused.set(watch.refused is not None)
        self._draining.set(draining)
        if state.policies is not self._policies:
            self._tell(state.policies)

    def _tell(self, policies: Policies) -> None:
        # With several workers a series cannot be taken back, so what answered before goes on as 0.
        for gauge in self._told:
            gauge.set(0)
        # Replicas that differ are told by this one name, so it is of all policies together.
        self._told = [self._info.labels(policies.sha256)]
        for policy in policies:
            manifest = policy.manifest
            self._told.append(
                self._bundle.labels(
                    manifest.version,
                    policy.bundle.sha256,
                    manifest.gpu,
                    manifest.engine_version,
                    manifest.evidence,
                )
            )
        for gauge in self._told:
            gauge.set(1)
        self._policies = policies


class _AuditGauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        records = Counter(f"{_AUDIT}_records", "Records by what became of them.", ("outcome",), registry=registry)
        self._records = {outcome: _Rising(records.labels(outcome)) for outcome in OUTCOMES}
        self._transactions = _Rising(Counter(f"{_AUDIT}_transactions", "Transactions of records.", registry=registry))
        self._away = _worst(registry, f"{_AUDIT}_database_away", "1 while records go to the spool.")
        self._queue = _sum(registry, f"{_AUDIT}_queue", "Records that wait for being durable.")
        self._spool = _sum(registry, f"{_AUDIT}_spool_bytes", "Size of the spool.")
        self._limit = _sum(registry, f"{_AUDIT}_spool_limit_bytes", "Size at which requests are refused.")

    def refresh(self, journal: Journal) -> None:
        for outcome, counter in self._records.items():
            counter.reach(getattr(journal.counts, outcome))
        self._transactions.reach(journal.counts.transactions)
        self._away.set(journal.away)
        self._queue.set(journal.queued)
        self._spool.set(journal.spool_bytes)
        self._limit.set(journal.spool_limit_bytes)


class _Rising:
    """A counter that follows a number which somebody else counts."""

    def __init__(self, counter: Counter) -> None:
        self._counter, self._reached = counter, 0

    def reach(self, number: int) -> None:
        self._counter.inc(number - self._reached)
        self._reached = number


def _sum(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(name, text, registry=registry, multiprocess_mode="livesum")


def _worst(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(name, text, registry=registry, multiprocess_mode="livemax")


@asynccontextmanager
async def kept_fresh(refresh: Callable[[], None]) -> AsyncIterator[None]:
    """Calls refresh every second until it ends."""

    async def keep() -> None:
        while True:
            refresh()
            await asyncio.sleep(REFRESH_S)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
