"""Becomes the server's command, and gets SIGTERM if the process that started it is killed.

Run as a file: `python launch.py PARENT_PID COMMAND…`. A killed sweep can stop nothing, so the kernel must (prctl(2)).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process; exit code 127 if the command cannot be run."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
