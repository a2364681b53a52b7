"""Carries out a Dockerfile without an engine: every instruction as written, its absolute paths below a folder.

Only what our Dockerfile uses is understood; anything else is an error, so that it cannot be skipped in silence. The
base image is an empty virtual environment: like it, it brings Python with pip and nothing else of Python's.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
# `/packages` in `--target=/packages`, not the one in `a/packages`.
ABSOLUTE = re.compile(r"(?<![\w./}])/(?=\w)")
BASE_FOLDER = "usr"


@dataclass(frozen=True, slots=True)
class Instruction:
    """RUN, COPY …; its flags without their dashes; the rest of the line."""

    keyword: str
    flags: dict[str, str]
    value: str


@dataclass(slots=True)
class Stage:
    """What follows a FROM, and the configuration that the finished stage has."""

    base: str
    name: str
    instructions: list[Instruction]
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


def instructions(text: str) -> list[Instruction]:
    """Comments left out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        keyword, _, value = line.partition(" ")
        flags = {}
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", value):
            flags[match[1]] = match[2]
            value = value[match.end() :]
        found.append(Instruction(keyword, flags, value.strip()))
    return found


def stages(text: str) -> list[Stage]:
    """The stages in order; what stands before the first FROM is not in them."""
    found: list[Stage] = []
    for instruction in instructions(text):
        if instruction.keyword == "FROM":
            base, _, name = instruction.value.partition(" AS ")
            found.append(Stage(base=base, name=name, instructions=[]))
        elif found:
            found[-1].instructions.append(instruction)
    return found


def ignored(path: PurePosixPath, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves a path of the context out: the last pattern that fits it or a parent decides."""
    out = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        anywhere = wanted.removeprefix("**/")
        for candidate in (path, *path.parents[:-1]):
            shown = candidate.name if anywhere != wanted else str(candidate)
            # Docker's * does not cross a slash.
            if shown.count("/") == anywhere.count("/") and fnmatchcase(shown, anywhere):
                out = not pattern.startswith("!")
    return out


class Build:
    """Each stage in a folder of its own. After `run`, the last one is the image."""

    def __init__(self, folder: Path, *, dockerfile: Path = DOCKERFILE) -> None:
        self.folder = folder
        self.stages = stages(dockerfile.read_text(encoding="utf-8"))
        lines = (dockerfile.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
        self._ignore = [line for line in lines if line and not line.startswith("#")]
        self._context = dockerfile.parent

    @property
    def image(self) -> Stage:
        """The last stage."""
        return self.stages[-1]

    def root(self, stage: Stage) -> Path:
        """Its `/`."""
        return self.folder / (stage.name or "image")

    def run(self) -> None:
        """Carries everything out. AssertionError with the output of a step that fails."""
        for stage in self.stages:
            root = self.root(stage)
            _shell(f"{shlex.quote(sys.executable)} -m venv {root / BASE_FOLDER}", cwd=self.folder, environment={})
            for instruction in stage.instructions:
                self._carry_out(stage, instruction)

    def path(self, text: str, *, stage: Stage) -> str:
        """A text of the Dockerfile with its absolute paths below the stage's folder."""
        return ABSOLUTE.sub(f"{self.root(stage)}/", text)

    def process_environment(self, stage: Stage) -> dict[str, str]:
        """Of a process in the stage: ENV, a PATH that begins with the base's Python, nothing of the caller's."""
        mapped = {name: self.path(value, stage=stage) for name, value in stage.environment.items()}
        return {**mapped, "PATH": f"{self.root(stage) / BASE_FOLDER / 'bin'}:/usr/bin:/bin"}

    def _carry_out(self, stage: Stage, instruction: Instruction) -> None:
        match instruction.keyword:
            case "RUN":
                pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
                environment = {**self.process_environment(stage), **pip, "HOME": os.environ.get("HOME", "/")}
                _shell(self.path(instruction.value, stage=stage), cwd=self.root(stage), environment=environment)
            case "COPY":
                self._copy(stage, instruction)
            case "ENV":
                for name, _, value in (part.partition("=") for part in shlex.split(instruction.value)):
                    stage.environment[name] = value
            case "ARG" | "LABEL":
                stage.settings[instruction.keyword] = instruction.value
            case "WORKDIR" | "USER" | "VOLUME" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                stage.settings[instruction.keyword] = instruction.value
            case other:
                raise AssertionError(f"this builder does not know {other}")

    def _copy(self, stage: Stage, instruction: Instruction) -> None:
        source, target = instruction.value.split()
        destination = self.root(stage) / target.lstrip("/")
        if "from" in instruction.flags:
            (origin,) = [other for other in self.stages if other.name == instruction.flags["from"]]
            found = self.root(origin) / source.lstrip("/")
        else:
            found = self._context / source
        destination.parent.mkdir(parents=True, exist_ok=True)
        if found.is_file():
            shutil.copy2(found, destination)
            return
        ignore = self._left_out if "from" not in instruction.flags else None
        shutil.copytree(found, destination, ignore=ignore, symlinks=True, dirs_exist_ok=True)
        if "chown" in instruction.flags and os.geteuid() == 0:
            user, _, group = instruction.flags["chown"].partition(":")
            for path in (found, *found.rglob("*")):
                os.chown(destination / path.relative_to(found), int(user), int(group))

    def _left_out(self, folder: str, names: list[str]) -> set[str]:
        inside = PurePosixPath(Path(folder).relative_to(self._context))
        return {name for name in names if ignored(inside / name, self._ignore)}


def exec_form(value: str) -> list[str]:
    """`["a", "b"]` of ENTRYPOINT, CMD or HEALTHCHECK … CMD; a string there would run a shell."""
    command: list[str] = json.loads(value[value.index("[") :])
    return command


def _shell(command: str, *, cwd: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        env=environment or None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
