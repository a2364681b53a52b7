"""What a scripted server does: its settings, and the command line that it shares with `vllm serve`."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from bench_runner.files import read_json
from service.domain.errors import InvalidInputError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Times are in seconds from a request's arrival, or from when it gets a place if all are taken.

    The event that completes token n comes (n − first_event_tokens) × token_interval_s after the first one.
    """

    # What every answer looks like.
    startup_s: float = 0.0
    first_token_s: float = 0.02
    token_interval_s: float = 0.002
    tokens_per_event: int = 1
    first_event_tokens: int | None = None  # None: as in the others
    empty_first_event_s: float | None = None  # an event without a token at that time
    events_per_write: int = 1  # so many events leave together, when the last one is due
    torn: bool = False  # each write leaves in two halves, 2 ms apart
    max_running: int | None = None  # others queue; None: --max-num-seqs, or no limit
    cached_share: float | None = None  # of every prompt; None: what a prefix cache would find
    no_token_ids: bool = False  # tokens are told by continuous usage only
    no_counts: bool = False  # neither token ids nor usage, only text
    max_model_len: int = 40_960
    num_gpu_blocks: int = 65_536
    preemptions_per_request: int = 0
    metrics_missing: tuple[str, ...] = ()
    metrics_renamed: Mapping[str, str] = field(default_factory=dict)  # new name: old name
    log_prompts: bool = False

    # Faults of the process.
    exit_at_startup: int | None = None
    startup_log: str = "RuntimeError: scripted failure at start-up"
    never_ready: bool = False
    ignore_sigterm: bool = False
    leave_child: bool = False
    wrong_model: bool = False
    # Faults of requests. The numbers count completion requests from 1.
    die_on_request: int | None = None
    hang_on_request: int | None = None
    hang_all: bool = False
    refuse_all: bool = False
    status: int | None = None
    status_every: int = 1
    garbage: bool = False
    no_tokens: bool = False
    error_event: bool = False
    cut_after_tokens: int | None = None
    hang_after_tokens: int | None = None
    short_by: int = 0

    # Settings that hold if this flag is on the command line, e.g. {"--max-num-seqs=32": {"never_ready": true}}.
    fail_flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: Mapping[str, Any], *, flags: Mapping[str, str | None]) -> Self:
        """From JSON, with the overrides of those fail_flags that are among the flags. UnknownNameError if misspelt."""
        script = cls(**_checked(content))
        for flag, overrides in script.fail_flags.items():
            name, _, value = flag.partition("=")
            if name in flags and (not value or flags[name] == value):
                script = replace(script, **_checked(overrides))
        return script


def _checked(content: Mapping[str, Any]) -> dict[str, Any]:
    known = [member.name for member in fields(Script)]
    for name in content:
        if name not in known:
            raise UnknownNameError(path="script", value=name, known=known)
    return dict(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line of `vllm serve`: every flag is accepted and remembered, the last duplicate wins."""

    model: str
    tokens: tuple[str, ...]
    flags: Mapping[str, str | None]
    script: Script

    @classmethod
    def parse(cls, arguments: Iterable[str]) -> Self:
        """[--script FILE] [serve] MODEL and flags in any form. InvalidInputError without a model."""
        tokens = list(arguments)
        path = _take_script(tokens)
        if tokens[:1] == ["serve"]:
            del tokens[0]
        if not tokens or tokens[0].startswith("-"):
            raise InvalidInputError(path="model", value=tokens[:1], remedy="give the model first, then the flags")
        flags = dict(_flags(tokens[1:]))
        script = Script.parse(read_json(path) if path else {}, flags=flags)
        return cls(model=tokens[0], tokens=tuple(tokens), flags=flags, script=script)

    def number(self, flag: str, default: int | None) -> int | None:
        """A flag's value as an integer."""
        value = self.flags.get(flag)
        return default if value is None else int(value)

    @property
    def served_model(self) -> str:
        """The name under which requests ask for the model."""
        return self.flags.get("--served-model-name") or self.model

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens: the flag's, the model's own, or the script's."""
        config = Path(self.model) / "config.json"
        own = json.loads(config.read_bytes()).get("max_position_embeddings") if config.is_file() else None
        length = self.number("--max-model-len", own)
        return self.script.max_model_len if length is None else length


def _take_script(tokens: list[str]) -> Path | None:
    for index, token in enumerate(tokens):
        if token.startswith("--script="):
            del tokens[index]
            return Path(token.partition("=")[2])
        if token == "--script" and index + 1 < len(tokens):
            path = Path(tokens[index + 1])
            del tokens[index : index + 2]
            return path
    return None


def _flags(tokens: list[str]) -> Iterable[tuple[str, str | None]]:
    for index, token in enumerate(tokens):
        if not token.startswith("-"):
            continue
        name, equals, value = token.partition("=")
        name = name.replace("_", "-")
        following = tokens[index + 1] if index + 1 < len(tokens) else "-"
        yield name, value if equals else None if following.startswith("-") else following


def complain(error: Exception) -> int:
    """One line for a person, and the exit code of bad usage."""
    print(f"scripted_server: {error}", file=sys.stderr)
    return 2
