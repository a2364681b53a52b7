"""Reads the Kubernetes manifests, and answers what a cluster would make of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.image import ROOT

FOLDER = ROOT / "service" / "kubernetes"
# What only a cluster with KServe, or with cert-manager, takes.
OPTIONAL = ("certificate.yaml", "webhook.yaml", "webhook-network-policy.yaml")
Object = dict[str, Any]
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def documents(path: Path) -> list[Object]:
    """The objects of one file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def kustomization() -> Object:
    """The list of files that are applied together."""
    (found,) = documents(FOLDER / "kustomization.yaml")
    return found


def base() -> list[Object]:
    """Every object that `kubectl apply -k` creates."""
    return [document for name in kustomization()["resources"] for document in documents(FOLDER / name)]


def everything() -> list[Object]:
    """With what is optional."""
    return base() + [document for name in OPTIONAL for document in documents(FOLDER / name)]


def of_kind(*kinds: str) -> list[Object]:
    """The objects of these kinds, optional ones too."""
    return [item for item in everything() if item["kind"] in kinds]


@dataclass(frozen=True, slots=True)
class Pods:
    """A workload and the Pods that it makes."""

    name: str
    labels: dict[str, str]
    spec: Object

    @property
    def container(self) -> Object:
        """Its only one."""
        (found,) = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def ports(self) -> dict[str, int]:
        """By name."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}


def workloads() -> list[Pods]:
    """Every workload, by what its Pods look like."""
    found = of_kind("Deployment", "StatefulSet", "Job")
    return [
        Pods(item["metadata"]["name"], item["spec"]["template"]["metadata"]["labels"], item["spec"]["template"]["spec"])
        for item in found
    ]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector, empty ones included, matches."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return wanted and all(labels.get(expression["key"]) in expression["values"] for expression in expressions)


def selected(selector: Object) -> list[Pods]:
    """The workloads whose Pods a selector matches."""
    return [pods for pods in workloads() if selects(selector, pods.labels)]


def references(item: Any) -> Iterator[tuple[str, str, str | None]]:
    """(Secret or ConfigMap, name, key) of all that an object refers to; the key is None for a whole volume."""
    if isinstance(item, dict):
        for field, value in item.items():
            if field in ("secretKeyRef", "configMapKeyRef"):
                yield ("Secret" if field == "secretKeyRef" else "ConfigMap", value["name"], value["key"])
            elif field == "secret" and isinstance(value, dict) and "secretName" in value:
                yield ("Secret", value["secretName"], None)
            elif field == "configMap" and isinstance(value, dict):
                yield ("ConfigMap", value["name"], None)
            else:
                yield from references(value)
    elif isinstance(item, list):
        for value in item:
            yield from references(value)


def environment(pods: Pods, *, secret: str) -> dict[str, str]:
    """As the kubelet makes it: of every Service in the namespace, then the container's own with $(NAME) replaced."""
    links: dict[str, str] = {}
    if pods.spec.get("enableServiceLinks", True):
        for number, item in enumerate(of_kind("Service"), start=10):
            name = item["metadata"]["name"].upper().replace("-", "_")
            address, port = f"192.0.2.{number}", item["spec"]["ports"][0]["port"]
            links |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(port)}
            links |= {f"{name}_PORT": f"tcp://{address}:{port}", f"{name}_PORT_{port}_TCP_ADDR": address}
    own: dict[str, str] = {}
    for variable in pods.container.get("env", []):
        known = {**links, **own}
        value = secret if "valueFrom" in variable else variable["value"]
        # What is not known stays as it is written.
        own[variable["name"]] = REFERENCE.sub(lambda found, known=known: known.get(found[1], found[0]), value)
    return {**links, **own}
