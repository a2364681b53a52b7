import json
import os
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from bench_runner.__main__ import _parser
from bench_runner.kueue import KUEUE_API, manifests, to_yaml
from bench_runner.kueue_sweep import SweepOnKueue
from bench_runner.plan import Plan, reference_plan
from bench_runner.plan_request import PlanRequest
from service.domain.errors import InvalidInputError

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "bench_runner" / "KUEUE.md"
KUEUE_SCHEMAS = json.loads((Path(__file__).parent / "kueue_v1beta2.json").read_text())
# The oldest Kubernetes in which backoffLimitPerIndex is stable, and the newest whose schemas there are.
KUBERNETES = ("1.33", "1.37")
# A folder with Kueue's own CustomResourceDefinitions as YAML files, of the version that is to be used.
CRDS_VARIABLE = "MEMORYPOLICY_TEST_KUEUE_CRDS"
REQUIRED = {
    "image": "registry.example/bench:1",
    "namespace": "bench",
    "queue": "sweeps",
    "results_claim": "results",
}


def sweep(**changes: Any) -> SweepOnKueue:
    return SweepOnKueue(**{"plan": reference_plan(), "shards": 6, "gpus": 3, **REQUIRED, **changes})


EVERY_OPTION = sweep(
    results_size="1Ti", storage_class="fast", cache_claim="weights", hf_token_secret="hf", priority_class="low"
)
SWEEPS = {
    "three GPUs": sweep(),
    "one GPU": sweep(shards=1, gpus=1),
    "every option": EVERY_OPTION,
    "unlisted GPU": sweep(plan=replace(reference_plan(), gpu="NVIDIA GeForce RTX 3090", memory_gib=23.0)),
}


def objects_of(rendered: SweepOnKueue) -> list[dict[str, Any]]:
    """What a cluster would read from the files."""
    return [item for objects in manifests(rendered).values() for item in yaml.safe_load_all(to_yaml(objects))]


def find(rendered: SweepOnKueue, kind: str) -> dict[str, Any]:
    (found,) = (item for item in objects_of(rendered) if item["kind"] == kind)
    return found


def validate(item: dict[str, Any]) -> None:
    """Against the schemas of Kubernetes, or of Kueue."""
    if item["apiVersion"] == KUEUE_API:
        schema = {**KUEUE_SCHEMAS, "$ref": f"#/$defs/{item['kind']}"}
        Draft202012Validator(schema).validate(item)
    else:
        for version in KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("rendered", SWEEPS.values(), ids=SWEEPS)
def test_every_object_is_valid(rendered: SweepOnKueue) -> None:
    objects = objects_of(rendered)
    assert [item["kind"] for item in objects] == [
        "Namespace", "ResourceFlavor", "ClusterQueue", "LocalQueue", "PersistentVolumeClaim", "ConfigMap", "Job", "Pod",
    ]  # fmt: skip
    for item in objects:
        validate(item)


def test_kueues_own_definitions_take_the_objects_where_they_are_given() -> None:
    if CRDS_VARIABLE not in os.environ:
        pytest.skip(f"{CRDS_VARIABLE} names no folder with Kueue's CustomResourceDefinitions")
    schemas = {}
    for file in Path(os.environ[CRDS_VARIABLE]).glob("*.yaml"):
        for definition in filter(None, yaml.safe_load_all(file.read_text())):
            for version in definition["spec"]["versions"]:
                if f"{definition['spec']['group']}/{version['name']}" == KUEUE_API:
                    schemas[definition["spec"]["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    for rendered in SWEEPS.values():
        for item in objects_of(rendered):
            if item["apiVersion"] == KUEUE_API:
                Draft202012Validator(schemas[item["kind"]]).validate(item)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Job", ("spec", "backoffLimitPerindex"), 3),
        ("Job", ("spec", "parallelism"), "two"),
        ("ClusterQueue", ("spec", "cohort"), "all"),
        ("ResourceFlavor", ("spec", "nodeLabels"), ["a"]),
        ("LocalQueue", ("spec", "clusterQueue"), "Not_A_Name"),
        ("Pod", ("spec", "restartPolicies"), "Never"),
    ],
)
def test_the_schemas_refuse_what_is_wrong(kind: str, path: tuple[str, str], value: object) -> None:
    broken = deepcopy(find(sweep(), kind))
    broken[path[0]][path[1]] = value
    with pytest.raises(Exception, match=r"unexpected|not of type|does not match|is not valid"):
        validate(broken)


def test_equal_sweeps_give_equal_text_that_reads_back_as_it_was() -> None:
    for objects in manifests(EVERY_OPTION).values():
        text = to_yaml(objects)
        assert text == to_yaml(deepcopy(objects))
        assert list(yaml.safe_load_all(text)) == objects
        assert "&id" not in text


def test_kueue_starts_the_job_and_an_index_is_a_shard() -> None:
    job = find(sweep(), "Job")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "sweeps"
    assert job["spec"]["suspend"] is True
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 6, 3)
    (container,) = spec["template"]["spec"]["containers"]
    digest = reference_plan().sha256[:10]
    assert " ".join(container["command"]) == (
        f"python3 -m bench_runner sweep --plan /plan/plan.json --results /results/{digest} "
        "--shard-index $(JOB_COMPLETION_INDEX) --shard-count 6"
    )
    # What a container would run, at index 5.
    python, _, program, *arguments = [word.replace("$(JOB_COMPLETION_INDEX)", "5") for word in container["command"]]
    assert (python, program) == ("python3", "bench_runner")
    parsed = _parser().parse_args(arguments)
    assert (parsed.shard_index, parsed.shard_count) == (5, 6)
    assert "kueue.x-k8s.io/queue-name" not in spec["template"]["metadata"]["labels"]


def test_being_stopped_is_no_failure_and_bad_usage_is_not_tried_again() -> None:
    spec = find(sweep(), "Job")["spec"]
    actions = {
        code: rule["action"]
        for rule in spec["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", ["disruption"])
    }
    assert actions == {"disruption": "Ignore", 75: "Ignore", 143: "Ignore", 2: "FailIndex"}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    # Stopping takes up to 20 s.
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    # Never two writers of one shard.
    assert spec["podReplacementPolicy"] == "Failed"


def test_the_queue_covers_and_grants_what_all_pods_ask_for_together() -> None:
    rendered = sweep(cpus=10, memory_gib=50)
    (container,) = find(rendered, "Job")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "10", "memory": "50Gi", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    (group,) = find(rendered, "ClusterQueue")["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu"]
    (flavor,) = group["flavors"]
    # Three pods at a time; the resources in the order of coveredResources, as Kueue asks for.
    assert [(item["name"], item["nominalQuota"]) for item in flavor["resources"]] == [
        ("cpu", 30), ("memory", "150Gi"), ("nvidia.com/gpu", 3),
    ]  # fmt: skip
    assert flavor["name"] == find(rendered, "ResourceFlavor")["metadata"]["name"]
    assert find(rendered, "LocalQueue")["spec"]["clusterQueue"] == find(rendered, "ClusterQueue")["metadata"]["name"]


def test_pods_run_on_the_plans_gpu_alone() -> None:
    for rendered, label in ((sweep(), "NVIDIA-B200"), (SWEEPS["unlisted GPU"], "NVIDIA-GeForce-RTX-3090")):
        wanted = {"nvidia.com/gpu.product": label}
        assert find(rendered, "Job")["spec"]["template"]["spec"]["nodeSelector"] == wanted
        assert find(rendered, "ResourceFlavor")["spec"]["nodeLabels"] == wanted


@pytest.mark.parametrize("rendered", SWEEPS.values(), ids=SWEEPS)
def test_pods_mount_what_they_name_and_have_no_rights(rendered: SweepOnKueue) -> None:
    for spec in (find(rendered, "Job")["spec"]["template"]["spec"], find(rendered, "Pod")["spec"]):
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        (results,) = (volume for volume in spec["volumes"] if volume["name"] == "results")
        assert results["persistentVolumeClaim"]["claimName"] == "results"


def test_the_plan_travels_with_the_job() -> None:
    config_map = find(sweep(), "ConfigMap")
    assert Plan.from_json(json.loads(config_map["data"]["plan.json"])) == reference_plan()
    for kind in ("Job", "Pod"):
        item = find(sweep(), kind)
        spec = item["spec"]["template"]["spec"] if kind == "Job" else item["spec"]
        assert {"name": "plan", "configMap": {"name": config_map["metadata"]["name"]}} in spec["volumes"]
    names = {
        find(sweep(plan=plan), "Job")["metadata"]["name"]
        for plan in (reference_plan(), replace(reference_plan(), seed=1))
    }
    assert len(names) == 2


def test_several_pods_share_the_claim_and_may_begin_with_fewer_gpus() -> None:
    annotation = "kueue.x-k8s.io/job-min-parallelism"
    many, one = sweep(), SWEEPS["one GPU"]
    assert find(many, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert find(many, "Job")["metadata"]["annotations"] == {annotation: "1"}
    assert find(one, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]
    # Kueue asks for less than parallelism, and there is nothing below one.
    assert "annotations" not in find(one, "Job")["metadata"]


def test_options_go_where_they_belong() -> None:
    (container,) = find(sweep(sweep_args=("--server-args", "--seed $1")), "Job")["spec"]["template"]["spec"][
        "containers"
    ]
    # The kubelet reads $$ as a dollar sign.
    assert container["command"][-3:] == ["6", "--server-args", "--seed $$1"]
    spec = find(EVERY_OPTION, "Job")["spec"]["template"]["spec"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    assert token in spec["containers"][0]["env"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "weights"}} in spec["volumes"]
    assert find(EVERY_OPTION, "Job")["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "low"
    claim = find(EVERY_OPTION, "PersistentVolumeClaim")["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "1Ti")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shards": 0}, "shards: 0 .* 60 servers"),
        # 4 models · 15 configurations
        ({"shards": 61}, "shards: 61 .* from 1 to 60"),
        ({"gpus": 0}, "gpus: 0"),
        ({"gpus": 7}, "gpus: 7 .* from 1 to 6"),
        ({"cpus": 0}, "cpus: 0"),
        ({"namespace": "Bench"}, "namespace: 'Bench'"),
        ({"queue": "a_b"}, "queue: 'a_b'"),
        ({"results_claim": ""}, "results_claim: ''"),
        ({"hf_token_secret": "hf token"}, "hf_token_secret"),
        ({"image": "a b"}, "image: 'a b'"),
        ({"results_size": "20"}, "results_size: '20' .* 20Gi"),
        ({"plan": replace(reference_plan(), gpu="CPU")}, "gpu: 'CPU'"),
        ({"plan": replace(reference_plan(), gpu="a/b")}, "nvidia.com/gpu.product"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        sweep(**changes)


def test_a_model_folder_of_this_machine_is_refused_and_a_hub_id_with_its_config_is_not(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = reference_plan()
    local = PlanRequest(base=base, models=[str(tmp_path)], workloads=["chat"]).plan()
    with pytest.raises(InvalidInputError, match="HUB_ID="):
        sweep(plan=local)
    by_id = PlanRequest(base=base, models=[f"acme/own={tmp_path / 'config.json'}"], workloads=["chat"]).plan()
    assert sweep(plan=by_id).plan.models[0].name == "acme/own"


def guide_commands() -> list[str]:
    """The shell commands of KUEUE.md, continued lines joined, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return [
        " ".join(shlex.split(line, comments=True))
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
    ]


def test_the_guide_calls_the_program_as_it_is_and_names_what_is_rendered(tmp_path: Path) -> None:
    calls = [
        line.partition("-m bench_runner ")[2].split(" > ")[0] for line in guide_commands() if "-m bench_runner" in line
    ]
    assert [call.split()[0] for call in calls] == ["kueue", "status", "merge", "report"]
    for call in calls:
        _parser().parse_args(shlex.split(call))
    written = shlex.split(calls[0].replace("--output kueue", f"--output {tmp_path}"))
    done = subprocess.run([sys.executable, "-m", "bench_runner", *written], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0
    items = [item for file in tmp_path.iterdir() for item in yaml.safe_load_all(file.read_text())]
    (job,) = (item for item in items if item["kind"] == "Job")
    identifier = job["metadata"]["name"].removeprefix("sweep-")
    # As the guide's sed finds it.
    assert re.findall(r"^  name: sweep-(.*)", (tmp_path / "3-sweep.yaml").read_text(), re.MULTILINE) == [identifier]
    guide = GUIDE.read_text()
    for file in tmp_path.iterdir():
        assert f"kueue/{file.name}" in guide
    named = {(item["kind"], item["metadata"]["name"]) for item in items}
    assert {("ClusterQueue", "bench-sweeps"), ("Pod", f"results-{identifier}"), ("Namespace", "bench")} <= named


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    required = [f for name, value in REQUIRED.items() for f in (f"--{name.replace('_', '-')}", value)]
    return subprocess.run(
        [sys.executable, "-m", "bench_runner", "kueue", *required, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_writes_the_files_or_prints_them_and_says_how_long_it_takes(tmp_path: Path) -> None:
    wishes = ["--models", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "--gpu", "H100", "--shards", "4", "--gpus", "2"]
    done = command(*wishes, "--output", str(tmp_path / "out"))
    assert done.returncode == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["1-queue.yaml", "2-claim.yaml", "3-sweep.yaml", "4-results.yaml"]
    assert command(*wishes).stdout == "".join(file.read_text() for file in files)
    # 2 models · 15 configurations · 120 s + 2 · 24 · 15 cells · 21 s = 18,720 s
    assert "= 5.2 GPU hours" in done.stderr
    assert "in /results/" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--models", "nobody/nothing", "--shards", "1"), 1, "not in the catalogue"),
        (("--shards", "0"), 1, "shards: 0"),
        (("--shards", "1", "--sweep-args", "'"), 1, "sweep_args"),
        (("--shards", "61"), 1, "60 servers"),
        (("--gpu", "B2000", "--shards", "1"), 1, "known: B200"),
        (("--gpu", "CPU", "--memory-gib", "4", "--shards", "1"), 1, "manifests are for GPUs"),
        (("--plan", "nowhere.json", "--shards", "1"), 1, "neither a file nor one of"),
        ((), 2, "--shards"),
    ],
)
def test_bad_usage_is_one_line_and_an_exit_code(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = command(*arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.splitlines()) == 1
