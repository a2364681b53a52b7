"""A plan's sweep on a cluster with Kueue: what it is, checked before anything is rendered."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from bench_runner.gpu_hours import GpuHours
from bench_runner.plan import CPU, Plan
from service.domain.catalogue import CATALOGUE
from service.domain.errors import InvalidInputError

GPU_PRODUCT = "nvidia.com/gpu.product"
_HUB_IDS = {entry.name for entry in CATALOGUE}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"[1-9]\d{0,8}(Mi|Gi|Ti|Pi|M|G|T|P)")
# The API server takes 1 MiB.
MAX_PLAN_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOnKueue:
    """A sweep and where it runs.

    gpus: shards at a time; cpus and memory_gib: of each pod, shared memory included; sweep_args: further ones of
    `bench_runner sweep`.
    """

    plan: Plan
    shards: int
    gpus: int
    image: str
    namespace: str
    queue: str
    results_claim: str
    results_size: str = "20Gi"
    storage_class: str | None = None
    cache_claim: str | None = None
    hf_token_secret: str | None = None
    priority_class: str | None = None
    cpus: int = 16
    memory_gib: int = 96
    sweep_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        servers = GpuHours.of(self.plan).servers
        _check_count("shards", self.shards, servers, f"the plan has {servers} servers, one per model and configuration")
        _check_count("gpus", self.gpus, self.shards, "a shard uses one GPU at a time")
        _check_count("cpus", self.cpus, 1024, "CPU cores of a pod")
        _check_count("pod_memory_gib", self.memory_gib, 65_536, "GiB of a pod")
        if self.plan.gpu == CPU:
            raise InvalidInputError(
                path="gpu", value=CPU, remedy="these manifests are for GPUs; plan for one with --gpu"
            )
        if not _LABEL_VALUE.fullmatch(self.gpu_product):
            raise InvalidInputError(path="gpu", value=self.plan.gpu, remedy=f"it cannot be a value of {GPU_PRODUCT}")
        if not self.image or re.search(r"\s", self.image):
            raise InvalidInputError(path="image", value=self.image, remedy="give an image such as registry/name:tag")
        if not _QUANTITY.fullmatch(self.results_size):
            raise InvalidInputError(path="results_size", value=self.results_size, remedy="give a size such as 20Gi")
        self._check_names()
        for model in self.plan.models:
            name = str(model.name)
            if name not in _HUB_IDS and (
                name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
            ):
                raise InvalidInputError(
                    path="model", value=name, remedy="a folder here is none in the cluster; give HUB_ID=CONFIG.json"
                )
        if len(self.plan_text.encode()) > MAX_PLAN_BYTES:
            raise InvalidInputError(
                path="plan", value=self.plan.name, remedy="too large for a ConfigMap; split the plan"
            )

    def _check_names(self) -> None:
        named = ("namespace", "queue", "results_claim", "storage_class", "cache_claim", "hf_token_secret")
        for path in (*named, "priority_class"):
            name = getattr(self, path)
            if name is not None and not _LABEL.fullmatch(name):
                raise InvalidInputError(
                    path=path, value=name, remedy="give a name of at most 63 lower-case letters, digits and hyphens"
                )

    @property
    def plan_text(self) -> str:
        """The plan file."""
        return json.dumps(self.plan.to_json(), indent=1) + "\n"

    @property
    def instance(self) -> str:
        """Names the plan in the names of the objects and of the results' folder."""
        return self.plan.sha256[:10]

    @property
    def gpu_product(self) -> str:
        """The node label of NVIDIA's GPU feature discovery, which has hyphens for blanks."""
        return re.sub(r"\s+", "-", self.plan.gpu)

    @property
    def results(self) -> str:
        """The folder of results in a pod. A plan has its own, so that plans can share a claim."""
        return f"/results/{self.instance}"

    @property
    def flavor(self) -> str:
        """Name of the ResourceFlavor."""
        return re.sub(r"[^a-z0-9-]", "-", self.gpu_product.lower())

    @property
    def cluster_queue(self) -> str:
        """Name of the ClusterQueue."""
        return f"{self.namespace}-{self.queue}"

    @property
    def plan_name(self) -> str:
        """Name of the ConfigMap with the plan."""
        return f"plan-{self.instance}"

    @property
    def job_name(self) -> str:
        """Name of the Job."""
        return f"sweep-{self.instance}"

    @property
    def reader_name(self) -> str:
        """Name of the pod that looks at results."""
        return f"results-{self.instance}"


def _check_count(path: str, value: int, most: int, reason: str) -> None:
    if not 1 <= value <= most:
        raise InvalidInputError(path=path, value=value, remedy=f"{reason}; give a whole number from 1 to {most}")
