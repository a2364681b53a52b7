"""Outlives a sweep that is killed, and ends the server that the sweep can no longer end.

`python -m bench_runner.guard SESSION CREATED BOOTED TOKEN GRACE`: waits on standard input; a line says that the server
has been ended, the end of the input that nobody is left to end it. SIGTERM alone would not do: a vLLM server that is
starting swallows it.
"""

import sys

from bench_runner.server_process import StartedServer, stop_processes


def main() -> None:
    """Returns when the server is none of its business any more."""
    session, created_s, booted_s, token, grace_s = sys.argv[1:]
    if not sys.stdin.readline():
        started = StartedServer(session=int(session), created_s=float(created_s), booted_s=float(booted_s), token=token)
        stop_processes(started, grace_s=float(grace_s))


if __name__ == "__main__":
    main()
