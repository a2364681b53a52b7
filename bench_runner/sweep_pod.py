"""The pods of a sweep on Kubernetes: one that measures a shard on a GPU, one that looks at the results."""

from typing import Any

from bench_runner.kueue_sweep import GPU_PRODUCT, SweepOnKueue

Manifest = dict[str, Any]

CONTAINER = "sweep"
GPU = "nvidia.com/gpu"
# The program stops within 20 s of SIGTERM; the rest is for a slow network volume.
GRACE_S = 120
SHARED_MEMORY = "16Gi"
# A pod that is only looked into ends by itself.
READER_S = 86_400
USER_ID = 1000
PLAN_PATH = "/plan/plan.json"


def sweep_pod(sweep: SweepOnKueue) -> Manifest:
    """Measures shard JOB_COMPLETION_INDEX, which the Job controller sets for each index."""
    command = ["python3", "-m", "bench_runner", "sweep", "--plan", PLAN_PATH, "--results", sweep.results]
    command += ["--shard-index", "$(JOB_COMPLETION_INDEX)", "--shard-count", str(sweep.shards)]
    resources = {"cpu": str(sweep.cpus), "memory": f"{sweep.memory_gib}Gi", GPU: "1"}
    return {
        **_pod(),
        "terminationGracePeriodSeconds": GRACE_S,
        # Children of a killed server are adopted, and reaped, by the pause container instead of this program; and a
        # signal before its handler is there ends it, which a process with id 1 would ignore.
        "shareProcessNamespace": True,
        "nodeSelector": {GPU_PRODUCT: sweep.gpu_product},
        "containers": [
            {
                **_container(sweep, CONTAINER),
                # A dollar sign would begin a variable.
                "command": [*command, *(word.replace("$", "$$") for word in sweep.sweep_args)],
                "env": [*_environment(), {"name": "HF_HOME", "value": "/cache/huggingface"}, *_token(sweep)],
                # Equal requests and limits: evicted last, and cores of its own where the kubelet hands them out.
                "resources": {"requests": resources, "limits": dict(resources)},
                "volumeMounts": [
                    *_mounts(),
                    {"name": "results", "mountPath": "/results"},
                    {"name": "cache", "mountPath": "/cache"},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            *_volumes(sweep),
            {"name": "cache"} | (_claimed(sweep.cache_claim) if sweep.cache_claim else {"emptyDir": {}}),
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
        ],
    }


def reader_pod(sweep: SweepOnKueue) -> Manifest:
    """Sleeps beside the results, which it cannot change, so that `status` and `merge` can be run in it."""
    resources = {"cpu": "1", "memory": "2Gi"}
    return {
        **_pod(),
        "activeDeadlineSeconds": READER_S,
        # sleep has nothing to finish.
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                **_container(sweep, "results"),
                "command": ["sleep", str(READER_S)],
                "env": _environment(),
                "resources": {"requests": resources, "limits": dict(resources)},
                "volumeMounts": [*_mounts(), {"name": "results", "mountPath": "/results", "readOnly": True}],
            }
        ],
        "volumes": _volumes(sweep),
    }


def _pod() -> Manifest:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # A service called vllm would set VLLM_PORT, which the engine reads as a number.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _container(sweep: SweepOnKueue, name: str) -> Manifest:
    return {
        "name": name,
        "image": sweep.image,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _environment() -> list[Manifest]:
    # A user id without an entry in /etc/passwd has neither a home nor a name, and torch asks for both.
    values = {"HOME": "/scratch", "USER": "bench", "PYTHONUNBUFFERED": "1"}
    return [{"name": name, "value": value} for name, value in values.items()]


def _token(sweep: SweepOnKueue) -> list[Manifest]:
    if sweep.hf_token_secret is None:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": sweep.hf_token_secret, "key": "token"}}}]


def _mounts() -> list[Manifest]:
    return [
        {"name": "plan", "mountPath": "/plan", "readOnly": True},
        {"name": "scratch", "mountPath": "/scratch"},
    ]


def _volumes(sweep: SweepOnKueue) -> list[Manifest]:
    return [
        {"name": "plan", "configMap": {"name": sweep.plan_name}},
        {"name": "results"} | _claimed(sweep.results_claim),
        {"name": "scratch", "emptyDir": {}},
    ]


def _claimed(claim: str) -> Manifest:
    return {"persistentVolumeClaim": {"claimName": claim}}
