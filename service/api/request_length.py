"""Whether the longest request of a workload fits the model's context, refused by the names of what was sent."""

from typing import NoReturn

from service.api.problem import Detail, RefusedError
from service.api.workload_part import WorkloadPart
from service.api.workload_words import ReadLoad
from service.domain.errors import shorten
from service.domain.scenario import ModelArch


def refuse_too_long(part: WorkloadPart, load: ReadLoad, model: ModelArch) -> None:
    """RefusedError where prompt and output are more than the context; nothing where that is unknown."""
    longest = load.longest or load.workload
    if model.max_model_len is not None and longest.sequence_tokens > model.max_model_len:
        _refuse(part, load, model)


def _refuse(part: WorkloadPart, load: ReadLoad, model: ModelArch) -> NoReturn:
    longest = load.longest or load.workload
    sent = {
        name: getattr(part, name)
        for name in (
            "prompt_tokens" if part.prompt_tokens is not None else "preset",
            _output_of(part),
        )
    }
    values = " and ".join(f"$.workload.{name} ({shorten(value)})" for name, value in sent.items())
    why = (
        f"prompt {longest.prompt_tokens} + output {longest.max_new_tokens} = {longest.sequence_tokens} exceeds the "
        f"{model.max_model_len}-token context of {model.name or 'this model'}; shorten one of them"
    )
    details = [Detail(path=f"$.workload.{name}", message=why, value=value) for name, value in sent.items()]
    raise RefusedError("invalid_request", f"{values}: {why}", details=details)


def _output_of(part: WorkloadPart) -> str:
    """What says how long the longest output is."""
    names = ("max_output_tokens", "max_new_tokens", "output_tokens")
    return next((name for name in names if getattr(part, name) is not None), "preset")
