"""Kubernetes manifests that run a plan's sweep through Kueue: one Indexed Job, one index a shard.

One Job rather than one per shard: a single workload to admit, evict and count, with finished indexes kept over an
eviction. Kueue evicts by suspending the Job; its pods get SIGTERM and end with exit code 75, which counts as no
failure; once admitted again, each unfinished index starts anew and goes on from what its shard has on the claim.
Needs Kubernetes 1.33 (backoffLimitPerIndex) and Kueue 0.15 (v1beta2).
"""

from typing import Any

import yaml

from bench_runner.kueue_sweep import GPU_PRODUCT, SweepOnKueue
from bench_runner.sweep_pod import CONTAINER, GPU, Manifest, reader_pod, sweep_pod

KUEUE_API = "kueue.x-k8s.io/v1beta2"
# Exit codes: stopped on request and resumable; ended by SIGTERM before the program could answer it.
INTERRUPTED = (75, 143)
# Bad usage, which no retry mends.
BAD_USAGE = 2
MOST_FAILURES_PER_SHARD = 3


def manifests(sweep: SweepOnKueue) -> dict[str, list[Manifest]]:
    """The objects by file name, in the order in which they are applied."""
    return {
        "1-queue.yaml": [_namespace(sweep), _flavor(sweep), _cluster_queue(sweep), _local_queue(sweep)],
        "2-claim.yaml": [_claim(sweep)],
        "3-sweep.yaml": [_plan(sweep), _job(sweep)],
        "4-results.yaml": [_reader(sweep)],
    }


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, so that a person can read the plan."""

    def ignore_aliases(self, data: Any) -> bool:
        """Every value is written out."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(objects: list[Manifest]) -> str:
    """Objects as one YAML stream; equal objects give equal text."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=1000)


def _metadata(sweep: SweepOnKueue, name: str) -> Manifest:
    labels = {"app.kubernetes.io/name": "bench-runner", "app.kubernetes.io/instance": sweep.instance}
    return {"name": name, "namespace": sweep.namespace, "labels": labels}


def _namespace(sweep: SweepOnKueue) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": sweep.namespace}}


def _flavor(sweep: SweepOnKueue) -> Manifest:
    return {
        "apiVersion": KUEUE_API,
        "kind": "ResourceFlavor",
        "metadata": {"name": sweep.flavor},
        "spec": {
            "nodeLabels": {GPU_PRODUCT: sweep.gpu_product},
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        },
    }


def _cluster_queue(sweep: SweepOnKueue) -> Manifest:
    # Kueue admits nothing that requests a resource which its queue does not cover.
    quota = {"cpu": sweep.gpus * sweep.cpus, "memory": f"{sweep.gpus * sweep.memory_gib}Gi", GPU: sweep.gpus}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": sweep.flavor, "resources": resources}]}
    return {
        "apiVersion": KUEUE_API,
        "kind": "ClusterQueue",
        "metadata": {"name": sweep.cluster_queue},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": sweep.namespace}},
            "resourceGroups": [group],
        },
    }


def _local_queue(sweep: SweepOnKueue) -> Manifest:
    return {
        "apiVersion": KUEUE_API,
        "kind": "LocalQueue",
        "metadata": {"name": sweep.queue, "namespace": sweep.namespace},
        "spec": {"clusterQueue": sweep.cluster_queue},
    }


def _claim(sweep: SweepOnKueue) -> Manifest:
    storage_class = {"storageClassName": sweep.storage_class} if sweep.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": sweep.results_claim, "namespace": sweep.namespace},
        "spec": {
            # Pods of several shards may be on several nodes.
            "accessModes": ["ReadWriteMany" if sweep.gpus > 1 else "ReadWriteOnce"],
            **storage_class,
            "resources": {"requests": {"storage": sweep.results_size}},
        },
    }


def _plan(sweep: SweepOnKueue) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(sweep, sweep.plan_name),
        "immutable": True,
        "data": {"plan.json": sweep.plan_text},
    }


def _job(sweep: SweepOnKueue) -> Manifest:
    metadata = _metadata(sweep, sweep.job_name)
    metadata["labels"] |= {"kueue.x-k8s.io/queue-name": sweep.queue}
    if sweep.priority_class:
        metadata["labels"] |= {"kueue.x-k8s.io/priority-class": sweep.priority_class}
    if sweep.gpus > 1:
        # Fewer GPUs than asked for are enough to begin. Kueue refuses the annotation on a Job of one pod at a time.
        metadata["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "1"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": sweep.shards,
            "parallelism": sweep.gpus,
            "backoffLimitPerIndex": MOST_FAILURES_PER_SHARD,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    _on_exit("Ignore", *INTERRUPTED),
                    _on_exit("FailIndex", BAD_USAGE),
                ]
            },
            # Only when the old pod is gone, so that a shard's file never has two writers.
            "podReplacementPolicy": "Failed",
            "template": {
                # Without the queue's label: the pods are the Job's, not workloads of their own.
                "metadata": {"labels": _metadata(sweep, sweep.job_name)["labels"]},
                "spec": sweep_pod(sweep),
            },
        },
    }


def _on_exit(action: str, *codes: int) -> Manifest:
    return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(codes)}}


def _reader(sweep: SweepOnKueue) -> Manifest:
    metadata = _metadata(sweep, sweep.reader_name)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": reader_pod(sweep)}
