"""What happens around a decision of the hook: replay, record, deadline, and no failure that reaches the caller."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from service.api.audit import recommendation_record
from service.api.caller import NAME, Caller
from service.api.hook import id_of
from service.api.hook_decision import Asked, HookDecision, decide, skipped
from service.api.mapping import NO_MAPPING, Mapping
from service.api.metrics import Metrics
from service.api.model_catalogue import ModelCatalogue
from service.api.problem import RefusedError
from service.api.secret import holds_secret
from service.api.skip import HookReason, SkipError
from service.api.user_arguments import Precedence
from service.db.database import Database, DatabaseAwayError
from service.db.hook_decisions import recorded_decision
from service.db.journal import Journal
from service.db.record import Record
from service.db.spool import SpoolFullError
from service.logs import log_without_values
from service.policies import Policies

MOST_REPLIES = 4096
_MESSAGES: dict[HookReason, str] = {
    "bad_bundle": "the bundle that was activated does not verify, so nobody knows which policy is meant",
    "database_away": "the database is away, so the decision cannot be put on record where every replica sees it",
    "audit_full": "the decision cannot be put on record: the database is away and the spool is full",
    "deadline": "the decision was not on record before its deadline",
    "internal": "the service failed; its log has the cause under this request's id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """Where the operator's knowledge stands and how long the caller waits. replies: answers by Idempotency-Key."""

    mapping: Mapping = NO_MAPPING
    deadline_s: float = 0.3
    precedence: Precedence = "user"
    annotation_prefix: str = "memorypolicy.io"
    replies: "OrderedDict[str, tuple[str, dict[str, Any]]]" = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request at one of the doors. asked: raises SkipError; render: the decision and its id -> the answer.

    digest: of the content; key: the caller's own name for this request. keep: false where nothing may be recorded.
    """

    door: str
    digest: str
    asked: Callable[[], Asked]
    render: Callable[[HookDecision, str], dict[str, Any]]
    caller: Caller
    request_id: str
    key: str | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a case is settled with; the policies and the journal as they are now."""

    settings: HookSettings
    policies: Policies
    bundle_refused: bool
    database: Database
    journal: Journal | None
    metrics: Metrics
    models: ModelCatalogue
    now_ms: Callable[[], int]

    async def settle(self, case: Case) -> dict[str, Any]:
        """The answer, within the deadline and whatever fails. RefusedError only for a key that is used twice."""
        task = asyncio.ensure_future(self._settle(case))
        done, _ = await asyncio.wait({task}, timeout=self.settings.deadline_s)
        if not done:
            # It goes on: its record may still become durable. The one of this answer follows behind it.
            task.add_done_callback(_forget)
            return self._skip_and_forget(case, "deadline")
        try:
            content, decision = task.result()
        except RefusedError:
            raise
        except SpoolFullError:
            return self._skip_and_forget(case, "audit_full", keep=False)
        except DatabaseAwayError:
            return self._skip_and_forget(case, "database_away")
        except Exception as error:
            log_without_values(error, "the hook", request_id=case.request_id)
            return self._skip_and_forget(case, "internal")
        if decision is not None:
            self._count(case, content, decision)
        return content

    async def _settle(self, case: Case) -> tuple[dict[str, Any], HookDecision | None]:
        """The answer, and the decision unless it was taken before."""
        decision_id = self._id(case)
        earlier = await self._earlier(case, decision_id)
        if earlier is not None:
            return earlier, None
        stopped = self._stopped()
        if stopped is not None:
            decision_id, decision = self._id_of_skip(case, stopped), _skipped(stopped)
        else:
            decision = self._decide(case, id_of("recommendation", decision_id))
        content = case.render(decision, decision_id)
        if self.journal is not None and case.keep:
            await self.journal.record(*self._records(case, decision, content))
        if case.key is not None and stopped is None:
            self._remember(decision_id, case.digest, content)
        return content, decision

    def _decide(self, case: Case, recommendation_id: str) -> HookDecision:
        begun_s = perf_counter()
        try:
            asked = case.asked()
        except SkipError as error:
            return skipped(error)
        found = decide(
            asked,
            self.policies,
            recommendation_id=recommendation_id,
            precedence=self.settings.precedence,
            models=self.models,
        )
        if found.content is not None:
            self.metrics.observe_ranking(perf_counter() - begun_s)
        return found

    def _count(self, case: Case, content: dict[str, Any], decision: HookDecision) -> None:
        self.metrics.count_decision(case.door, content["decision"], decision.reason)
        if decision.content is not None:
            self.metrics.count_outside(decision.content)

    def _stopped(self) -> HookReason | None:
        """Why nothing should be decided now."""
        if self.bundle_refused:
            return "bad_bundle"
        return "database_away" if self.journal is not None and self.journal.lost else None

    def _id(self, case: Case) -> str:
        """By the caller's key, else by all that the decision depends on."""
        project = case.caller.project or ""
        if case.key is not None:
            return id_of("key", case.door, project, case.key)
        knowledge = self.settings.mapping.sha256 + self.models.sha256
        return id_of("content", case.door, case.digest, self.policies.sha256, knowledge)

    def _id_of_skip(self, case: Case, reason: HookReason) -> str:
        # What stopped it passes: the same request must not find this skip on record later.
        return id_of(self._id(case), reason, str(self.now_ms()))

    async def _earlier(self, case: Case, decision_id: str) -> dict[str, Any] | None:
        """What the same key was answered with before, here or by another replica."""
        if case.key is None:
            return None
        found = self.settings.replies.get(decision_id)
        if found is None and self.journal is not None and not self.journal.lost:
            row = await run_in_threadpool(recorded_decision, self.database, decision_id)
            if row is not None:
                found = json.loads(row[0])["digest"], json.loads(row[1])
        if found is None:
            return None
        if found[0] != case.digest:
            raise RefusedError("idempotency_conflict", "this Idempotency-Key was used for another request")
        return found[1]

    def _remember(self, decision_id: str, digest: str, content: dict[str, Any]) -> None:
        self.settings.replies[decision_id] = digest, content
        if len(self.settings.replies) > MOST_REPLIES:
            self.settings.replies.popitem(last=False)

    def _skip_and_forget(self, case: Case, reason: HookReason, *, keep: bool = True) -> dict[str, Any]:
        """A skip that nobody waits for on its way into the record."""
        decision = _skipped(reason)
        content = case.render(decision, self._id_of_skip(case, reason))
        self._count(case, content, decision)
        if self.journal is not None and case.keep and keep:
            rows = self._records(case, decision, content)
            asyncio.ensure_future(self.journal.record(*rows)).add_done_callback(_forget)
        return content

    def _records(self, case: Case, decision: HookDecision, content: dict[str, Any]) -> list[Record]:
        now_ms = self.now_ms()
        records = [_decision_record(case, decision, content, now_ms=now_ms)]
        if decision.read is not None and decision.content is not None:
            records.append(recommendation_record(decision.read, decision.content, caller=case.caller, now_ms=now_ms))
        return records


def _skipped(reason: HookReason) -> HookDecision:
    return skipped(SkipError(reason, _MESSAGES[reason]))


def _decision_record(case: Case, decision: HookDecision, content: dict[str, Any], *, now_ms: int) -> Record:
    """What was understood, not what was sent: the request may hold anything."""
    understood: dict[str, Any] = {
        "digest": case.digest,
        "door": case.door,
        "pinned": decision.arguments.pinned,
        "sources": decision.arguments.sources,
        "max_model_len": decision.arguments.max_model_len,
    }
    return Record(
        "hook_decisions",
        {
            "id": content["decision_id"],
            "created_ms": now_ms,
            "caller": case.caller.caller,
            "project": case.caller.project,
            "endpoint": case.caller.endpoint,
            "mode": case.caller.mode,
            "decision": content["decision"],
            "reason": decision.reason,
            "recommendation_id": content["recommendation_id"],
            "request": to_json(understood).decode(),
            "answer": to_json(content).decode(),
        },
    )


def recordable_name(value: object) -> str | None:
    """The value if it may stand in the record as a name."""
    return value if isinstance(value, str) and NAME.fullmatch(value) and not holds_secret(value) else None


def _forget(task: "asyncio.Future[Any]") -> None:
    # Its exception is looked at, so that the event loop does not report it with its text.
    if not task.cancelled():
        task.exception()
