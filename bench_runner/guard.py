"""Outlives a sweep that is killed, and ends the server that the sweep can no longer end.

`python -m bench_runner.guard GRACE_S`, with lines on standard input: who the server is, as often as more is known of
it; an empty line says that the server has been ended, the end of the input that nobody is left to end it. A signal from
the kernel would not do: a vLLM server that is starting swallows SIGTERM.
"""

import json
import sys

from bench_runner.server_process import StartedServer, stop_processes


def main() -> None:
    """Returns when the server is none of its business any more."""
    grace_s, started = float(sys.argv[1]), None
    for line in sys.stdin:
        if not line.strip():
            return
        started = StartedServer(**json.loads(line))
    if started is not None:
        stop_processes(started, grace_s=grace_s)


if __name__ == "__main__":
    main()
