"""How a decided answer is started: the forms that people write engine arguments in, all made of the same flags."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from service.api.request_schemas import Form
from service.api.start_terms import StartTerms
from service.domain.candidate import CANDIDATES, cli_arg
from service.exclusion import EngineArgs
from service.recommend import Query, Recommendation

UNNAMED = "MODEL"
# Keys of production-stack's vllmConfig by argument; the chart has none for the rest, which go to extraArgs. Nor does
# max_model_len have one here: Helm writes a number of a million or more as 1.048576e+06, which vLLM refuses.
_HELM_KEYS = {"max_num_seqs": "maxNumSeqs", "gpu_memory_utilization": "gpuMemoryUtilization"}
_PREFIX_CACHING = "enable_prefix_caching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A start of the engine. model: None where it has no name; flags: what is to be set, by vLLM's names.

    whole: the same together with what the user has fixed of it. prefix_caching: as it will be. words: the user's own
    arguments, which stand last so that they count; own: what they set of what was sized, for the forms without them.
    """

    model: str | None
    engine_version: str
    flags: EngineArgs
    whole: EngineArgs
    prefix_caching: bool
    words: tuple[str, ...] = ()
    own: EngineArgs = field(default_factory=dict)


def launch_of(query: Query, found: Recommendation, terms: StartTerms) -> Launch | None:
    """What the answer amounts to; None where nothing would start."""
    if found.flags is None:
        return None
    model = query.scenario.model
    sized = {name: value for name, value in model.adapter_args.items() if name not in terms.in_words}
    if terms.context_to_set is not None:
        sized["max_model_len"] = terms.context_to_set
    own = terms.sized_in_words
    chosen = CANDIDATES[found.ranked[0].candidate_index] if found.decision == "recommended" else None
    start = chosen or query.gpu.engine_default
    return Launch(
        model=model.name,
        engine_version=query.engine_version,
        flags={**found.flags, **sized},
        whole={**(chosen.engine_args() if chosen else {}), **own, **sized},
        prefix_caching=bool(query.fixed.get(_PREFIX_CACHING, start.enable_prefix_caching)),
        words=terms.words,
        own=own,
    )


def arguments(flags: EngineArgs) -> list[str]:
    """The flags as arguments of `vllm serve`, one word each."""
    return [cli_arg(name, value) for name, value in flags.items()]


def command(launch: Launch) -> str:
    """`vllm serve` as a line for a shell; MODEL stands for a model without a name."""
    line = _line(launch.model or UNNAMED, tuple(launch.flags.items()))
    return f"{line} {shlex.join(launch.words)}" if launch.words else line


# Quoting costs more than the rest of a form, and the same lines come with every request.
@lru_cache(maxsize=1024)
def _line(model: str, flags: tuple[tuple[str, int | float | bool], ...]) -> str:
    return shlex.join(["vllm", "serve", model, *arguments(dict(flags))])


def renders(launch: Launch | None, forms: Sequence[Form]) -> dict[str, Any]:
    """The answer in each form; None in each where nothing would start."""
    return {form: None if launch is None else _FORMS[form](launch) for form in forms}


def metis_body(*, model: str, config: EngineArgs, engine_version: str) -> dict[str, Any]:
    """For the operator's catalogue of Metis. config: the whole configuration, whose parts were ranked together."""
    flags = " ".join(arguments(config)) or "nothing to set"
    return {
        "model_name": model,
        "enabled": True,
        "vllm_config": dict(config),
        "env": {},
        "source": "memorypolicy",
        "notes": f"for vLLM {engine_version}: {flags}",
    }


def _yaml(launch: Launch) -> str:
    """A file for `vllm serve --config`. What JSON writes for a text, a number or a boolean is YAML too."""
    entries: dict[str, Any] = {} if launch.model is None else {"model": launch.model}
    for name, value in {**launch.flags, **launch.own}.items():
        option = name.replace("_", "-")
        # vLLM 0.28 passes over an option that is false, instead of switching it off.
        entries |= {option: value} if value is not False else {f"no-{option}": True}
    # It cannot read a file that holds nothing.
    return "".join(f"{option}: {json.dumps(value)}\n" for option, value in entries.items()) or "{}\n"


def _helm(launch: Launch) -> dict[str, Any]:
    """For an entry of servingEngineSpec.modelSpec. The chart turns prefix caching off where it is not mentioned."""
    others = {name: value for name, value in launch.flags.items() if name not in (*_HELM_KEYS, _PREFIX_CACHING)}
    values = {key: launch.flags[name] for name, key in _HELM_KEYS.items() if name in launch.flags}
    return {
        "vllmConfig": {
            **values,
            "enablePrefixCaching": launch.prefix_caching,
            "extraArgs": [*arguments(others), *launch.words],
        }
    }


def _kserve(launch: Launch) -> dict[str, Any]:
    return {"spec": {"predictor": {"model": {"args": [*arguments(launch.flags), *launch.words]}}}}


def _ray(launch: Launch) -> dict[str, Any]:
    return {"engine_kwargs": {**launch.flags, **launch.own}}


def _metis(launch: Launch) -> dict[str, Any]:
    return metis_body(model=launch.model or UNNAMED, config=launch.whole, engine_version=launch.engine_version)


_FORMS: Mapping[Form, Callable[[Launch], Any]] = {
    "vllm": command,
    "yaml": _yaml,
    "helm": _helm,
    "kserve": _kserve,
    "ray": _ray,
    "metis": _metis,
}
