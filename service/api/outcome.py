"""A reported body -> outcomes, and outcomes -> the report of expected against observed."""

import hashlib
import json
import math
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from service.api.outcome_schemas import (
    Comparison,
    Expectation,
    MeasuredPart,
    ObservedArm,
    OutcomeGroup,
    OutcomeReport,
    OutcomeSummary,
    ReportedArm,
    VerifiedOutcome,
)
from service.api.problem import MOST_DETAILS, Detail, RefusedError, json_path
from service.api.secret import holds_secret, without_secrets
from service.db.outcomes import Asked, Outcome
from service.domain.interval import Interval, mean_interval

# Any UUID: ids of reports are derived under it.
NAMESPACE = uuid.UUID("5a0b4c1e-7c5b-4c0f-9d0e-2f6b1f8d7a31")
LEAST_PAIRS = 3
_AVERAGED = ("output_throughput_tps", "ttft_p95_ms", "tpot_p95_ms")
_MEASURED = tuple(MeasuredPart.model_fields)
Reported = tuple[Outcome, Asked | None]


def read_outcomes(body: Mapping[str, Any]) -> list[Outcome]:
    """The reports of a body; RefusedError that names the JSON path."""
    try:
        if "arms" in body:
            return list(_verified(VerifiedOutcome.model_validate(body)))
        return [_reported(OutcomeReport.model_validate(body))]
    except ValidationError as error:
        details = [
            Detail(path=json_path(item["loc"]), message=item["msg"], value=item["input"])
            for item in error.errors(include_url=False, include_context=False)[:MOST_DETAILS]
        ]
        raise RefusedError("invalid_request", f"{details[0].path}: {details[0].message}", details=details) from error


def _reported(report: OutcomeReport) -> Outcome:
    if report.recommendation_id is None and (report.project is None or report.endpoint is None):
        message = "give recommendation_id, or project and endpoint"
        raise RefusedError("invalid_request", f"$: {message}", details=[Detail(path="$", message=message)])
    for name in ("recommendation_id", "project", "endpoint"):
        if holds_secret(getattr(report, name) or ""):
            message = "it looks like a secret, and it would go on record"
            raise RefusedError(
                "invalid_request", f"$.{name}: {message}", details=[Detail(path=f"$.{name}", message=message)]
            )
    content = report.model_dump(exclude_none=True)
    about = [report.recommendation_id, report.project, report.endpoint]
    return Outcome(
        id=_derived_id([*about, "report_id", report.report_id] if report.report_id else content),
        recommendation_id=report.recommendation_id,
        project=report.project,
        endpoint=report.endpoint,
        arm=report.arm,
        mode=report.mode,
        source=report.source,
        evidence=report.evidence,
        model=None,
        gpu=None,
        workload=None,
        engine_args=without_secrets(content["engine_args"]),
        measured=content["measured"],
        pair=None,
        invalid_cause=None,
    )


def _verified(file: VerifiedOutcome) -> Iterator[Outcome]:
    """One report for each visit: visits of equal number were measured beside each other, which makes them a pair."""
    whole = _derived_id(file.model_dump())
    for arm, side in file.arms.items():
        for number, visit in enumerate(side.visits):
            yield Outcome(
                id=_derived_id([whole, arm, number]),
                recommendation_id=file.recommendation_id,
                project=None,
                endpoint=None,
                arm=arm,
                mode="apply",
                source="verify",
                evidence=file.evidence,
                model=without_secrets(file.model),
                gpu=without_secrets(file.gpu),
                workload=without_secrets(file.workload),
                engine_args=without_secrets(side.engine_args),
                measured=_measured(visit, path=("arms", arm, "visits", number)),
                pair=f"{whole}:{number}",
                invalid_cause=_invalid_cause(visit),
            )


def _measured(visit: Mapping[str, Any], *, path: tuple[str | int, ...]) -> dict[str, Any]:
    try:
        values = {name: visit[name] for name in _MEASURED if visit.get(name) is not None}
        return MeasuredPart.model_validate(values).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = json_path([*path, *first["loc"]])
        detail = Detail(path=where, message=first["msg"], value=first["input"])
        raise RefusedError("invalid_request", f"{where}: {first['msg']}", details=[detail]) from error


def _invalid_cause(visit: Mapping[str, Any]) -> str | None:
    run = visit.get("run")
    cause = run.get("invalid_cause") if isinstance(run, dict) else None
    return str(without_secrets(str(cause)))[:100] if cause is not None else None


def _derived_id(content: object) -> str:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return str(uuid.uuid5(NAMESPACE, digest))


def summarise(reported: Sequence[Reported], *, days: int) -> OutcomeSummary:
    """Groups by model, GPU, workload and mode; a comparison only where there are enough pairs for an interval."""
    groups: dict[str, list[Reported]] = defaultdict(list)
    for outcome, asked in reported:
        groups[json.dumps(_group_key(outcome, asked), sort_keys=True)].append((outcome, asked))
    return OutcomeSummary(
        days=days,
        reports=len(reported),
        unmatched=sum(asked is None for _, asked in reported),
        groups=[_group(json.loads(key), members) for key, members in sorted(groups.items())],
    )


def _group_key(outcome: Outcome, asked: Asked | None) -> list[Any]:
    # Of a matched report the recommendation knows best what it is about; a file names it in its own words.
    if asked is None:
        return [outcome.model, outcome.gpu, _lengths(outcome.workload), outcome.mode]
    mode = "shadow" if "shadow" in (asked.mode, outcome.mode) else "apply"
    return [asked.model or outcome.model, asked.gpu, _lengths(asked.workload), mode]


def _lengths(workload: Mapping[str, Any] | None) -> dict[str, Any] | None:
    names = ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
    return None if workload is None else {name: workload.get(name) for name in names}


def _group(key: list[Any], members: Sequence[Reported]) -> OutcomeGroup:
    model, gpu, workload, mode = key
    by_arm: dict[ReportedArm, list[Outcome]] = defaultdict(list)
    contradicting = 0
    for outcome, asked in members:
        arm: Any = outcome.arm
        if arm == "recommended" and _contradicts(outcome, asked):
            arm = "other"
            contradicting += 1
        by_arm[arm].append(outcome)
    asked_by_id = {asked.id: asked for _, asked in members if asked is not None}
    return OutcomeGroup(
        model=model,
        gpu=gpu,
        workload=workload,
        mode=mode,
        recommendations=len(asked_by_id),
        expected=_expectation(asked_by_id.values()),
        observed={arm: _observed(outcomes) for arm, outcomes in sorted(by_arm.items())},
        not_as_recommended=contradicting,
        comparison=_compared(by_arm["recommended"], by_arm["engine_default"]),
    )


def _contradicts(outcome: Outcome, asked: Asked | None) -> bool:
    flags = (asked.flags or {}) if asked is not None else {}
    return any(name in outcome.engine_args and outcome.engine_args[name] != value for name, value in flags.items())


def _expectation(asked: Iterable[Asked]) -> Expectation | None:
    predicted = [entry.expected for entry in asked if entry.expected is not None]
    if not predicted:
        return None
    values = {
        name: [float(value) for entry in predicted if isinstance(value := entry.get(name), int | float)]
        for name in _AVERAGED
    }
    means = {name: sum(numbers) / len(numbers) if numbers else None for name, numbers in values.items()}
    return Expectation(**means, recommendations=len(predicted))


def _observed(outcomes: Sequence[Outcome]) -> ObservedArm:
    valid = [outcome for outcome in outcomes if outcome.invalid_cause is None]
    failed = sum(_value(outcome, "output_throughput_tps") == 0 for outcome in valid)
    values = {
        name: [value for outcome in valid if (value := _value(outcome, name)) is not None and value > 0]
        for name in _AVERAGED
    }
    said = [float(outcome.measured["slo_met"]) for outcome in valid if "slo_met" in outcome.measured]
    return ObservedArm(
        reports=len(outcomes),
        failed=failed,
        invalid=len(outcomes) - len(valid),
        slo_met=sum(said) / len(said) if said else None,
        **{name: mean_interval(numbers) for name, numbers in values.items()},
    )


def _compared(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Comparison:
    """Pairs are visits beside each other, else the means of both arms under one recommendation."""
    left, right = _by_pair(ours), _by_pair(theirs)
    logs = [math.log(left[pair] / right[pair]) for pair in left.keys() & right.keys()]
    found = mean_interval(sorted(logs)) if len(logs) >= LEAST_PAIRS else None
    if found is None or found.low is None or found.high is None:
        return Comparison(status="not enough data", pairs=len(logs), pairs_needed=LEAST_PAIRS, throughput_ratio=None)
    ratio = Interval(mean=math.exp(found.mean), low=math.exp(found.low), high=math.exp(found.high), n=found.n)
    return Comparison(status="compared", pairs=len(logs), pairs_needed=LEAST_PAIRS, throughput_ratio=ratio)


def _by_pair(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean throughput by what belongs together; a report that failed or is invalid belongs to no pair."""
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        value = _value(outcome, "output_throughput_tps")
        pair = outcome.pair or outcome.recommendation_id or f"{outcome.project}/{outcome.endpoint}"
        if value and outcome.invalid_cause is None:
            found[pair].append(value)
    return {pair: sum(values) / len(values) for pair, values in found.items()}


def _value(outcome: Outcome, name: str) -> float | None:
    value = outcome.measured.get(name)
    value = value["mean"] if isinstance(value, dict) else value
    return None if value is None else float(value)
