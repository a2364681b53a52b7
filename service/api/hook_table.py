"""A decision of the hook as text for a terminal: the change as a diff, and why each flag is set or left."""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from service.domain.candidate import cli_arg
from service.hook_client import patched

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_decision(request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """An answer of the hook. Of `request` only what changes is shown: the rest may hold secrets."""
    console = _console()
    _print_head(console, answer)
    after = patched(dict(request), dict(answer))
    for line in _diff(_engine_part(request), _engine_part(after)):
        console.print(line)
    for name, value in answer["engine_args"].items():
        console.print(f"{cli_arg(name, value)}: set, nobody has set it")
    for left in answer["skipped"]:
        value = answer["pinned"][left["flag"]]
        by = "the user" if left["reason"] == "user_set" else "the operator's catalogue"
        alone = "" if left["recommended"] is None else f"; alone we would take {left['recommended']}"
        console.print(escape(f"{cli_arg(left['flag'], value)}: left, set by {by}{alone}"))
    for warning in answer["warnings"]:
        console.print(escape(f"warning: {warning}"))


def print_service(before: Mapping[str, Any], after: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """What of an InferenceService may change, before and after: the rest may hold secrets."""
    console = _console()
    _print_head(console, {"reason": None, **answer})
    for line in _diff(_service_part(before), _service_part(after)):
        console.print(line)
    for warning in answer["warnings"]:
        console.print(escape(f"warning: {warning}"))


def _print_head(console: Console, answer: Mapping[str, Any]) -> None:
    reason = f" ({answer['reason']})" if answer["reason"] else ""
    console.print(f"[bold]{answer['decision']}[/bold]{reason}")
    console.print(escape(answer["message"]))


def _engine_part(request: Mapping[str, Any]) -> dict[str, Any]:
    config = request.get("workload_config")
    text = config.get("extra_args") if isinstance(config, dict) else None
    return {"workload_config": {"extra_args": text}}


def _service_part(content: Mapping[str, Any]) -> dict[str, Any]:
    predictor = content.get("spec", {}).get("predictor", {})
    parts = [predictor.get("model"), *(predictor.get("containers") or ())]
    return {
        "annotations": content.get("metadata", {}).get("annotations"),
        "args": [part["args"] for part in parts if isinstance(part, dict) and part.get("args") is not None],
    }


def _diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = (json.dumps(part, indent=2, ensure_ascii=False).splitlines() for part in (before, after))
    for line in difflib.unified_diff(old, new, "before", "after", n=1, lineterm=""):
        colour = _COLOURS.get(line[:1])
        yield f"[{colour}]{escape(line)}[/{colour}]" if colour else escape(line)


def _console() -> Console:
    # Not wrapped: a flag that is broken over two lines cannot be copied.
    return Console(highlight=False, soft_wrap=True)
