"""KServe's InferenceService as it is about to be created: what it asks, and the patch that answers it."""

import copy
import json
import re
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from pydantic import ValidationError

from service.api.caller import MODES, Mode
from service.api.hook_decision import Asked, HookDecision
from service.api.mapping import Mapping
from service.api.request_schemas import MOST_TEXT
from service.api.skip import SkipError
from service.api.workload_part import WorkloadPart
from service.engine_args import UnparsableArgsError, read_args

CONTAINER = "kserve-container"
FORMATS = ("huggingface", "vllm")
GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu.product"
# With values of their own in KServe's Hugging Face server, which hands the rest to vLLM.
KSERVE_OPTIONS = (
    "model-name",
    "model-id",
    "model-dir",
    "model-revision",
    "backend",
    "task",
    "http-port",
    "grpc-port",
    "max-length",
)
# Whoever applies an object from a repository applies it again until it is as declared there.
_GITOPS = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
}
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai:v(\d+\.\d+\.\d+)(?:$|[^\d.])")
_STARTS = (
    re.compile(r"python3?(\.\d+)? -m vllm\.entrypoints\.openai\.api_server"),
    re.compile(r"vllm( serve( [^-\s]\S*)?)?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the engine's arguments stand. path: JSON Pointer of what holds `args`; head: words before the first option.

    args: None where there are none.
    """

    path: str
    part: MappingType[str, Any]
    args: list[str] | None
    head: int
    is_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceService:
    """The object and where it is created. prefix: of our annotations."""

    content: MappingType[str, Any]
    namespace: str | None
    prefix: str

    @property
    def name(self) -> str | None:
        """None for one that gets its name later."""
        return _text(_object(self.content.get("metadata")).get("name"))

    def annotation(self, name: str) -> str | None:
        """The one of ours by that name."""
        metadata = _object(self.content.get("metadata"))
        return _text(_object(metadata.get("annotations")).get(f"{self.prefix}/{name}"))

    @property
    def mode(self) -> Mode:
        """What the object asks for; anything that is not understood patches nothing."""
        mode = self.annotation("mode") or "apply"
        return cast(Mode, mode) if mode in MODES else "shadow"


def asked_of_service(service: InferenceService, mapping: Mapping) -> Asked:
    """SkipError where it is not ours to change or something about it is unknown."""
    _refuse_managed(service)
    target = target_of(service)
    part, predictor = target.part, _object(_object(service.content["spec"]).get("predictor"))
    _refuse_other_than_one_gpu(part, predictor)
    words = (target.args or [])[target.head :]
    further = KSERVE_OPTIONS if target.is_model and _format(part) == "huggingface" else ()
    model = service.annotation("model") or _model(target, words, further)
    device = mapping.device(cluster=None, namespace=service.namespace)
    selector = _object(predictor.get("nodeSelector"))
    return Asked(
        mode=service.mode,
        project=service.namespace,
        endpoint=service.name,
        words=words,
        further=further,
        model=model,
        gpu=service.annotation("gpu") or _text(selector.get(GPU_LABEL)) or (device.gpu if device else None),
        gpu_memory_gib=device.gpu_memory_gib if device else None,
        engine_version=service.annotation("engine-version")
        or _image_version(part)
        or (device.engine_version if device else None),
        workload=_workload(service)
        or mapping.workload(project=service.namespace, model=model, replicas=_replicas(predictor)),
    )


def target_of(service: InferenceService) -> Target:
    """The model form or the container form; SkipError for every other one."""
    content = service.content
    if content.get("apiVersion") != "serving.kserve.io/v1beta1":
        raise SkipError("unsupported_spec", "not serving.kserve.io/v1beta1")
    predictor = _object(_object(content.get("spec")).get("predictor"))
    if predictor.get("workerSpec") is not None:
        raise SkipError("not_one_gpu", "the predictor has workers")
    model = predictor.get("model")
    if isinstance(model, dict):
        if _format(model) not in FORMATS:
            raise SkipError("unsupported_engine", f"modelFormat is none of {', '.join(FORMATS)}")
        return _target("/spec/predictor/model", model, is_model=True)
    containers = predictor.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, dict) and container.get("name") == CONTAINER:
            return _target(f"/spec/predictor/containers/{index}", container, is_model=False)
    raise SkipError("unsupported_spec", f"neither predictor.model nor a container {CONTAINER}")


def json_patch(service: InferenceService, decision: HookDecision, ids: MappingType[str, str]) -> list[dict[str, Any]]:
    """RFC 6902: guarded by a test of what the decision was made for. ids: annotations to write, by their names."""
    target = target_of(service)
    path = f"{target.path}/args"
    if target.args is None:
        operations: list[dict[str, Any]] = [{"op": "add", "path": path, "value": decision.cli_args}]
        if not target.is_model:
            operations.insert(0, {"op": "test", "path": f"{target.path}/name", "value": CONTAINER})
    else:
        args = [*target.args[: target.head], *decision.cli_args, *target.args[target.head :]]
        operations = [
            {"op": "test", "path": path, "value": target.args},
            {"op": "replace", "path": path, "value": args},
        ]
    if not isinstance(_object(service.content.get("metadata")).get("annotations"), dict):
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    prefix = f"{service.prefix}/".replace("~", "~0").replace("/", "~1")
    operations += [
        {"op": "add", "path": f"/metadata/annotations/{prefix}{name}", "value": value} for name, value in ids.items()
    ]
    return operations


def _refuse_managed(service: InferenceService) -> None:
    metadata = _object(service.content.get("metadata"))
    keys = {*_object(metadata.get("annotations")), *_object(metadata.get("labels"))}
    for key, manager in _GITOPS.items():
        if key in keys:
            raise SkipError(
                "managed_by_gitops", f"{manager} would undo a patch; render the arguments where the object is declared"
            )


def _refuse_other_than_one_gpu(part: MappingType[str, Any], predictor: MappingType[str, Any]) -> None:
    limits = _object(_object(part.get("resources")).get("limits"))
    if str(limits.get(GPU_RESOURCE)) != "1":
        raise SkipError("not_one_gpu", f"limits name another number of {GPU_RESOURCE} than 1")


def _target(path: str, part: MappingType[str, Any], *, is_model: bool) -> Target:
    command, args = part.get("command"), part.get("args")
    for words in (command, args):
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise SkipError("unparsable_args", "command or args is no list of words")
    if sum(len(word) for word in args or ()) > MOST_TEXT:
        raise SkipError("unparsable_args", f"args are longer than {MOST_TEXT:,} characters")
    if command:
        start = " ".join([PurePosixPath(command[0]).name, *command[1:]])
        if not any(known.fullmatch(start) for known in _STARTS):
            raise SkipError("unparsable_args", "command is not one that starts vLLM and nothing else")
    return Target(
        path=path, part=part, args=args, head=0 if is_model else _head(command, args or []), is_model=is_model
    )


def _head(command: Sequence[str] | None, args: Sequence[str]) -> int:
    """How many words stand before the first option: `serve` and the model, as far as the command lacks them."""
    count = next((position for position, word in enumerate(args) if word.startswith("-")), len(args))
    whole = [*(["vllm"] if not command else [PurePosixPath(command[0]).name, *command[1:]]), *args[:count]]
    alone = not command and count <= 1
    if count and not alone and not any(known.fullmatch(" ".join(whole)) for known in _STARTS):
        raise SkipError("unparsable_args", "words before the first option that are no model")
    return count


def _model(target: Target, words: Sequence[str], further: tuple[str, ...]) -> str | None:
    """Where the weights come from, if that is a name."""
    try:
        given = read_args(words, further=further)
    except UnparsableArgsError:
        # Reported by whoever reads them for good.
        given = {}
    if str(given.get("backend", "auto")).lower() not in ("auto", "vllm"):
        raise SkipError("unsupported_engine", "the backend is not vllm")
    uri = _text(target.part.get("storageUri")) or ""
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://").partition(":")[0]
    named = given.get("model_id") or given.get("model")
    if named is None and target.head:
        named = (target.args or [])[target.head - 1]
    return _text(named)


def _workload(service: InferenceService) -> dict[str, Any] | None:
    text = service.annotation("workload")
    if text is None:
        return None
    try:
        return WorkloadPart.model_validate(json.loads(text)).announced()
    except (ValidationError, ValueError, RecursionError):
        fields = ", ".join(WorkloadPart.model_fields)
        raise SkipError("no_workload", f"the annotation {service.prefix}/workload is no JSON of {fields}") from None


def _replicas(predictor: MappingType[str, Any]) -> int:
    for name in ("maxReplicas", "minReplicas"):
        value = predictor.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    return 1


def _image_version(part: MappingType[str, Any]) -> str | None:
    found = _VLLM_IMAGE.search(_text(part.get("image")) or "")
    return found[1] if found else None


def _format(model: MappingType[str, Any]) -> str:
    return (_text(_object(model.get("modelFormat")).get("name")) or "").lower()


def _object(value: object) -> MappingType[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def applied_to(content: MappingType[str, Any], operations: Sequence[MappingType[str, Any]]) -> dict[str, Any]:
    """The object after a patch of json_patch: its operations set members of objects and test what is there."""
    patched: dict[str, Any] = copy.deepcopy(dict(content))
    for operation in operations:
        if operation["op"] == "test":
            continue
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in str(operation["path"]).split("/")[1:]]
        holder: Any = patched
        for part in parents:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        holder[last] = operation["value"]
    return patched
