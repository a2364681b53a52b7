"""A parsed request body -> the domain's query, or a RefusedError that names the JSON path."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.api.arrival_rate import settled
from service.api.model_catalogue import ModelCatalogue, built_in
from service.api.problem import MOST_DETAILS, Detail, RefusedError, json_path
from service.api.request_length import refuse_too_long
from service.api.request_part import RequestPart
from service.api.request_schemas import (
    PART_BY_LOCATION,
    AdapterByRank,
    AdapterPart,
    Form,
    ModelByConfig,
    ModelByName,
    ModelLike,
    ModelPart,
    RecommendRequest,
)
from service.api.secret import REMOVED, holds_secret, resembles_secret
from service.api.start_terms import NO_TERMS, StartTerms, start_terms
from service.api.workload_part import ONE, RANGE
from service.api.workload_words import ReadLoad, read_workload
from service.domain.adapter import Adapter, read_adapter, with_adapter
from service.domain.errors import InvalidInputError, UnknownNameError, UnsupportedModelError, shorten
from service.domain.gpu import Gpu, gpu_by_name, leaves_size_open
from service.domain.leakage import find_measured_fields
from service.domain.manifest import Confidence, Manifest
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch, Scenario
from service.domain.slo import Slo
from service.policies import Policies, Policy
from service.recommend import Query
from service.support import OutOfRange

# An SLO names measured quantities as goals; config.json and adapter_config.json are foreign text.
UNGUARDED: tuple[tuple[str, ...], ...] = (("slo",), ("adapter", "config"), ("model", "config"))
# Numbers of the model that no key of a config.json states.
_DERIVED = ("weight_gb", "kv_bytes_per_token", "max_model_len")
_PATH_PART = re.compile(r"[^.\[\]]+")
# No honest body comes near it; it bounds what a hostile one can make the leak guard do.
MOST_MEMBERS = 256
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,62}")
_SLO_PATHS = {name: f"slo.{name}" for name in Slo.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadQuery:
    """A query, the policy that answers it, what the reader filled in, by path, and the forms that are wanted.

    confidence: the one that is asked for, for which the policy need not be. load: as it was read. warnings: of the
    reader; those of the answer come on top. explain: whether reasons are wanted.
    """

    query: Query
    policy: Policy
    assumed: dict[str, str | float]
    load: ReadLoad
    confidence: Confidence = "typical"
    terms: StartTerms = NO_TERMS
    warnings: tuple[str, ...] = ()
    render: tuple[Form, ...] = ()
    explain: bool = False


def read_query(
    body: Mapping[str, Any],
    *,
    policies: Policies,
    default_gpu: str | None,
    models: ModelCatalogue | None = None,
) -> ReadQuery:
    """Guards, validates and builds; everything that can be wrong with a request is refused here.

    policies: those that may answer. models: those that may be named; None for the built-in ones.
    """
    try:
        request = RecommendRequest.model_validate(body)
    except ValidationError as error:
        # The schema is closed and names no measured quantity, so that only what it refuses can hold one.
        refuse_crowds(body, foreign=UNGUARDED)
        refuse_measured_fields(body, foreign=UNGUARDED)
        raise validation_refusal(error.errors(include_url=False, include_context=False)) from error
    try:
        return _build(request, policies=policies, default_gpu=default_gpu, models=models or built_in())
    except InvalidInputError as error:
        raise _refusal(error, path=f"$.{error.path}") from error


def _build(
    request: RecommendRequest, *, policies: Policies, default_gpu: str | None, models: ModelCatalogue
) -> ReadQuery:
    assumed: dict[str, str | float] = {}
    name = request.gpu
    if name is None:
        name = assumed["gpu"] = default_gpu or policies.primary.manifest.gpu
    gpu = _gpu(name, request.gpu_memory_gib)
    if request.gpu_memory_gib is None and leaves_size_open(name):
        assumed["gpu"] = gpu.name
    confidence = request.workload.confidence or "typical"
    policy = policies.choose(gpu.name, confidence)
    manifest = policy.manifest
    if request.gpu_memory_gib is None and (gpu.cache_only or manifest.gpu_memory_gib is not None):
        gpu = _of_trained_size(gpu, manifest)
        assumed["gpu_memory_gib"] = gpu.memory_gib
    if request.engine_version is None:
        version = assumed["engine_version"] = manifest.engine_version
    else:
        version = _three_part(request.engine_version)
    model = _model(request.model, models)
    if request.adapter is not None:
        model = _adapted(model, request.adapter)
    assumed.update(model.assumed)
    terms = start_terms(request)
    assumed.update(terms.assumed)
    limits = request.slo.model_dump(exclude_none=True) if request.slo else {}
    slo = replace(manifest.slo, **limits) if limits else manifest.slo
    for name, path in _SLO_PATHS.items():
        if name not in limits:
            assumed[path] = getattr(slo, name)
    load = read_workload(request.workload)
    started = terms.applied_to(model)
    # Of a range the longest; the middle then fits too.
    refuse_too_long(request.workload, load, started)
    if request.workload.confidence is None:
        assumed["workload.confidence"] = confidence
    query = Query(
        scenario=Scenario(model=started, workload=load.workload),
        gpu=gpu,
        engine_version=version,
        slo=slo,
        fixed=terms.fixed,
        chunked_prefill=terms.chunked_prefill,
        outside=terms.outside,
        load_range=load.load_range,
        longest=load.longest,
        gpu_shared=bool(request.gpu_shared),
    )
    warnings = terms.warnings_for(model)
    if load.rate_per_s is not None:
        load, beyond, further = settled(load, load.rate_per_s, query, policy)
        query = _with_load(query, load, beyond)
        warnings = (*warnings, *further)
    assumed.update(load.assumed)
    return ReadQuery(
        query=query,
        policy=policy,
        confidence=confidence,
        assumed=assumed,
        load=load,
        terms=terms,
        warnings=warnings,
        render=tuple(dict.fromkeys(request.render or ())),
        explain=request.explain is True,
    )


def _with_load(query: Query, load: ReadLoad, beyond: tuple[OutOfRange, ...]) -> Query:
    """With the clients that a rate came to, and what it was beyond."""
    return replace(
        query,
        scenario=replace(query.scenario, workload=load.workload),
        load_range=load.load_range,
        outside=(*query.outside, *beyond),
    )


def _gpu(name: str, memory_gib: float | None) -> Gpu:
    """The device of that name, with the memory that was given; one that is in no list needs it."""
    try:
        listed = gpu_by_name(name)
        return listed if memory_gib is None else replace(listed, memory_gib=memory_gib)
    except UnknownNameError as error:
        if memory_gib is None:
            error.remedy += "; for another give gpu_memory_gib too, what the engine can use of it"
            raise
        # It goes into answers and records, so it may not be any text.
        if not _DEVICE.fullmatch(name) or holds_secret(name):
            raise InvalidInputError(
                path="gpu", value=name, remedy="name the device in up to 63 letters, digits, spaces and any of . _ - /"
            ) from None
        return Gpu(name=name, memory_gib=memory_gib)


def _of_trained_size(gpu: Gpu, manifest: Manifest) -> Gpu:
    """With the memory that the bundle learnt from, if it is of this device; a CPU has none by its name."""
    if manifest.gpu == gpu.name and manifest.gpu_memory_gib is not None:
        return replace(gpu, memory_gib=manifest.gpu_memory_gib)
    if gpu.cache_only:
        raise InvalidInputError(
            path="gpu",
            value=gpu.name,
            remedy="give gpu_memory_gib too: the GiB of its KV cache (VLLM_CPU_KVCACHE_SPACE)",
        )
    return gpu


def _model(part: ModelPart, models: ModelCatalogue) -> ModelArch:
    if isinstance(part, ModelByName):
        return models.model(part.name)
    if isinstance(part, ModelLike):
        # It goes into answers, commands and records.
        if part.name is not None and holds_secret(part.name):
            raise InvalidInputError(path="model.name", value=REMOVED, remedy="it looks like a secret; leave it out")
        return models.like(part.same_architecture_as, name=part.name)
    if isinstance(part, ModelByConfig):
        return read_config(part.config, at=("model", "config"))
    return ModelArch(
        weight_gb=part.weight_gb,
        num_layers=part.num_layers,
        hidden_size=part.hidden_size,
        kv_bytes_per_token=part.kv_bytes_per_token,
    )


def _adapted(model: ModelArch, part: AdapterPart) -> ModelArch:
    if isinstance(part, AdapterByRank):
        targets = tuple(part.target_modules) if part.target_modules else None
        adapter = Adapter(rank=part.rank, max_loras=part.max_loras, targets=targets)
        return _without_secret(with_adapter(model, adapter), path="adapter.target_modules")
    try:
        adapter = read_adapter(part.config, max_loras=part.max_loras)
    except InvalidInputError as error:
        raise _refusal(error, path=json_path(("adapter", "config", *_parts(error.path)))) from error
    return _without_secret(with_adapter(model, adapter), path="adapter.config.target_modules")


def read_config(config: Mapping[str, Any], *, at: tuple[str, ...]) -> ModelArch:
    """The model of a config.json that stands at this place of a body; RefusedError names the path inside it."""
    try:
        return _without_secret(parse_config(config), path="quantization_config")
    except InvalidInputError as error:
        # The numbers derived from a config are no keys of it, so the config as a whole is what is wrong.
        inside = () if error.path in _DERIVED else _parts(error.path)
        raise _refusal(error, path=json_path((*at, *inside))) from error


def _without_secret(model: ModelArch, *, path: str) -> ModelArch:
    """The model, unless what is said about it would repeat a secret out of a foreign text."""
    if any(resembles_secret(text) for text in (model.quantisation or "", *model.warnings)):
        raise InvalidInputError(path=path, value=REMOVED, remedy="a name in it looks like a secret; leave it out")
    return model


def _parts(path: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in _PATH_PART.findall(path))


def _three_part(version: str) -> str:
    """0.28 and v0.28.0 are 0.28.0; so is 0.28.0+cu130, which says for which CUDA it was built."""
    bare = version.removeprefix("v").partition("+")[0]
    return f"{bare}.0" if bare.count(".") == 1 and bare.replace(".", "").isdigit() else bare


def refuse_crowds(body: Mapping[str, Any], *, foreign: Sequence[tuple[str, ...]]) -> None:
    """RefusedError for more members than any question has; what stands under a foreign path is not counted."""
    pending: list[tuple[tuple[str, ...], object]] = [((), body)]
    members = 0
    while pending:
        path, value = pending.pop()
        if path in foreign or not isinstance(value, dict | list):
            continue
        members += len(value)
        if members > MOST_MEMBERS:
            where = ".".join(foreign[-1])
            message = f"more than {MOST_MEMBERS} members outside {where}; no request needs so many"
            raise RefusedError("invalid_request", message, details=[Detail(path="$", message=message)])
        if isinstance(value, dict):
            pending.extend(((*path, key), member) for key, member in value.items())
        else:
            pending.extend(((*path, ""), member) for member in value)


def refuse_measured_fields(body: Mapping[str, Any], *, foreign: Sequence[tuple[str, ...]]) -> None:
    """Leak guard 1 over a body; RefusedError names every measured quantity outside the foreign paths."""
    found = list(islice(find_measured_fields(body, exempt=foreign), MOST_DETAILS))
    if not found:
        return
    details = [
        Detail(
            path=json_path([int(part) if part.isdecimal() else part for part in path]),
            message=f"{shorten(path[-1])} is the measured quantity {field}: it exists only after launch, and this "
            "question is asked before; leave it out",
        )
        for path, field in found
    ]
    raise RefusedError("measured_field", f"{details[0].path}: {details[0].message}", details=details)


def validation_refusal(
    errors: Iterable[ErrorDetails], *, parts: Mapping[tuple[str, ...], type[RequestPart]] = PART_BY_LOCATION
) -> RefusedError:
    """The first few errors of a schema, by JSON path. parts: what is known at a place, for fields that are not."""
    details = []
    for error in islice(errors, MOST_DETAILS):
        location = error["loc"]
        value = None if error["type"] == "missing" else error["input"]
        details.append(Detail(path=json_path(_without_tag(location)), message=_message(error, parts), value=value))
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return RefusedError("invalid_request", f"{details[0].path}: {details[0].message}{more}", details=details)


def _without_tag(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """pydantic puts the form's tag behind a part that has several; it is no part of what was sent."""
    if len(location) > 1 and location[0] in ("model", "adapter"):
        return (location[0], *location[2:])
    if len(location) > 2 and location[0] == "workload" and location[2] in (ONE, RANGE):
        return (*location[:2], *location[3:])
    return location


def _message(error: ErrorDetails, parts: Mapping[tuple[str, ...], type[RequestPart]]) -> str:
    kind, location = error["type"], error["loc"]
    if kind == "extra_forbidden":
        part = parts.get(tuple(str(key) for key in location[:-1]))
        return f"unknown field; known here: {', '.join(part.model_fields)}" if part else "unknown field"
    if kind == "missing":
        return "this field is required"
    return "give an object" if kind == "model_type" else error["msg"]


def _refusal(error: InvalidInputError, *, path: str) -> RefusedError:
    kind = "invalid_request"
    if isinstance(error, UnknownNameError):
        kind = "unknown_name"
    elif isinstance(error, UnsupportedModelError):
        kind = "unsupported_model"
    message = f"{shorten(error.value)} cannot be used; {error.remedy}"
    return RefusedError(kind, f"{path}: {message}", details=[Detail(path=path, message=message, value=error.value)])
