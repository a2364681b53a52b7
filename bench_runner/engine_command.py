"""The command that starts a server for one configuration, and its environment."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench_runner.machine import Device
from bench_runner.plan import Plan
from service.domain.candidate import Candidate
from service.domain.cell import CellKey
from service.domain.errors import ArtefactError, InvalidInputError

# No telemetry; /server_info and /reset_prefix_cache, which listen on this host alone like the rest of the server.
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
# What a plan decides, what this program decides, and what would change the former behind its back.
RESERVED = (
    *(field.name.replace("_", "-") for field in fields(Candidate)),
    "host",
    "port",
    "served-model-name",
    "performance-mode",
    "config",
)
# Token-id prompts need no tokeniser; cached tokens per request are how a cell proves that its prompts were fresh.
ALWAYS = ("--skip-tokenizer-init", "--enable-prompt-tokens-details")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """`program` is `vllm serve` or what stands for it; `arguments` come from the user and go to every server."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    device: Device

    def for_cell(self, plan: Plan, key: CellKey) -> list[str]:
        """The command of a cell's server, without port and served name. max_model_len stays the model's own."""
        return self.for_candidate(str(plan.model(key).name), plan.candidate(key))

    def for_candidate(self, model: str, candidate: Candidate | None) -> list[str]:
        """The command for a configuration; None sets no flag at all, which is the engine's own default."""
        flags = candidate.cli_args() if candidate else ()
        return [*self.program, model, *flags, *ALWAYS, *self.arguments]

    def environment(self, *, memory_gib: float) -> dict[str, str]:
        """What the server's environment has beyond ours. On a CPU, memory_gib is the size of the KV cache."""
        if self.device == "gpu":
            return dict(ENVIRONMENT)
        return {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": f"{memory_gib:g}", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def engine_command(*, program: str | None, arguments: Sequence[str], device: Device) -> EngineCommand:
    """program None: the `vllm` beside this interpreter, else the one on PATH. InvalidInputError for an empty one."""
    words = tuple(shlex.split(program)) if program is not None else (_vllm(), "serve")
    if not words:
        raise InvalidInputError(path="server-command", value=program, remedy="give a command such as 'vllm serve'")
    for word in arguments:
        if _is_reserved(word):
            raise InvalidInputError(
                path="server-args", value=word, remedy="configurations, host and port are the plan's; leave it out"
            )
    return EngineCommand(program=words, arguments=tuple(arguments), device=device)


def _is_reserved(word: str) -> bool:
    """vLLM takes `_` for `-` and unique prefixes, and the last of two values: one here would override the plan's."""
    if not word.startswith("--") or word == "--":
        return False
    name = word[2:].partition("=")[0].replace("_", "-").removeprefix("no-")
    return any(reserved == name or (len(name) > 2 and reserved.startswith(name)) for reserved in RESERVED)


def check_program(command: EngineCommand) -> None:
    """ArtefactError if the program is not there."""
    if shutil.which(command.program[0]) is None:
        raise ArtefactError(
            f"server command {shlex.join(command.program)!r}: {command.program[0]} cannot be run; "
            "install vllm==0.28.0 or give --server-command"
        )


def check_model(name: str) -> None:
    """A model that is written as a path must be a folder with a config.json; a name is the engine's to resolve."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path and not (Path(name) / "config.json").is_file():
        raise ArtefactError(f"model {name!r}: no config.json in that folder; give a model folder or a model's name")


def _vllm() -> str:
    beside = Path(sys.executable).with_name("vllm")
    return str(beside) if beside.exists() else "vllm"
