"""What is measured on real server processes, with the audit on as by default."""

import time
from dataclasses import dataclass
from pathlib import Path

from tests.memory.experiments import under_load
from tests.memory.server import Server
from tests.service_bench.closed_loop import latencies_ms, sent_once
from tests.service_bench.questions import creations, message, questions

ROUND_S = 1.0
BATCH = 64
BATCHES = 8
DIFFERENT = 500
HOOK_CONNECTIONS = 32
LOAD_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of the same questions: CPU of the server, and how long their caller waited."""

    cpu_s: float
    elapsed_s: float


def batches(folder: Path, *, rounds: int) -> tuple[list[Cost], list[Cost]]:
    """(asked one by one, asked 64 at a time) on one connection, in turn."""
    asked = questions(BATCH * BATCHES)
    single = [message(question, path="/v1/recommend") for question in asked]
    batch = [
        message({"items": asked[start : start + BATCH]}, path="/v1/recommend:batch")
        for start in range(0, len(asked), BATCH)
    ]
    found: tuple[list[Cost], list[Cost]] = ([], [])
    with Server(folder) as server:
        for number in range(rounds + 1):
            for messages, costs in zip((single, batch), found, strict=True):
                cpu_s, begun_s = cpu_s_of(server), time.perf_counter()
                sent_once(server.port, messages)
                if number:
                    elapsed_s = time.perf_counter() - begun_s
                    costs.append(Cost(cpu_s=cpu_s_of(server) - cpu_s, elapsed_s=elapsed_s))
    return found


def one_client(folder: Path, *, rounds: int) -> list[tuple[float, float]]:
    """(p50, p99) in milliseconds of each round with one client."""
    messages = [message(question, path="/v1/recommend") for question in questions(DIFFERENT)]
    with Server(folder) as server:
        return _percentiles(server, messages, connections=1, rounds=rounds)


def hook_latencies(folder: Path, *, rounds: int) -> list[tuple[float, float]]:
    """(p50, p99) in milliseconds of each round at the hook."""
    messages = [message(body, path="/v1/hooks/endpoint-creation") for body in creations(100_000)]
    # A skip at the deadline would be an answer, but not the one that is measured.
    with Server(folder, hook_deadline_ms=60_000) as server:
        return _percentiles(server, messages, connections=HOOK_CONNECTIONS, rounds=rounds)


def _percentiles(server: Server, messages: list[bytes], *, connections: int, rounds: int) -> list[tuple[float, float]]:
    found = []
    for number in range(rounds + 1):
        ordered = sorted(latencies_ms(server.port, messages, connections=connections, seconds=ROUND_S))
        # What was sent is not sent again: a decision that is on record already costs no commit.
        messages = messages[len(ordered) :] + messages[: len(ordered)]
        if number:
            found.append((ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]))
    return found


def first_answers(folder: Path, *, rounds: int) -> list[float]:
    """Seconds from the start of the process to its first answer with 200, each with a database yet to be made."""
    ask = message(questions(1)[0], path="/v1/recommend")
    found = []
    for number in range(rounds):
        server = Server(folder / str(number))
        begun_s = time.perf_counter()
        try:
            server.launch()
            while not _answers(server, ask):
                time.sleep(0.002)
            found.append(time.perf_counter() - begun_s)
        finally:
            server.kill()
    return found


def _answers(server: Server, ask: bytes) -> bool:
    if server.process.poll() is not None:
        raise AssertionError(f"the server did not start:\n{server.log}")
    try:
        sent_once(server.port, [ask])
    except ConnectionRefusedError:
        return False
    return True


def resident_mib(folder: Path) -> tuple[float, float]:
    """Memory of a process after some seconds at 64 connections: of the first, which migrates, and of the next one."""
    server = Server(folder)
    found = []
    try:
        for _ in range(2):
            server.start()
            for _ in range(3):
                under_load(server, connections=LOAD_CONNECTIONS, seconds=ROUND_S)
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
            server.stop()
    finally:
        server.kill()
    return found[0], found[1]


def cpu_s_of(server: Server) -> float:
    """CPU seconds of the server so far, exact: /proc counts in hundredths of a second."""
    # The clock of another process as clock_getcpuclockid(3) makes its id, which Python has for threads only.
    return time.clock_gettime(~server.process.pid << 3 | 2)
