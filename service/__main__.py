"""The command line `python -m service`: serve, recommend, inspect, workload and what operators need; see --help."""

import argparse
import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from service.commands.workload_flags import add_workload, with_file, workload_part
from service.domain.errors import MemoryPolicyError
from service.settings import Settings

if TYPE_CHECKING:
    from service.policies import Policies

# argparse's own status for bad usage; a refused question is bad usage too.
BAD_USAGE = 2
NUMBER_FLAGS = {"weight_gb": float, "num_layers": int, "hidden_size": int, "kv_bytes_per_token": int}
START_FLAGS = (
    "gpu",
    "gpu_memory_gib",
    "gpu_shared",
    "engine_version",
    "max_model_len",
    "extra_args",
    "render",
    "explain",
)
SLO_FLAGS = {"max_p95_ttft_ms": float, "max_p95_tpot_ms": float, "max_error_rate": float}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 2 for bad usage, 1 with one line on stderr for anything else that is foreseen."""
    arguments = _parser().parse_args(argv)
    # Imported here, not above: the parser alone must answer --help at once.
    from service.api.problem import RefusedError

    try:
        run: Callable[[argparse.Namespace], None] = arguments.run
        run(arguments)
    except RefusedError as error:
        return _fail(error.message, status=BAD_USAGE)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"])
        return _fail(f"setting {name}: {first['msg']}, got {first['input']!r}", status=BAD_USAGE)
    except MemoryPolicyError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 0


def _fail(message: str, *, status: int = 1) -> int:
    line = " ".join(message.split()).encode("utf-8", "replace").decode()
    print(f"memorypolicy: {line}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m service", description="Ranks 15 vLLM configurations before launch."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the HTTP API", description="Serves the HTTP API until SIGTERM.")
    serve.add_argument("--host", help="address to listen on (MEMORYPOLICY_HOST, 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on, 0 for a free one (MEMORYPOLICY_PORT, 8000)")
    serve.add_argument("--bundle-dir", metavar="DIR", help="bundle to serve (MEMORYPOLICY_BUNDLE_DIR)")
    serve.set_defaults(run=_serve)

    _add_recommend(commands.add_parser("recommend", help="answer one question", description="Answers one question."))

    # These import no more than argparse needs until one of them runs.
    from service.commands import bundle, db, hook, inspect, outcomes, token, workload

    bundle.add_parser(commands, _settings)
    db.add_parser(commands, _settings)
    hook.add_parser(commands, _settings)
    inspect.add_parser(commands)
    outcomes.add_parser(commands)
    token.add_parser(commands)
    workload.add_parser(commands)

    openapi = commands.add_parser("openapi", help="print openapi.json", description="Prints the OpenAPI document.")
    openapi.set_defaults(run=_openapi)
    return parser


def _add_recommend(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model: a name, a config, another model's architecture or the four numbers")
    model.add_argument("--model", metavar="NAME", help="a Hugging Face id of the catalogue")
    model.add_argument(
        "--config", metavar="PATH", type=Path,
        help="the model's config.json (- for standard input), or the folder that holds it or a LoRA adapter",
    )  # fmt: skip
    model.add_argument(
        "--same-architecture-as", metavar="NAME", help="a model of the catalogue; --model is then the model's own name"
    )
    _add_flags(model, NUMBER_FLAGS)
    adapter = parser.add_argument_group("LoRA adapters served on the model: a folder or a rank")
    adapter.add_argument("--adapter", metavar="PATH", type=Path, help="an adapter_config.json, or its folder")
    adapter.add_argument("--lora-rank", metavar="INT", type=int, help="the largest rank of any of them")
    adapter.add_argument("--max-loras", metavar="INT", type=int, help="adapters in one batch (1)")
    add_workload(parser)
    parser.add_argument("--gpu", metavar="NAME", help="such as B200 (default: the one of the bundle)")
    parser.add_argument(
        "--gpu-memory-gib", metavar="GIB", type=float, help="its usable memory, if it is not that of the named GPU"
    )
    parser.add_argument("--gpu-shared", action="store_true", default=None, help="others use the same device")
    parser.add_argument("--engine-version", metavar="VERSION", help="vLLM version (default: the one of the bundle)")
    _add_flags(parser.add_argument_group("limits (default: those of the bundle)"), SLO_FLAGS)
    parser.add_argument(
        "--fixed", metavar="NAME=VALUE", action="append", default=[], type=_fixed,
        help="an engine argument that is already set, such as max_num_seqs=128; repeatable",
    )  # fmt: skip
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS", help="context that the server is limited to")
    parser.add_argument(
        "--extra-args", metavar="TEXT",
        help="further arguments of `vllm serve`, as one word: --extra-args='--enforce-eager --dtype=bfloat16'",
    )  # fmt: skip
    parser.add_argument("--bundle-dir", metavar="DIR", help="bundle to ask (MEMORYPOLICY_BUNDLE_DIR)")
    parser.add_argument(
        "--render", metavar="FORM", action="append",
        help="print only this form of the answer: vllm, yaml, helm, kserve, ray or metis; repeatable",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", default=None, help="say why, and how far it holds")
    parser.add_argument("--json", action="store_true", help="print the body that the API answers with")
    parser.set_defaults(run=_recommend)


def _add_flags(group: argparse._ActionsContainer, flags: Mapping[str, type]) -> None:
    for name, kind in flags.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=kind.__name__.upper())


def _fixed(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name.strip().replace("-", "_"), json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE with a number, true or false") from None


def _settings(arguments: argparse.Namespace) -> Settings:
    """The environment's settings, overridden by the flags that were given."""
    given = {name: getattr(arguments, name, None) for name in Settings.model_fields}
    return Settings(**{name: value for name, value in given.items() if value is not None})


def _load_policies(settings: Settings) -> "Policies":
    from service.policies import load_policies

    return load_policies(settings.bundle_dir, settings.further_bundles())


def _serve(arguments: argparse.Namespace) -> None:
    from service.server.run import serve

    serve(_settings(arguments))


def _recommend(arguments: argparse.Namespace) -> None:
    from service.api.answer import answer
    from service.api.model_folder import with_models_dir
    from service.api.query import read_query

    settings = _settings(arguments)
    body = _body(arguments)
    policies = _load_policies(settings)
    models = with_models_dir(settings.models_dir)
    read = read_query(body, policies=policies, default_gpu=settings.default_gpu, models=models)
    content = answer(read, recommendation_id=str(uuid.uuid4()))
    if arguments.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    elif body.get("render"):
        from service.api.table import print_forms

        print_forms(content)
    else:
        from service.api.table import print_answer

        print_answer(content)


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    """The body that the same question would have as a request."""
    from service.api.model_folder import adapter_part, model_part

    def given(names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}

    model, adapter = given((*NUMBER_FLAGS, "same_architecture_as")), None
    if arguments.model is not None:
        model["name"] = arguments.model
    if arguments.config is not None:
        part, adapter = model_part(arguments.config)
        model.update(part)
    if arguments.adapter is not None:
        adapter = adapter_part(arguments.adapter)
    if arguments.lora_rank is not None:
        adapter = {**(adapter or {}), "rank": arguments.lora_rank}
    if arguments.max_loras is not None:
        adapter = {**(adapter or {}), "max_loras": arguments.max_loras}
    body = {"model": model, "workload": workload_part(arguments), **given(START_FLAGS)}
    if adapter is not None:
        body["adapter"] = adapter
    if slo := given(tuple(SLO_FLAGS)):
        body["slo"] = slo
    if arguments.fixed:
        body["fixed"] = dict(arguments.fixed)
    return with_file(arguments, body)


def _openapi(arguments: argparse.Namespace) -> None:
    from service.app import openapi_text

    sys.stdout.write(openapi_text())


if __name__ == "__main__":
    sys.exit(main())
