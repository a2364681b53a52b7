"""A process as a container engine would start it: another user, and a root file system that nobody can write to."""

import os
import shlex
import stat
import subprocess
from pathlib import Path

# The interpreter may lie in a folder that only root can enter; what the image holds is checked for its modes apart.
READS_ONLY = "-all,+dac_read_search"
AS_USER = "setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs"
CAPABILITIES = f"--inh-caps={READS_ONLY} --ambient-caps={READS_ONLY} --bounding-set={READS_ONLY}"
MOUNTED = (
    "mount --rbind {root} {root} && mount --bind {data} {data} && mount -o remount,bind,ro {root} && "
    "{{ mount -o remount,bind,ro / || :; }}"
)


def command(wanted: list[str], *, root: Path, data: Path, user: str) -> list[str]:
    """`wanted` as `user` ("UID:GID"), with `root` read-only but for `data` below it.

    Only root can become another user and mount; for anybody else the folders' modes must do, see `write_protected`.
    """
    if os.geteuid() != 0:
        return wanted
    uid, _, gid = user.partition(":")
    drop = f"exec {AS_USER.format(user=uid, group=gid)} {CAPABILITIES} -- {shlex.join(wanted)}"
    if not can_mount():
        return ["/bin/sh", "-c", drop]
    mounts = MOUNTED.format(root=shlex.quote(str(root)), data=shlex.quote(str(data)))
    # A working directory that was entered before the mounts would still be the writable one.
    return ["unshare", "--mount", "/bin/sh", "-c", f'{mounts} && cd "$PWD" && {drop}']


def can_mount() -> bool:
    """Whether this process may mount in a name space of its own: not in every container."""
    done = subprocess.run(["unshare", "--mount", "mount", "--bind", "/", "/"], capture_output=True, check=False)
    return done.returncode == 0


def write_protect(root: Path, *, but: Path) -> None:
    """Takes the write bits of everything below `root`, except `but`, away."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink() and path != but and but not in path.parents:
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def unprotect(root: Path) -> None:
    """So that its owner can delete it."""
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def snapshot(root: Path, *, but: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of everything below `root`, except what is below `but`."""
    found = {}
    for path in root.rglob("*"):
        if path != but and but not in path.parents:
            facts = path.lstat()
            found[str(path.relative_to(root))] = (facts.st_size, facts.st_mtime_ns)
    return found
