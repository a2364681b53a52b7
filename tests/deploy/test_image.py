"""The image, built into a folder as its Dockerfile says: what it holds, and that it serves as a container would."""

import http.client
import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.image import DOCKERFILE, ROOT, Build, exec_form, ignored, instructions
from tests.deploy.sandbox import command, snapshot, unprotect, write_protect
from tests.service.serving import free_port
from tests.test_project import TOO_HEAVY, locked_names, normalised

MOST_BYTES = 350_000_000
PATIENCE_S = 120.0
COMPILERS = {"gcc", "cc", "g++", "c++", "clang", "ld", "as", "make", "cargo", "rustc", "gfortran", "f2py"}
QUESTION = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
}


@pytest.fixture(scope="module")
def build() -> Iterator[Build]:
    # Not pytest's own folder, which another user cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="memorypolicy-image-"))
    folder.chmod(0o755)
    try:
        made = Build(folder)
        made.run()
        write_protect(made.root(made.image), but=made.root(made.image) / "var/lib/memorypolicy")
        yield made
    finally:
        unprotect(folder)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(build: Build) -> Path:
    """The image's `/`."""
    return build.root(build.image)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def test_every_stage_begins_with_one_exact_python_that_can_be_exchanged_for_a_mirror_of_it() -> None:
    found = instructions(DOCKERFILE.read_text())
    assert found[0].keyword == "ARG"
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-bookworm", found[0].value)
    assert {one.value.split()[0] for one in found if one.keyword == "FROM"} == {"${BASE}"}
    assert len([one for one in found if one.keyword == "FROM"]) == 2


def test_what_it_adds_to_the_base_is_small(image: Path) -> None:
    size = sum(path.stat().st_size for top in ("packages", "app") for path in files(image / top))
    assert 10_000_000 < size <= MOST_BYTES


def test_it_holds_packages_the_service_and_its_migrations_and_nothing_else(image: Path) -> None:
    # `usr` stands in for the base image.
    assert {path.name for path in image.iterdir()} == {"packages", "app", "usr", "var"}
    assert {path.name for path in (image / "app").iterdir()} == {"service", "migrations"}
    assert not (image / "app/service/kubernetes").exists()
    names = {part for path in files(image) for part in path.relative_to(image).parts}
    assert names & {"tests", ".git", ".env", "Makefile", "offline", "bench_runner"} == set()


def test_its_packages_are_those_of_the_lock(image: Path) -> None:
    found = {
        normalised(one.metadata["Name"]) for one in importlib.metadata.distributions(path=[str(image / "packages")])
    }
    assert {"fastapi", "onnxruntime", "psycopg"} <= found
    assert found - locked_names() == set()
    assert found & (TOO_HEAVY | {"pip", "setuptools", "wheel"}) == set()


def test_nothing_in_it_installs_or_compiles(image: Path) -> None:
    done = subprocess.run([image / "usr/bin/python", "-I", "-c", "import pip"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in done.stderr
    executables = {path.name for path in files(image / "packages") if path.stat().st_mode & stat.S_IXUSR}
    assert executables & COMPILERS == set()
    assert not (image / "packages/bin").exists()


def test_anybody_can_read_it_and_only_its_data_folder_belongs_to_the_service(build: Build, image: Path) -> None:
    for path in (*(image / "app").rglob("*"), *(image / "packages").rglob("*")):
        mode = path.stat().st_mode
        assert mode & stat.S_IROTH, path
        assert not mode & stat.S_IWOTH, path
        assert path.is_file() or mode & stat.S_IXOTH, path
    assert build.image.settings["USER"] == "10001:10001"
    if os.geteuid() == 0:
        assert (image / "var/lib/memorypolicy").stat().st_uid == 10001


def test_its_bytecode_is_there_so_that_a_start_on_a_read_only_root_compiles_nothing(image: Path) -> None:
    for folder in ("app/service", "packages/fastapi"):
        sources = {path.stem for path in (image / folder).glob("*.py")}
        compiled = {path.name.split(".")[0] for path in (image / folder / "__pycache__").glob("*.pyc")}
        assert sources
        assert sources == compiled


def test_it_holds_no_secret_and_no_setting_of_one() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"(?i)(password|secret|token|DATABASE_URL)\S*=", text)
    assert all(one.value.startswith("[") for one in instructions(text) if one.keyword in ("ENTRYPOINT", "CMD"))


@contextmanager
def running(build: Build, image: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[str], int, dict[str, str]]]:
    """ENTRYPOINT and CMD as USER in WORKDIR with ENV, on a free port of the loopback; its port, its environment."""
    data = image / "var/lib/memorypolicy"
    port = free_port()
    environment = build.process_environment(build.image)
    environment |= {"MEMORYPOLICY_HOST": "127.0.0.1", "MEMORYPOLICY_PORT": str(port), "TMPDIR": str(image / "usr")}
    environment |= settings
    wanted = exec_form(build.image.settings["ENTRYPOINT"]) + exec_form(build.image.settings["CMD"])
    started = command(wanted, root=image, data=data, user=build.image.settings["USER"])
    folder = image / build.image.settings["WORKDIR"].lstrip("/")
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(started, cwd=folder, env=environment, stdout=log, stderr=log, text=True) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_S
            while ask(port, "/readyz")[0] != 200:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise AssertionError(f"it did not start:\n{log.read()}")
                time.sleep(0.1)
            yield process, port, environment
        finally:
            process.kill()


def ask(port: int, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def health(build: Build, environment: dict[str, str]) -> int:
    """Exit status of the image's HEALTHCHECK."""
    check = exec_form(build.image.settings["HEALTHCHECK"])
    return subprocess.run(check, cwd=build.root(build.image) / "app", env=environment, check=False).returncode


def test_the_root_is_read_only_for_its_user_and_the_data_folder_is_not(build: Build, image: Path) -> None:
    data = image / "var/lib/memorypolicy"
    for folder, expected in ((image / "app", False), (image / "packages", False), (image, False), (data, True)):
        wanted = command(["touch", str(folder / "new")], root=image, data=data, user=build.image.settings["USER"])
        done = subprocess.run(wanted, cwd=image, capture_output=True, check=False)
        assert (done.returncode == 0) is expected, (folder, done.stderr)
        assert (folder / "new").exists() is expected
    (data / "new").unlink()


def test_it_serves_as_another_user_from_a_read_only_root_and_writes_to_its_data_folder_alone(
    build: Build, image: Path
) -> None:
    data = image / "var/lib/memorypolicy"
    before = snapshot(image, but=data)
    with running(build, image) as (process, port, environment):
        owner = Path(f"/proc/{process.pid}").stat().st_uid if Path("/proc/self").exists() else None
        status, body = ask(port, "/v1/recommend", QUESTION)
        assert status == 200
        assert len(json.loads(body)["ranked"]) == 15
        assert health(build, environment) == 0
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0
        assert health(build, environment) == 1
    if os.geteuid() == 0 and owner is not None:
        assert owner == 10001
    assert snapshot(image, but=data) == before
    assert (data / "memorypolicy.db").is_file()


def test_several_workers_need_no_other_folder_and_leave_nothing_there(build: Build, image: Path) -> None:
    data = image / "var/lib/memorypolicy"
    with running(build, image, MEMORYPOLICY_WORKERS="2") as (process, port, _):
        assert ask(port, "/v1/recommend", QUESTION)[0] == 200
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0
    assert not [path for path in data.iterdir() if path.is_dir() and path.name != "spool"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        # The image listens on every interface; whoever starts it says who may ask.
        ({"MEMORYPOLICY_HOST": "0.0.0.0"}, "memorypolicy: .*MEMORYPOLICY_TOKENS_FILE"),
        ({"MEMORYPOLICY_DATA_DIR": "/app/elsewhere"}, "memorypolicy: .*app/elsewhere"),
    ],
    ids=["no tokens", "no data folder"],
)
def test_what_the_image_cannot_be_started_with_is_said_in_one_line(
    build: Build, image: Path, settings: dict[str, str], said: str
) -> None:
    mapped = {name: build.path(value, stage=build.image) for name, value in settings.items()}
    with pytest.raises(AssertionError, match=said) as caught:  # noqa: SIM117
        with running(build, image, **mapped):
            pass
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("service/app.py", False),
        ("migrations/versions/0001_first_schema.py", False),
        ("service/kubernetes/service.yaml", True),
        ("service/api/__pycache__/state.cpython-311.pyc", True),
        ("tests/deploy/image.py", True),
        (".git/config", True),
        ("README.md", True),
    ],
)
def test_the_build_context_leaves_out_what_the_image_is_not_made_of(path: str, out: bool) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored(PurePosixPath(path), [line for line in lines if line and not line.startswith("#")]) is out
