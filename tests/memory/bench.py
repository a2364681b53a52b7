"""make bench BENCH=audit: what the memory costs, as ratios within one run, and what it loses under kills and swaps."""

import statistics
import sys
import tempfile
from pathlib import Path

from tests.memory.experiments import killed_at_random, swapped_under_load, under_load
from tests.memory.server import Server
from tests.service.bundles import graph, random_layers, write_bundle

CONNECTIONS, ROUNDS, ROUND_S = 64, 12, 1.0
SEED = 20_261_129


def main() -> int:
    """Prints a BAR line for each goal; exit code 0 whether reached or not."""
    with tempfile.TemporaryDirectory() as folder:
        throughput(Path(folder))
        _kills(Path(folder))
        _swaps(Path(folder))
    return 0


def bar(name: str, value: float, op: str, target: float) -> None:
    """`BAR <name> <value> <op> <target> ok|short`."""
    reached = value >= target if op == ">=" else value <= target
    print(f"BAR {name} {value:.4g} {op} {target:.4g} {'ok' if reached else 'short'}", flush=True)


def throughput(folder: Path) -> None:
    """All variants serve all the time and are asked in turn, so that a noisy machine is noisy to all of them."""
    servers = {
        "none": Server(folder / "none", audit="false"),
        "group": Server(folder / "group"),
        "full": Server(folder / "full", sqlite_synchronous="full"),
        "each": Server(folder / "each", module=("tests.memory.commit_each",)),
    }
    per_s: dict[str, list[float]] = {name: [] for name in servers}
    cpu_us: dict[str, list[float]] = {name: [] for name in servers}
    try:
        for server in servers.values():
            server.start()
            under_load(server, connections=CONNECTIONS, seconds=ROUND_S)
        for _ in range(ROUNDS):
            for name, server in servers.items():
                before_s = server.cpu_s()
                answers = under_load(server, connections=CONNECTIONS, seconds=ROUND_S)
                if answers.failed:
                    raise AssertionError(f"{name}: requests failed: {answers.failures}")
                per_s[name].append(answers.per_s)
                cpu_us[name].append(1e6 * (server.cpu_s() - before_s) / len(answers.ids))
        group = servers["group"]
        committed = group.counter('memorypolicy_audit_records_total{outcome="committed"}')
        per_transaction = committed / group.counter("memorypolicy_audit_transactions_total")
    finally:
        for server in servers.values():
            server.kill()

    def ratio(name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(per_s[name], per_s[to], strict=True))

    for name in servers:
        print(
            f"{name}: {statistics.median(per_s[name]):,.0f} answers/s, "
            f"{statistics.median(cpu_us[name]):,.0f} µs of CPU an answer"
        )
    print(f"group commit: {per_transaction:.1f} records a transaction")
    bar("audit_throughput_ratio", ratio("group", "none"), ">=", 0.6)
    bar("audit_full_throughput_ratio", ratio("full", "none"), ">=", 0.6)
    bar("audit_vs_commit_each", ratio("group", "each"), ">=", 3)


def _kills(folder: Path) -> None:
    found = killed_at_random(folder / "kills", connections=CONNECTIONS, seed=SEED, name="SQLite")
    print(f"{found.fault}: {found.acknowledged:,} answers acknowledged")
    bar("audit_sigkill_lost", found.lost, "<=", 0)


def _swaps(folder: Path) -> None:
    bundles = [write_bundle(folder / f"b{seed}", model=graph(random_layers(seed))) for seed in range(3)]
    found = swapped_under_load(folder / "swaps", bundles, connections=CONNECTIONS)
    print(f"{found.swaps} swaps, {found.answered:,} answers meanwhile")
    bar("policy_swap_errors", found.failed, "<=", 0)
    bar("policy_swap_p99_ratio", found.p99_ratio(), "<=", 2)


if __name__ == "__main__":
    sys.exit(main())
