"""The admission webhook: always allowed, patches that a JSON Patch library applies, objects that stay valid."""

import base64
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from service.app import create_app
from service.settings import Settings
from tests.service.conftest import Client
from tests.service.test_hook import rows

KUBERNETES = Path(__file__).parents[2] / "service" / "kubernetes"
SERVICE: dict[str, Any] = json.loads((KUBERNETES / "inference-service.json").read_text())
# What KServe's definition says of the parts that are read or written here.
SHAPE = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "metadata": {"properties": {"annotations": {"additionalProperties": {"type": "string"}}}},
        "spec": {
            "required": ["predictor"],
            "properties": {
                "predictor": {
                    "properties": {
                        "model": {
                            "required": ["modelFormat"],
                            "properties": {"args": {"type": "array", "items": {"type": "string"}}},
                        }
                    }
                }
            },
        },
    },
}


def service(**model: Any) -> dict[str, Any]:
    """The example with other members of its model; None removes one."""
    content = deepcopy(SERVICE)
    content["spec"]["predictor"]["model"] |= model
    for name in [name for name, value in model.items() if value is None]:
        del content["spec"]["predictor"]["model"][name]
    return content


def container(**members: Any) -> dict[str, Any]:
    """The example as a container of its own beside a sidecar."""
    content = deepcopy(SERVICE)
    own = {
        "name": "kserve-container",
        "image": "registry/vllm/vllm-openai:v0.28.0",
        "args": ["--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        **members,
    }
    content["spec"]["predictor"] = {"containers": [{"name": "sidecar", "image": "x"}, own]}
    return content


def annotated(content: dict[str, Any], **values: str | None) -> dict[str, Any]:
    """With annotations of ours set, or removed by None."""
    annotations = content["metadata"]["annotations"]
    for name, value in values.items():
        annotations[f"memorypolicy.io/{name.replace('_', '-')}"] = value
        if value is None:
            del annotations[f"memorypolicy.io/{name.replace('_', '-')}"]
    return content


def review(client: Client, content: object, **request: Any) -> dict[str, Any]:
    """The response's inner part."""
    asked = {"uid": "u-1", "operation": "CREATE", "namespace": "my-models", "object": content, **request}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    answer = client.request("POST", "/webhooks/v1/mutate-inferenceservice", json=body)
    assert answer.status_code == 200
    assert (answer.json()["apiVersion"], answer.json()["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = answer.json()["response"]
    assert (response["uid"], response["allowed"]) == (asked["uid"], True)
    return response


def patched(content: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The object after the patch, by a library that is not ours."""
    assert response["patchType"] == "JSONPatch"
    result: dict[str, Any] = jsonpatch.apply_patch(content, json.loads(base64.b64decode(response["patch"])))
    return result


def valid(content: dict[str, Any]) -> dict[str, Any]:
    """The object, once KServe's shape and, for containers, Kubernetes' own Pod schema have been asked."""
    Draft202012Validator(SHAPE).validate(content)
    containers = content["spec"]["predictor"].get("containers")
    if containers:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
        kubernetes_validate.validate(pod, "1.31", strict=True)
    return content


def test_a_model_gets_its_arguments_before_its_own(client: Client) -> None:
    response = review(client, SERVICE)
    after = valid(patched(SERVICE, response))
    args = after["spec"]["predictor"]["model"]["args"]
    assert (len(args), args[-1]) == (5, "--max-model-len=8192")
    annotations = after["metadata"]["annotations"]
    assert annotations["memorypolicy.io/status"] == "applied"
    assert len(annotations["memorypolicy.io/recommendation-id"]) == 36
    assert "warnings" not in response


def test_a_container_keeps_its_place_and_its_words(client: Client) -> None:
    content = container()
    after = valid(patched(content, review(client, content)))
    assert after["spec"]["predictor"]["containers"][0] == {"name": "sidecar", "image": "x"}
    args = after["spec"]["predictor"]["containers"][1]["args"]
    assert args[4:] == ["--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"]


@pytest.mark.parametrize(
    ("command", "args", "kept"),
    [
        (None, ["serve", "Qwen/Qwen3-8B", "--seed", "1"], 2),
        (None, ["Qwen/Qwen3-8B", "--seed", "1"], 1),
        (["vllm", "serve"], ["Qwen/Qwen3-8B"], 1),
        (["/usr/local/bin/vllm"], ["serve", "Qwen/Qwen3-8B"], 2),
        (["vllm", "serve", "Qwen/Qwen3-8B"], ["--seed", "1"], 0),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model=Qwen/Qwen3-8B"], 0),
    ],
)
def test_words_before_the_first_option_stay_first(
    client: Client, command: list[str] | None, args: list[str], kept: int
) -> None:
    content = annotated(container(args=args), model="Qwen/Qwen3-8B")
    if command:
        content["spec"]["predictor"]["containers"][1]["command"] = command
    after = patched(content, review(client, content))["spec"]["predictor"]["containers"][1]["args"]
    assert after[:kept] == args[:kept]
    assert after[kept].startswith("--max-num-seqs=")
    assert after[kept + 4 :] == args[kept:]


@pytest.mark.parametrize("content", [service(args=None), container(args=None)])
def test_absent_arguments_are_added(client: Client, content: dict[str, Any]) -> None:
    content = annotated(content, model="Qwen/Qwen3-8B")
    for item in content["spec"]["predictor"].get("containers", ()):
        if item.get("args", 1) is None:
            del item["args"]
    assert "args" not in json.dumps(content)
    after = json.dumps(valid(patched(content, review(client, content))))
    assert after.count("--max-num-seqs=") == 1


def test_without_annotations_the_mapping_answers_and_the_patch_makes_them(bundle_dir: Path, tmp_path: Path) -> None:
    mapping = yaml.safe_load((KUBERNETES / "mapping.yaml").read_text())["data"]["mapping.toml"]
    (tmp_path / "mapping.toml").write_text(mapping)
    own = Client(
        create_app(
            Settings(
                bundle_dir=bundle_dir,
                data_dir=tmp_path,
                hook_deadline_ms=60_000,
                hook_mapping_file=tmp_path / "mapping.toml",
            )
        )
    )
    content = deepcopy(SERVICE)
    del content["metadata"]["annotations"]
    after = valid(patched(content, review(own, content)))
    assert after["metadata"]["annotations"]["memorypolicy.io/status"] == "applied"


def test_the_patch_fails_where_the_arguments_changed_meanwhile(client: Client) -> None:
    response = review(client, SERVICE)
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        patched(service(args=["--max-num-seqs=3"]), response)


def test_a_patched_object_is_not_patched_again(client: Client) -> None:
    once = patched(SERVICE, review(client, SERVICE))
    response = review(client, once)
    assert "patch" not in response
    assert "all_pinned" in response["warnings"][0]


@pytest.mark.parametrize(
    ("mark", "where"),
    [
        ("argocd.argoproj.io/tracking-id", "annotations"),
        ("argocd.argoproj.io/instance", "labels"),
        ("kustomize.toolkit.fluxcd.io/name", "labels"),
        ("helm.toolkit.fluxcd.io/name", "labels"),
    ],
)
def test_what_a_repository_declares_is_warned_about_and_left(client: Client, mark: str, where: str) -> None:
    content = deepcopy(SERVICE)
    content["metadata"][where][mark] = "x"
    response = review(client, content)
    assert "patch" not in response
    assert "managed_by_gitops" in response["warnings"][0]


@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("unsupported_spec", {**SERVICE, "apiVersion": "serving.kubeflow.org/v1alpha2"}),
        ("unsupported_spec", {**SERVICE, "spec": {"predictor": {"tensorflow": {"storageUri": "gs://x"}}}}),
        ("unsupported_spec", {**SERVICE, "spec": {"predictor": {"containers": [{"name": "other"}]}}}),
        ("unsupported_spec", {**SERVICE, "spec": None}),
        ("unsupported_engine", service(modelFormat={"name": "sklearn"})),
        ("unsupported_engine", service(args=["--backend=huggingface"])),
        ("not_one_gpu", service(resources={"limits": {"nvidia.com/gpu": "4"}})),
        ("not_one_gpu", service(resources=None)),
        ("unparsable_args", service(args="--x")),
        ("unparsable_args", service(args=["--max-num-seqs=$(SEQS)"])),
        ("unparsable_args", container(command=["/bin/sh", "-c"], args=["vllm serve"])),
        ("unparsable_args", container(command=["vllm", "serve", "m", "--seed", "1"])),
        ("unparsable_args", container(args=["something", "else", "entirely"])),
        ("user_config_file", service(args=["--config", "/etc/x.yaml"])),
        ("no_workload", annotated(deepcopy(SERVICE), workload=None)),
        ("no_workload", annotated(deepcopy(SERVICE), workload="{")),
        ("no_workload", annotated(deepcopy(SERVICE), workload="[" * 100_000)),
        ("no_workload", annotated(deepcopy(SERVICE), workload='{"prompt_tokens": 1, "ttft_p95": 3}')),
        ("unknown_gpu", annotated(deepcopy(SERVICE), gpu=None)),
        ("unknown_model", service(storageUri="pvc://disk/model")),
    ],
)  # fmt: skip
def test_any_problem_is_allowed_with_one_warning(client: Client, reason: str, content: dict[str, Any]) -> None:
    response = review(client, content)
    assert response.keys() == {"uid", "allowed", "warnings"}
    (warning,) = response["warnings"]
    assert warning.startswith(f"memorypolicy: nothing was set: {reason}: ")
    assert len(warning) <= 256
    assert "\n" not in warning


def test_front_end_options_of_kserve_are_no_obstacle(client: Client) -> None:
    content = service(args=["--model_name=qwen", "--backend", "vllm", "--max_model_len", "8192"])
    assert "patch" in review(client, content)


def test_shadow_patches_nothing(client: Client) -> None:
    response = review(client, annotated(deepcopy(SERVICE), mode="shadow"))
    assert "patch" not in response
    assert "--max-num-seqs=" in response["warnings"][0]


@pytest.mark.parametrize(
    ("operation", "content"), [("UPDATE", SERVICE), ("DELETE", SERVICE), ("CREATE", {**SERVICE, "kind": "Pod"})]
)
def test_what_is_not_asked_about_passes_in_silence(client: Client, operation: str, content: dict[str, Any]) -> None:
    assert review(client, content, operation=operation).keys() == {"uid", "allowed"}


@pytest.mark.parametrize("body", [{}, {"kind": "AdmissionReview"}, {"request": 3}, {"request": {"uid": 4}}])
def test_what_is_no_review_is_allowed_with_a_warning(client: Client, body: object) -> None:
    answer = client.request("POST", "/webhooks/v1/mutate-inferenceservice", json=body).json()["response"]
    assert (answer["allowed"], answer["uid"], len(answer["warnings"])) == (True, "", 1)


def test_a_decision_is_on_record_but_not_that_of_a_dry_run(bundle_dir: Path, tmp_path: Path) -> None:
    own = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000)))
    assert "patch" in review(own, SERVICE, dryRun=True)
    assert rows(own, "hook_decisions") == []
    assert "patch" in review(own, SERVICE)
    (row,) = rows(own, "hook_decisions")
    assert (row["caller"], row["project"], row["endpoint"]) == ("kubernetes", "my-models", "qwen3-8b")


def test_the_prefix_of_annotations_can_be_another(bundle_dir: Path, tmp_path: Path) -> None:
    own = Client(
        create_app(
            Settings(
                bundle_dir=bundle_dir,
                data_dir=tmp_path,
                hook_deadline_ms=60_000,
                annotation_prefix="tuning.example.com",
            )
        )
    )
    content = json.loads(json.dumps(SERVICE).replace("memorypolicy.io", "tuning.example.com"))
    after = patched(content, review(own, content))
    assert after["metadata"]["annotations"]["tuning.example.com/status"] == "applied"


def test_the_webhook_can_never_stop_or_repeat_a_creation() -> None:
    (hook,) = yaml.safe_load((KUBERNETES / "webhook.yaml").read_text())["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["sideEffects"]) == ("Ignore", 2, "None")
    assert (hook["reinvocationPolicy"], hook["rules"][0]["operations"]) == ("Never", ["CREATE"])
    assert hook["objectSelector"]["matchLabels"] == {"memorypolicy.io/recommend": "true"}
