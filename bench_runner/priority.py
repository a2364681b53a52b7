"""Priority of processes that time others: their clock must not queue behind what else runs on the host."""

import os
from contextlib import suppress
from pathlib import Path

TIMING = -10


def raise_priority(pid: int, *, niceness: int = TIMING) -> None:
    """For the leader of a session of its own. Without the right to (CAP_SYS_NICE) it stays as it is."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        # Where the kernel groups processes by session, a process's own niceness counts only inside its group.
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
