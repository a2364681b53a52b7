"""The Kubernetes manifests: valid, of one piece with each other, with the settings, the image and the documentation."""

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from sqlalchemy import make_url

from service.__main__ import _parser
from service.db.database import open_database
from service.domain.errors import InvalidInputError
from service.settings import Settings
from tests.db.postgresql import tools
from tests.deploy.cluster import (
    FOLDER,
    OPTIONAL,
    Pods,
    base,
    documents,
    environment,
    everything,
    kustomization,
    of_kind,
    references,
    selected,
    workloads,
)
from tests.deploy.image import DOCKERFILE, exec_form, stages

# The oldest and the newest that the library knows and Kubernetes supports.
KUBERNETES = ("1.33", "1.37")
README = (FOLDER / "README.md").read_text(encoding="utf-8")
OURS = [pods for pods in workloads() if pods.name != "postgresql"]
AUDIT_FLUSH_S = 5


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_and_has_no_field_that_kubernetes_would_drop(version: str) -> None:
    # cert-manager's kinds are not Kubernetes' own, and have no schema here.
    known = [item for item in everything() if not item["apiVersion"].startswith("cert-manager.io/")]
    assert len(known) >= 12
    for item in known:
        kubernetes_validate.validate(item, version, strict=True)


def test_every_file_is_either_applied_with_the_others_or_optional() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert {*kustomization()["resources"], *OPTIONAL} == files
    assert all(f"`{name}`" in README or f" {name}" in README for name in OPTIONAL)


def test_kubectl_makes_the_same_objects_of_them_with_the_image_that_is_named_once() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH")
    done = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=True)
    made = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(done.stdout)}
    assert set(made) == {(item["kind"], item["metadata"]["name"]) for item in base()}
    (image,) = kustomization()["images"]
    container = made["Deployment", "memorypolicy"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"{image['newName']}:{image['newTag']}"


def test_everything_lies_in_the_one_namespace() -> None:
    (namespace,) = of_kind("Namespace")
    names = {item["metadata"].get("namespace") for item in everything() if item["kind"] != "Namespace"}
    assert names == {namespace["metadata"]["name"], None}
    assert [item["kind"] for item in everything() if "namespace" not in item["metadata"]] == [
        "Namespace", "MutatingWebhookConfiguration",
    ]  # fmt: skip


def test_every_selector_finds_the_pods_that_it_is_for() -> None:
    for item in of_kind("Deployment", "StatefulSet", "PodDisruptionBudget"):
        assert [pods.name for pods in selected(item["spec"]["selector"])] == [item["metadata"]["name"]]
    for item in of_kind("Service"):
        (pods,) = selected({"matchLabels": item["spec"]["selector"]})
        assert pods.name == item["metadata"]["name"]
        assert all(port["targetPort"] in pods.ports for port in item["spec"]["ports"])
    for pods in workloads():
        for spread in pods.spec.get("topologySpreadConstraints", []):
            assert selected(spread["labelSelector"]) == [pods]
    for item in of_kind("NetworkPolicy"):
        assert selected(item["spec"]["podSelector"])


def test_a_stateful_set_names_a_service_with_an_address_of_its_own() -> None:
    """Kubernetes puts no headless Service into the environment of Pods."""
    (database,) = of_kind("StatefulSet")
    (service,) = [item for item in of_kind("Service") if item["metadata"]["name"] == database["spec"]["serviceName"]]
    assert service["spec"].get("clusterIP") != "None"


def test_no_secret_is_committed_and_the_documentation_says_how_to_make_each() -> None:
    assert of_kind("Secret") == []
    found = {reference for pods in workloads() for reference in references(pods.spec)}
    secrets = {(name, key) for kind, name, key in found if kind == "Secret"}
    assert secrets == {("memorypolicy-database", "password"), ("memorypolicy-tokens", None), ("memorypolicy-tls", None)}
    assert re.search(r"create secret generic memorypolicy-database\s[^#`]*--from-literal=password=", README)
    assert re.search(r"create secret generic memorypolicy-tokens\s[^#`]*--from-file=tokens\.toml", README)
    assert re.search(r"create secret tls memorypolicy-tls\s", README)


def test_every_config_map_that_is_referred_to_exists() -> None:
    existing = {item["metadata"]["name"] for item in of_kind("ConfigMap")}
    assert {name for pods in workloads() for kind, name, _ in references(pods.spec) if kind == "ConfigMap"} == existing


def test_files_that_settings_name_are_mounted_with_those_names() -> None:
    (server,) = [pods for pods in OURS if pods.name == "memorypolicy"]
    files = {"tokens.toml", "tls.crt", "tls.key", *of_kind("ConfigMap")[0]["data"]}
    mounts = {mount["mountPath"] for mount in server.container["volumeMounts"]}
    named = [Path(one["value"]) for one in server.container["env"] if one["name"].endswith("_FILE")]
    assert {path.name for path in named} == files
    assert {str(path.parent) for path in named} <= mounts


@pytest.mark.parametrize("pods", workloads(), ids=lambda pods: pods.name)
def test_every_mount_has_a_volume_and_every_volume_a_mount(pods: Pods) -> None:
    claims = {
        claim["metadata"]["name"]
        for item in of_kind("StatefulSet")
        if item["metadata"]["name"] == pods.name
        for claim in item["spec"]["volumeClaimTemplates"]
    }
    volumes = {volume["name"] for volume in pods.spec["volumes"]} | claims
    assert {mount["name"] for mount in pods.container["volumeMounts"]} == volumes


@pytest.mark.parametrize("pods", OURS, ids=lambda pods: pods.name)
def test_the_service_starts_with_the_environment_that_kubernetes_makes(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes adds a variable MEMORYPOLICY_PORT=tcp://… for the Service of that name."""
    given = {one["name"] for one in pods.container["env"] if one["name"].startswith("MEMORYPOLICY_")}
    assert given <= {f"MEMORYPOLICY_{name.upper()}" for name in Settings.model_fields}
    made = environment(pods, secret="0123456789abcdef")
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.database_url is not None
    url = make_url(settings.database_url)
    assert (url.username, url.password, url.database) == ("memorypolicy", "0123456789abcdef", "memorypolicy")
    assert (url.host, url.port) == (made["POSTGRESQL_SERVICE_HOST"], 5432)
    assert settings.port == 8443
    if pods.name == "memorypolicy":
        assert settings.host == "0.0.0.0"
        assert pods.ports == {"https": settings.port}


def test_a_pod_that_started_before_the_databases_service_says_what_is_wrong(tmp_path: Path) -> None:
    unresolved = "postgresql://memorypolicy:x@$(POSTGRESQL_SERVICE_HOST):$(POSTGRESQL_SERVICE_PORT)/memorypolicy"
    with pytest.raises(InvalidInputError, match="MEMORYPOLICY_DATABASE_URL"):
        open_database(unresolved, data_dir=tmp_path)


@pytest.mark.parametrize("pods", OURS, ids=lambda pods: pods.name)
def test_they_run_the_images_command_line_with_its_user_in_its_data_folder(pods: Pods) -> None:
    image = stages(DOCKERFILE.read_text())[-1]
    facts = {one.keyword: one.value for one in image.instructions}
    assert exec_form(facts["ENTRYPOINT"]) == ["python", "-m", "service"]
    assert "command" not in pods.container
    assert _parser().parse_args(pods.container["args"]).run is not None
    context = pods.spec["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == facts["USER"]
    (folder,) = exec_form(facts["VOLUME"])
    assert folder in {mount["mountPath"] for mount in pods.container["volumeMounts"]}


def test_images_have_one_exact_release() -> None:
    images = [pods.container["image"] for pods in workloads()]
    assert all(re.fullmatch(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?(-[a-z]+)?", image) for image in images), images
    (version,) = [one["newTag"] for one in kustomization()["images"]]
    assert {image for image in images if not image.startswith("postgres:")} == {f"memorypolicy:{version}"}
    label = next(one.value for one in stages(DOCKERFILE.read_text())[-1].instructions if one.keyword == "ARG")
    assert label == f"VERSION={version}"


def test_the_database_is_of_the_release_that_the_tests_run_on() -> None:
    release = subprocess.run(
        [tools() / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    (image,) = [pods.container["image"] for pods in workloads() if pods.name == "postgresql"]
    assert image.startswith(f"postgres:{release}-")


@pytest.mark.parametrize("pods", workloads(), ids=lambda pods: pods.name)
def test_every_pod_is_one_that_a_restricted_namespace_takes(pods: Pods) -> None:
    context = pods.spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pods.container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pods.spec["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= set(pods.container["resources"]["requests"])
    assert "memory" in pods.container["resources"]["limits"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pods.spec)
    assert not [volume for volume in pods.spec["volumes"] if "hostPath" in volume]


def test_a_pod_has_the_time_to_drain_to_finish_and_to_flush_before_it_is_killed() -> None:
    (server,) = [pods for pods in OURS if pods.name == "memorypolicy"]
    given = {one["name"]: one.get("value") for one in server.container["env"]}
    drain_s, grace_s = float(given["MEMORYPOLICY_DRAIN_S"]), float(given["MEMORYPOLICY_SHUTDOWN_GRACE_S"])
    assert server.spec["terminationGracePeriodSeconds"] >= drain_s + grace_s + AUDIT_FLUSH_S
    # Long enough for the readiness probe to see it.
    probe = server.container["readinessProbe"]
    assert drain_s >= probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_ports_that_are_there() -> None:
    for pods in OURS:
        probes = [value for name, value in pods.container.items() if name.endswith("Probe")]
        for probe in probes:
            assert probe["httpGet"]["port"] in pods.ports
            assert probe["httpGet"]["path"] in ("/healthz", "/readyz")
            assert probe["httpGet"]["scheme"] == "HTTPS"
        assert len(probes) == (3 if pods.name == "memorypolicy" else 0)


def test_the_spool_fits_into_its_volume() -> None:
    (server,) = [pods for pods in OURS if pods.name == "memorypolicy"]
    (most_mib,) = [int(one["value"]) for one in server.container["env"] if one["name"].endswith("_SPOOL_MAX_MIB")]
    (data,) = [volume for volume in server.spec["volumes"] if volume["name"] == "data"]
    assert int(data["emptyDir"]["sizeLimit"].removesuffix("Mi")) >= 2 * most_mib


def test_there_are_two_replicas_of_which_one_may_be_taken_away_at_a_time() -> None:
    (deployment,) = of_kind("Deployment")
    (budget,) = of_kind("PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_nothing_leaves_a_pod_but_to_the_databases_port() -> None:
    policies = of_kind("NetworkPolicy")
    (deny,) = [item["spec"] for item in policies if item["metadata"]["name"] == "deny-all"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    egress = [item for item in policies if "egress" in item["spec"]]
    assert [item["metadata"]["name"] for item in egress] == ["memorypolicy-to-database"]
    (rule,) = egress[0]["spec"]["egress"]
    (to,), (port,) = rule["to"], rule["ports"]
    (database,) = selected(to["podSelector"])
    assert (database.name, port) == ("postgresql", {"protocol": "TCP", "port": database.ports["postgresql"]})
    assert selected(egress[0]["spec"]["podSelector"]) == OURS


def test_whoever_may_send_to_the_database_is_let_in_there_and_nobody_else() -> None:
    (policy,) = [item["spec"] for item in of_kind("NetworkPolicy") if item["metadata"]["name"] == "postgresql"]
    (rule,) = policy["ingress"]
    assert selected(rule["from"][0]["podSelector"]) == OURS
    assert rule["ports"] == [{"protocol": "TCP", "port": "postgresql"}]
    for item in of_kind("NetworkPolicy"):
        for port in [port for rule in item["spec"].get("ingress", []) for port in rule["ports"]]:
            assert all(port["port"] in pods.ports for pods in selected(item["spec"]["podSelector"]))


def test_the_webhook_calls_a_port_of_the_service() -> None:
    (webhook,) = documents(FOLDER / "webhook.yaml")
    called = webhook["webhooks"][0]["clientConfig"]["service"]
    (service,) = [item for item in of_kind("Service") if item["metadata"]["name"] == called["name"]]
    assert called["port"] in {port["port"] for port in service["spec"]["ports"]}
    assert called["namespace"] == service["metadata"]["namespace"]
