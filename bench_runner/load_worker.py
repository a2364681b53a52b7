"""A process that sends a share of a load: `python -m bench_runner.load_worker`, started by bench_runner.load.

Standard input: one line with the task, one with the start; its end means stop. Standard output: JSON lines, the last
one followed by the rows of request_log.ROW.
"""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import uvloop

from bench_runner.load import LoadSpec
from bench_runner.load_clients import Clients
from bench_runner.loop_watch import LoopWatch
from bench_runner.priority import raise_priority

PROGRESS_S = 0.2


def main() -> int:
    """Exit code 0 also if the parent has gone: there is nobody to tell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = json.loads(sys.stdin.buffer.readline() or b"null")
    if task is None:
        return 0
    spec = task["spec"]
    spec["token_ids"] = tuple(spec["token_ids"])
    clients = Clients(LoadSpec(**spec), index=task["index"], count=task["count"])
    clients.prepare()
    # A connection each; the usual soft limit is 1,024.
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    raise_priority(os.getpid())
    # No collection falls into the timed region; a run makes few cycles, and the process ends with it.
    gc.collect()
    gc.freeze()
    gc.disable()
    with suppress(BrokenPipeError):
        say({"ready": True})
        start = json.loads(sys.stdin.buffer.readline() or b"null")
        if start is not None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(clients, start_ns=start["start_ns"]))
    return 0


async def run(clients: Clients, *, start_ns: int) -> None:
    """From the start to the window's end, or to the end of standard input, or until the clients give up."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    mistakes: list[dict[str, Any]] = []

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        mistakes.append(context)
        ended.set()

    loop.set_exception_handler(fail)
    clients.start(start_ns)
    watch = LoopWatch(start_ns=clients.tally.start_ns, end_ns=clients.tally.end_ns)
    watch.start()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    loop.call_later(max(0, clients.tally.end_ns - time.monotonic_ns()) / 1e9, ended.set)
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), PROGRESS_S)
        say({"progress": progress(clients)})
    if mistakes:
        # A mistake of this program, which must not pass for one of the server's.
        raise mistakes[0].get("exception") or RuntimeError(mistakes[0]["message"])
    loop.remove_reader(sys.stdin.fileno())
    watched = watch.finish()
    rows = clients.finish()
    end = {
        "rows": len(rows),
        "progress": progress(clients),
        "errors": clients.errors,
        "tokens_in_window": clients.tally.in_window,
        "delayed": clients.delayed,
        "watch": watched,
    }
    say(end, rows.tobytes())


def progress(clients: Clients) -> dict[str, Any]:
    """What the parent shows of a run on its way."""
    return {
        "tokens": clients.tally.total,
        "in_flight": clients.in_flight,
        "completed": clients.completed,
        "errors": clients.failed,
        "gave_up": clients.gave_up,
    }


def say(message: dict[str, Any], rows: bytes = b"") -> None:
    """Writes a message for the parent."""
    data = memoryview(json.dumps(message).encode() + b"\n" + rows)
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    sys.exit(main())
