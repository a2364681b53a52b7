"""`bench_runner kueue`: writes the manifests that run a plan's sweep through Kueue (bench_runner/KUEUE.md)."""

import argparse
import shlex
import sys
from pathlib import Path

from bench_runner.files import write_atomically
from bench_runner.kueue_sweep import SweepOnKueue
from bench_runner.plan_command import add_inputs, print_estimate, requested_plan
from service.domain.errors import InvalidInputError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("kueue", help="write Kubernetes manifests that run a plan's sweep through Kueue")
    add_inputs(parser)
    parser.add_argument("--name", help="the plan's name")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument(
        "--shards", type=int, required=True, metavar="N", help="parts that run and resume on their own"
    )
    cluster.add_argument("--gpus", type=int, default=1, metavar="N", help="shards at a time (default: 1)")
    cluster.add_argument("--image", required=True, help="this checkout with vLLM 0.28; see bench_runner/KUEUE.md")
    cluster.add_argument("--namespace", required=True)
    cluster.add_argument("--queue", required=True, help="name of the LocalQueue")
    cluster.add_argument("--results-claim", required=True, metavar="NAME", help="PersistentVolumeClaim for results")
    cluster.add_argument("--results-size", default="20Gi", metavar="SIZE", help="its size (default: %(default)s)")
    cluster.add_argument("--storage-class", metavar="NAME", help="its storage class (default: the cluster's)")
    cluster.add_argument("--cache-claim", metavar="NAME", help="a claim that exists, for weights (default: each pod's)")
    cluster.add_argument("--hf-token-secret", metavar="NAME", help="secret whose key `token` becomes HF_TOKEN")
    cluster.add_argument("--priority-class", metavar="NAME", help="a WorkloadPriorityClass that exists")
    cluster.add_argument("--pod-cpus", type=int, default=16, metavar="N", help="CPU cores a pod (default: 16)")
    cluster.add_argument("--pod-memory-gib", type=int, default=96, metavar="GIB", help="GiB a pod (default: 96)")
    cluster.add_argument(
        "--sweep-args", default="", metavar="ARGS", help="further arguments of `sweep`, one quoted string"
    )
    cluster.add_argument("--output", type=Path, metavar="DIR", help="write files there (default: print them)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes or prints the manifests."""
    # Only this command needs PyYAML.
    from bench_runner.kueue import manifests, to_yaml

    sweep = SweepOnKueue(
        plan=requested_plan(arguments),
        shards=arguments.shards,
        gpus=arguments.gpus,
        image=arguments.image,
        namespace=arguments.namespace,
        queue=arguments.queue,
        results_claim=arguments.results_claim,
        results_size=arguments.results_size,
        storage_class=arguments.storage_class,
        cache_claim=arguments.cache_claim,
        hf_token_secret=arguments.hf_token_secret,
        priority_class=arguments.priority_class,
        cpus=arguments.pod_cpus,
        memory_gib=arguments.pod_memory_gib,
        sweep_args=_words(arguments.sweep_args),
    )
    for name, objects in manifests(sweep).items():
        if arguments.output:
            write_atomically(arguments.output / name, to_yaml(objects).encode())
        else:
            print(to_yaml(objects), end="")
    sys.stdout.flush()
    print_estimate(sweep.plan, start_up_s=arguments.start_up_s)
    print(f"job {sweep.job_name}, results in {sweep.results} of claim {sweep.results_claim}", file=sys.stderr)
    return 0


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidInputError(path="sweep_args", value=text, remedy=f"{error}; quote it as a shell would") from error
