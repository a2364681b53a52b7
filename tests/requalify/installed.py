"""What the installed vLLM is: options, defaults, what it starts with on each GPU. The engine's environment only."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from service.domain.gpu import GPUS
from tests.requalify.verdict import Facts

GIB = 2**30
_KINDS_BY_CLASS = {"_StoreTrueAction": "FLAGS", "_AppendAction": "APPENDED"}
_KINDS_BY_NARGS: dict[Any, str] = {"+": "LISTS", "?": "OPTIONAL_TEXTS"}
_KINDS_BY_TYPE = {
    "int": "INTEGERS",
    "float": "FLOATS",
    "human_readable_int": "SIZES",
    "human_readable_int_or_auto": "AUTOMATIC_SIZES",
}


# Where the parser of `vllm serve` is made: in 0.28, and in versions that moved it.
_PARSER_MODULES = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args")


def quieten(level: str) -> None:
    """The engine says nothing below that level. Since 0.32 it reads VLLM_LOGGING_LEVEL only where an engine starts."""
    logging.getLogger("vllm").setLevel(level.upper())


def serve_parser() -> argparse.ArgumentParser:
    """The parser of `vllm serve`; ImportError if it is made nowhere that is known."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for name in _PARSER_MODULES:
        with suppress(ModuleNotFoundError):
            make_arg_parser = import_module(name).make_arg_parser
            parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
            return parser
    raise ImportError(f"no make_arg_parser in {', '.join(_PARSER_MODULES)}")


def kind_of(action: argparse.Action) -> str:
    """Which table of service.engine_options an option belongs in: what follows it on a command line."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "SWITCHES"
    kind = _KINDS_BY_CLASS.get(type(action).__name__) or _KINDS_BY_NARGS.get(action.nargs)
    return kind or _KINDS_BY_TYPE.get(getattr(action.type, "__name__", ""), "TEXTS")


def options_of(parser: argparse.ArgumentParser) -> tuple[dict[str, str], dict[str, str]]:
    """Option -> kind, and short form -> option."""
    kinds, shorts = {}, {}
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--") and not name.startswith("--no-")]
        if not names or action.dest == "help":
            continue
        for name in names:
            kinds[name[2:]] = kind_of(action)
        shorts.update({short: names[0][2:] for short in action.option_strings if not short.startswith("--")})
    return kinds, shorts


def installed_facts() -> Facts:
    """All of it. What the engine no longer offers in the way that 0.28 did is None, with the reason under problems."""
    import vllm

    problems: list[str] = []
    kinds: dict[str, str] = {}
    shorts: dict[str, str] = {}
    defaults: dict[str, object] = {}
    batch: dict[str, tuple[int, int]] = {}
    # Another version's code may fail in any way when it is asked in the old one: that it does is the finding.
    try:
        parser = serve_parser()
        kinds, shorts = options_of(parser)
        defaults = {action.dest: plain(parser.get_default(action.dest)) for action in parser._actions}
    except Exception as error:
        problems.append(f"its options cannot be read: {type(error).__name__}: {error}")
    try:
        batch = {gpu.name: batch_default(gpu.name, gpu.memory_gib) for gpu in GPUS}
    except Exception as error:
        problems.append(f"what it starts with on a GPU cannot be read: {type(error).__name__}: {error}")
    return Facts(
        version=str(vllm.__version__).partition("+")[0],
        options=kinds,
        short_forms=shorts,
        defaults=defaults,
        batch_defaults=batch,
        problems=tuple(problems),
    )


def plain(value: object) -> object:
    """Enumerations and other classes by their text: only plain values can be compared and written down."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def batch_default(name: str, memory_gib: float) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) of the API server on a device of that name and memory."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    with _platform(name, int(memory_gib * GIB)):
        tokens, seqs = EngineArgs.get_batch_defaults(world_size=1)
    return int(seqs[UsageContext.OPENAI_API_SERVER]), int(tokens[UsageContext.OPENAI_API_SERVER])


@contextmanager
def _platform(name: str, memory: int) -> Iterator[None]:
    """The engine believes to be on that device while the block runs."""
    from vllm.engine import arg_utils

    class Device:
        """What get_batch_defaults asks of a platform."""

        def get_device_total_memory(self, device_id: int = 0) -> int:
            """Bytes."""
            return memory

        def get_device_name(self, device_id: int = 0) -> str:
            """As nvidia-smi has it."""
            return name

        def __getattr__(self, asked: str) -> Any:
            # is_tpu, is_cpu, is_xpu, …: an NVIDIA GPU is none of the others.
            if asked.startswith("is_"):
                return lambda *_: asked in ("is_cuda", "is_cuda_alike")
            raise AttributeError(asked)

    real = arg_utils.current_platform
    arg_utils.current_platform = Device()
    try:
        yield
    finally:
        arg_utils.current_platform = real
