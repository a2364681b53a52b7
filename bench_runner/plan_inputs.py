"""Reads what a user gives for a plan: models, workloads, configurations and an SLO, by name or from a file.

Every function raises MemoryPolicyError in one line that names the file or the value and what to do.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench_runner.files import read_json
from bench_runner.plan import CPU
from service.domain.candidate import Candidate
from service.domain.catalogue import CATALOGUE, model_by_name
from service.domain.errors import ArtefactError, InvalidInputError, UnknownNameError, UnsupportedModelError
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.model_config import parse_config
from service.domain.reference import NamedWorkload
from service.domain.scenario import MAX_CONCURRENCY, ModelArch, check_float, check_int
from service.domain.slo import Slo

ENGINE_DEFAULT = "engine-default"
MAX_MEMORY_GIB = 100_000.0
_CONFIG_ID = re.compile(r"s(\d{1,9})-b(\d{1,9})-g(\d\.\d\d)-p([01])")
_CONFIG_ID_FORM = (
    "s<max_num_seqs>-b<max_num_batched_tokens>-g<gpu_memory_utilization>-p<0|1>, such as s64-b4096-g0.90-p1"
)
_WORKLOAD_KEYS = ("name", "prompt_tokens", "max_new_tokens", "shared_prefix_ratio")
# A name becomes part of cell ids, which `|` separates, and of lines of text.
_NAME = re.compile(r"[^|\s\x00-\x1f\x7f-][^|\s\x00-\x1f\x7f]{0,255}")
# As nvidia-smi prints it: NVIDIA GeForce RTX 4090.
_GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/-]{0,99}")


def candidate_of(config_id: str) -> Candidate:
    """Inverse of Candidate.config_id."""
    match = _CONFIG_ID.fullmatch(config_id)
    if match is None:
        raise InvalidInputError(path="config", value=config_id, remedy=f"write {_CONFIG_ID_FORM}")
    seqs, tokens, utilization, prefix_caching = match.groups()
    candidate = Candidate(
        max_num_seqs=int(seqs),
        max_num_batched_tokens=int(tokens),
        gpu_memory_utilization=float(utilization),
        enable_prefix_caching=prefix_caching == "1",
    )
    return _checked(candidate, given=config_id, config_id=config_id)


def _checked(candidate: Candidate, *, given: object, config_id: str) -> Candidate:
    if candidate.config_id != config_id:
        raise InvalidInputError(
            path="config", value=given, remedy=f"its name would be {candidate.config_id}; write that"
        )
    if candidate.max_num_batched_tokens < candidate.max_num_seqs:
        raise InvalidInputError(
            path="config", value=given, remedy="vLLM refuses max_num_batched_tokens below max_num_seqs; raise it"
        )
    return candidate


def engine_default(device: Gpu) -> Candidate:
    """What vLLM 0.28 starts with on a GPU, or on a CPU, when nothing is set (engine/arg_utils.py, one worker).

    On a CPU gpu_memory_utilization has no effect, because the size of the KV cache is set instead.
    """
    if device.name != CPU:
        return device.engine_default
    return Candidate(
        max_num_seqs=128, max_num_batched_tokens=2048, gpu_memory_utilization=0.92, enable_prefix_caching=True
    )


def device_of(name: str, memory_gib: float | None) -> Gpu:
    """A GPU by name or alias; `CPU`, or a GPU that is not listed, needs memory_gib (see Plan)."""
    if memory_gib is not None:
        check_float("memory_gib", memory_gib, low=0.01, high=MAX_MEMORY_GIB)
    if name.strip().upper() == CPU:
        if memory_gib is None:
            raise InvalidInputError(path="gpu", value=name, remedy="give --memory-gib too: the GiB of its KV cache")
        return Gpu(name=CPU, memory_gib=memory_gib)
    try:
        known = gpu_by_name(name)
    except UnknownNameError as error:
        if memory_gib is None:
            raise InvalidInputError(
                path="gpu",
                value=name,
                remedy=f"known: {', '.join(error.known)}, {CPU}; for another give --memory-gib too, what it has",
            ) from error
        if _GPU_NAME.fullmatch(name.strip()) is None:
            raise InvalidInputError(path="gpu", value=name, remedy="write its name as nvidia-smi does") from error
        return Gpu(name=name.strip(), memory_gib=memory_gib)
    return known if memory_gib is None else Gpu(name=known.name, memory_gib=memory_gib)


def read_candidates(given: str, device: Gpu) -> list[Candidate]:
    """A config_id, `engine-default`, or JSON (a text or a file) with one configuration or a list of them."""
    if given == ENGINE_DEFAULT:
        return [engine_default(device)]
    if given.lstrip().startswith(("{", "[")):
        try:
            content = json.loads(given)
        except ValueError as error:
            raise InvalidInputError(path="config", value=given, remedy=f"it is no JSON: {error}") from error
        return [_candidate_from_json(item, where="config") for item in _items(content)]
    if Path(given).is_file():
        return [_candidate_from_json(item, where=given) for item in _items(_read_any_json(Path(given)))]
    return [candidate_of(given)]


def _candidate_from_json(item: object, *, where: str) -> Candidate:
    values = _members(item, where=where, required=[field.name for field in fields(Candidate)])
    try:
        candidate = Candidate(**values)
    except InvalidInputError as error:
        raise _located(error, where) from error
    # Two digits are what a config_id shows: a third would make two configurations one.
    rounded = f"{candidate.gpu_memory_utilization:.2f}"
    if float(rounded) != candidate.gpu_memory_utilization:
        raise InvalidInputError(
            path=f"{where}: gpu_memory_utilization",
            value=candidate.gpu_memory_utilization,
            remedy=f"give two decimals, such as {rounded}",
        )
    return _checked(candidate, given=item, config_id=candidate.config_id)


def read_model(given: str) -> ModelArch:
    """A catalogue name, a folder with config.json, a config.json, or NAME=CONFIG.json for a model by its Hub id.

    The model's name is what `vllm serve` is given: the catalogue's, the NAME, or the folder as the user wrote it.
    """
    path = Path(given)
    if path.is_dir():
        return _model_from_file(path / "config.json", name=given)
    if path.is_file():
        if path.name != "config.json":
            raise InvalidInputError(
                path="model", value=given, remedy="a server finds config.json only; give HUB_ID=FILE for another name"
            )
        return _model_from_file(path, name=str(path.parent))
    name, separator, file = given.partition("=")
    if separator:
        return _model_from_file(Path(file), name=name)
    try:
        return model_by_name(given)
    except UnknownNameError as error:
        raise InvalidInputError(
            path="model",
            value=given,
            remedy="no such folder or config.json, and not in the catalogue; give HUB_ID=CONFIG.json or one of "
            + ", ".join(entry.name for entry in CATALOGUE),
        ) from error


def _model_from_file(path: Path, *, name: str) -> ModelArch:
    try:
        return parse_config(read_json(path), name=_name("model", name))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(path=f"{path}: {error.path}", value=error.value, remedy=error.remedy) from error
    except InvalidInputError as error:
        raise _located(error, str(path)) if error.path != "model" else error from error


def read_workloads(path: Path) -> tuple[list[NamedWorkload], list[tuple[int, ...]]]:
    """Workloads from a JSON file, and the concurrencies that each of them names (empty where it names none).

    The split of a user's workload means nothing; it is `train`, because nothing of it is held out.
    """
    workloads, concurrencies = [], []
    for item in _items(_read_any_json(path)):
        values = _members(item, where=str(path), required=_WORKLOAD_KEYS, optional=["concurrency"])
        given = values.pop("concurrency", [])
        clients = given if isinstance(given, list) else [given]
        try:
            _name("name", values["name"])
            for count in clients:
                check_int("concurrency", count, high=MAX_CONCURRENCY)
            workload = NamedWorkload(**values, split="train")
            # Only with a concurrency is it a Workload, which checks the other numbers.
            workload.at(1)
        except InvalidInputError as error:
            raise _located(error, str(path)) from error
        workloads.append(workload)
        concurrencies.append(tuple(clients))
    return workloads, concurrencies


def read_slo(path: Path) -> Slo:
    """Limits from a JSON object; those that it leaves out are the reference's."""
    values = _members(read_json(path), where=str(path), optional=[field.name for field in fields(Slo)])
    try:
        return Slo(**values)
    except InvalidInputError as error:
        raise _located(error, str(path)) from error


def _read_any_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read as JSON: {error}") from error


def _items(content: object) -> list[Any]:
    items = content if isinstance(content, list) else [content]
    if not items:
        raise ArtefactError("an empty list asks for nothing; name one or leave the option out")
    return items


def _members(
    content: object, *, where: str, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise InvalidInputError(path=where, value=content, remedy=f"give an object with {', '.join(required)}")
    for key in required:
        if key not in content:
            raise InvalidInputError(path=f"{where}: {key}", value=None, remedy="it is missing; add it")
    for key in content:
        if key not in (*required, *optional):
            raise InvalidInputError(path=where, value=key, remedy=f"known: {', '.join((*required, *optional))}")
    return dict(content)


def _name(path: str, value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise InvalidInputError(
            path=path, value=value, remedy="give a name without spaces and `|` that does not begin with `-`"
        )
    return value


def _located(error: InvalidInputError, where: str) -> InvalidInputError:
    return InvalidInputError(path=f"{where}: {error.path}", value=error.value, remedy=error.remedy)
