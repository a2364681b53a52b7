"""A refusal to change anything, for an enumerated reason."""

from typing import Literal

from service.domain.errors import MemoryPolicyError

HookReason = Literal[
    "unsupported_workload_type",
    "unsupported_spec",
    "managed_by_gitops",
    "not_one_gpu",
    "unsupported_engine",
    "unparsable_args",
    "user_config_file",
    "secret_in_args",
    "unsupported_args",
    "conflicting_args",
    "all_pinned",
    "unknown_gpu",
    "unknown_engine_version",
    "unknown_model",
    "unsupported_model",
    "no_workload",
    "workload_exceeds_context",
    "no_candidate_matches_fixed",
    "only_engine_default_starts",
    "none_feasible",
    "out_of_support",
    "no_better_than_engine_default",
    "not_safe_enough",
    "engine_default_meets_slo",
    "bad_bundle",
    "database_away",
    "audit_full",
    "deadline",
    "internal",
]


class SkipError(MemoryPolicyError):
    """Nothing is changed, for an enumerated reason. The message repeats no value of the request."""

    def __init__(self, reason: HookReason, message: str) -> None:
        self.reason: HookReason = reason
        super().__init__(message)
