"""The spool: on the disk before anyone is told, bounded, and read to the last whole line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.db.record import Record
from service.db.spool import SUFFIX, Spool, SpoolFullError
from tests.db.rows import hook_decision, recommendation

ROOT = Path(__file__).resolve().parents[2]


def spool_in(folder: Path, *, name: str = "mine", most_bytes: int = 10**6) -> Spool:
    return Spool(folder, most_bytes=most_bytes, own_name=name)


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    records = [recommendation(caller="ü“\n"), hook_decision(), recommendation()]
    spool.append(records[:1])
    spool.append(records[1:])
    file = spool.own()
    assert file is not None
    first = file.read(0, most=2)
    rest = file.read(first.end, most=2)
    assert first.records + rest.records == records
    assert (first.damaged, rest.damaged, rest.end) == (0, 0, file.size)


def test_a_full_spool_takes_nothing_of_a_group(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, most_bytes=1_500)
    spool.append([recommendation()])
    size = spool.own_bytes
    with pytest.raises(SpoolFullError, match="bytes are used"):
        spool.append([recommendation(), recommendation()])
    assert spool.own_bytes == size
    assert not spool.has_room()


def test_a_folder_that_cannot_be_written_is_a_full_spool(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolFullError, match="Not a directory"):
        spool_in(tmp_path / "file" / "spool").append([recommendation()])


def test_a_torn_last_line_is_nobodys_record(tmp_path: Path) -> None:
    """A kill in the middle of a write: the group was not acknowledged, and the rest is read."""
    spool = spool_in(tmp_path)
    kept, torn = recommendation(), recommendation()
    spool.append([kept])
    whole = spool.own_bytes
    spool.append([torn])
    spool.close()
    path = tmp_path / f"mine{SUFFIX}"
    os.truncate(path, path.stat().st_size - 20)
    (file,) = spool_in(tmp_path, name="another").orphans()
    stretch = file.read(0, most=10)
    assert (stretch.records, stretch.end, stretch.damaged) == ([kept], whole, 0)
    file.close()


def test_a_damaged_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    records = [recommendation() for _ in range(3)]
    spool.append(records)
    spool.close()
    path = tmp_path / f"mine{SUFFIX}"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"Qwen3-8B", b"Qwen3-9B")
    path.write_bytes(b"".join(lines))
    (file,) = spool_in(tmp_path, name="another").orphans()
    stretch = file.read(0, most=10)
    assert (stretch.records, stretch.damaged) == ([records[0], records[2]], 1)
    file.close()


def test_a_living_process_keeps_its_file_and_a_dead_one_leaves_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from service.db.spool import Spool; "
        "from tests.db.rows import recommendation; s = Spool(Path(sys.argv[1]), most_bytes=10**6, own_name='theirs'); "
        "s.append([recommendation(project='theirs')]); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        spool = spool_in(tmp_path)
        spool.append([recommendation()])
        assert list(spool.orphans()) == []
        other.kill()
        other.wait()
    (file,) = spool.orphans()
    assert [record.values["project"] for record in file.read(0, most=10).records] == ["theirs"]
    file.remove()
    assert [path.name for path in tmp_path.iterdir()] == [f"mine{SUFFIX}"]


def test_a_record_of_a_newer_release_is_read_without_what_is_unknown(tmp_path: Path) -> None:
    record = recommendation()
    spool = spool_in(tmp_path)
    spool.append([Record(record.table, {**record.values, "of_tomorrow": 1})])
    file = spool.own()
    assert file is not None
    assert file.read(0, most=10).records == [record]


def test_a_new_file_that_is_taken_away_gets_another_name(tmp_path: Path) -> None:
    """Whoever looks for files of the dead may hold a file that was created and not locked yet."""
    (tmp_path / f"mine{SUFFIX}").touch()
    (held,) = spool_in(tmp_path, name="another").orphans()
    spool = spool_in(tmp_path)
    record = recommendation()
    spool.append([record])
    held.remove()
    own = spool.own()
    assert own is not None
    assert own.path.exists()
    assert own.read(0, most=10).records == [record]


def test_an_empty_spool_leaves_no_file(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    spool.append([recommendation()])
    file = spool.own()
    assert file is not None
    file.clear()
    spool.close()
    assert list(tmp_path.iterdir()) == []
