"""One terminal session in a checkout of its own: the commands of a document, in order, against real processes."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from tests.service.serving import free_port
from tests.transcripts import ADDRESS, BLOCK, ROOT, normal, transcripts

# Written by the release of revision 0001: the database that an upgrade begins with.
OLD_DATABASE = ROOT / "tests" / "db" / "revision_0001.db"
# What a user has in the folder in which commands are typed.
CHECKOUT = (".venv", "service", "migrations")
END = "rehearsed-to-here"
PATIENCE_S = 300.0
STORED = re.compile(r"\b20\d\d-\d\d-\d\d \d\d:\d\d\b")


class Rehearsal:
    """A shell that lives from the first command to the last, so that what one starts another can stop."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memorypolicy-rehearsal-"))
        for name in CHECKOUT:
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "var").mkdir()
        shutil.copyfile(OLD_DATABASE, self.folder / "var" / "memorypolicy.db")
        self._port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMORYPOLICY_")}
        # A busy machine may take long for a commit; that is not what is shown.
        own = {"MEMORYPOLICY_PORT": str(self._port), "MEMORYPOLICY_AUDIT_DEADLINE_MS": "60000", "NO_COLOR": "1"}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env={**kept, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Rehearsal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()
        self._shell.wait()
        shutil.rmtree(self.folder)

    def run(self, command: str) -> str:
        """What the command prints, as a terminal would show it. AssertionError after minutes without an end."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        watchdog = threading.Timer(PATIENCE_S, self._end)
        watchdog.start()
        try:
            typed = command.replace(ADDRESS, f"127.0.0.1:{self._port}")
            self._shell.stdin.write(f"{typed}\nprintf '\\n%s\\n' {END}\n")
            self._shell.stdin.flush()
            lines = []
            for line in self._shell.stdout:
                if line.rstrip("\n") == END:
                    break
                lines.append(line.rstrip().replace(f"{ROOT}/", ""))
            else:
                raise AssertionError(f"no end of {command!r}; it printed {lines}")
        finally:
            watchdog.cancel()
        return "\n".join(lines).rstrip("\n")

    def _end(self) -> None:
        """The shell and all that it started."""
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)


def filled(text: str) -> str:
    """A Markdown text whose transcripts hold what their commands print now."""
    with Rehearsal() as rehearsal:
        blocks = [f"$ {command}\n{rehearsal.run(command)}" for command in [one.command for one in transcripts(text)]]
    filling = iter(blocks)
    return BLOCK.sub(lambda _: f"```console\n{next(filling).rstrip()}\n```", text)


def without_outputs(text: str) -> str:
    """A Markdown text whose transcripts hold their commands alone."""
    commands = iter(transcripts(text))
    return BLOCK.sub(lambda _: f"```console\n$ {next(commands).command}\n```", text)


def comparable(output: str) -> str:
    """An output without what may differ between two rehearsals."""
    return STORED.sub("<time>", normal(output))
