"""`python -m service hook --file REQUEST.json` and `hook coverage --file CALLS.jsonl`: the hook without a caller."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.commands.memory import add_json_flag
from service.domain.errors import ArtefactError
from service.settings import Settings

if TYPE_CHECKING:
    from service.api.mapping import Mapping
    from service.api.model_catalogue import ModelCatalogue
    from service.policies import Policies

ReadSettings = Callable[[argparse.Namespace], Settings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a decision is taken with."""

    policies: "Policies"
    mapping: "Mapping"
    models: "ModelCatalogue"
    settings: Settings


def add_parser(commands: Any, read_settings: ReadSettings) -> None:
    """Adds the command `hook`."""
    parser = commands.add_parser(
        "hook",
        help="decide about the creation of an endpoint, without doing anything",
        description="The decision about one creation: what would change, and why each flag is set or left.",
    )
    parser.set_defaults(run=lambda arguments: _dry_run(arguments, read_settings(arguments), parser))
    _add_flags(parser, "JSON: a body of the hook, or an InferenceService")
    actions = parser.add_subparsers(metavar="COMMAND")
    coverage = actions.add_parser(
        "coverage",
        help="how many of some calls would be changed, and why the others not",
        description="Shares of decisions and reasons over recorded calls, before the hook is switched on.",
    )
    _add_flags(coverage, "JSON Lines: a body of the hook on each", required=True)
    coverage.set_defaults(run=lambda arguments: _coverage(arguments, read_settings(arguments)))


def _add_flags(parser: argparse.ArgumentParser, file: str, *, required: bool = False) -> None:
    parser.add_argument("--file", type=Path, required=required, metavar="FILE", help=file)
    parser.add_argument("--mapping", type=Path, metavar="FILE", help="TOML (MEMORYPOLICY_HOOK_MAPPING_FILE)")
    parser.add_argument("--bundle-dir", metavar="DIR", help="bundle to ask (MEMORYPOLICY_BUNDLE_DIR)")
    add_json_flag(parser)


def _dry_run(arguments: argparse.Namespace, settings: Settings, parser: argparse.ArgumentParser) -> None:
    if arguments.file is None:
        parser.error("give --file, or the command coverage")
    from service.api.hook_table import print_decision, print_service
    from service.api.json_body import parse_object

    body = parse_object(arguments.file.read_bytes())
    known = _loaded(arguments, settings)
    if body.get("kind") == "InferenceService":
        before, after, answer = _reviewed(body, known)
        if arguments.json:
            print(json.dumps(after, indent=2, ensure_ascii=False))
        else:
            print_service(before, after, answer)
        return
    answer = _answer(body, known)
    if arguments.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        print_decision(body["request"], answer)


def _coverage(arguments: argparse.Namespace, settings: Settings) -> None:
    known = _loaded(arguments, settings)
    counts = Counter((answer["decision"], answer["reason"]) for answer in _answers(arguments.file, known))
    calls = sum(counts.values())
    shares = [
        {"decision": decision, "reason": reason, "calls": number, "share": number / calls}
        for (decision, reason), number in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    ]
    if arguments.json:
        print(json.dumps({"calls": calls, "shares": shares}))
        return
    print(f"{calls} calls")
    for row in shares:
        print(f"{row['share']:7.1%}  {row['calls']:>6}  {row['decision']}  {row['reason'] or ''}".rstrip())


def _loaded(arguments: argparse.Namespace, settings: Settings) -> Known:
    from service.api.mapping import read_mapping
    from service.api.model_folder import with_models_dir
    from service.policies import load_policies

    return Known(
        policies=load_policies(settings.bundle_dir, settings.further_bundles()),
        mapping=read_mapping(arguments.mapping or settings.hook_mapping_file),
        models=with_models_dir(settings.models_dir),
        settings=settings,
    )


def _answers(path: Path, known: Known) -> Iterator[dict[str, Any]]:
    from service.api.json_body import parse_object
    from service.api.problem import RefusedError

    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _answer(parse_object(line), known)
        except RefusedError as error:
            raise ArtefactError(f"{path}, line {number}: {error.message}") from error


def _answer(body: dict[str, Any], known: Known) -> dict[str, Any]:
    from service.api.hook import asked_of, digest_of, hook_answer, id_of, read_hook
    from service.api.hook_decision import decide, skipped
    from service.api.skip import SkipError

    hook = read_hook(body)
    decision_id = id_of("dry-run", digest_of(body))
    try:
        decision = decide(
            asked_of(hook, known.mapping),
            known.policies,
            recommendation_id=id_of("recommendation", decision_id),
            precedence=known.settings.hook_precedence,
            models=known.models,
        )
    except SkipError as error:
        decision = skipped(error)
    return hook_answer(hook, decision, known.policies, decision_id=decision_id)


def _reviewed(content: dict[str, Any], known: Known) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The object, the object as it would be created, and the decision."""
    from service.api.admission import InferenceService, applied_to, asked_of_service
    from service.api.admission_routes import review_answer
    from service.api.hook import digest_of, id_of
    from service.api.hook_decision import decide, skipped
    from service.api.skip import SkipError

    metadata = content.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    service = InferenceService(content=content, namespace=namespace, prefix=known.settings.annotation_prefix)
    decision_id = id_of("dry-run", digest_of(content))
    try:
        decision = decide(
            asked_of_service(service, known.mapping),
            known.policies,
            recommendation_id=id_of("recommendation", decision_id),
            models=known.models,
        )
    except SkipError as error:
        decision = skipped(error)
    answer = review_answer(service, decision, decision_id=decision_id)
    return content, applied_to(content, answer["patch"]), {**answer, "message": decision.message}
