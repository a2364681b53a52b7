"""An answer -> the record of it. What was asked is kept as it was understood, not as it was sent.

So a config.json, which is foreign text of any size, leaves only the numbers that were read from it, and nothing that
somebody put beside them reaches the database.
"""

from typing import Any

from pydantic_core import to_json

from service.api.caller import Caller
from service.api.query import ReadQuery
from service.db.record import Record
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES, encode_state
from service.domain.scenario import Workload
from service.domain.slo import Slo
from service.load_range import LoadRange

# What the policy and the candidates' list already say; the rest of an answer is kept.
_DERIVED = frozenset(
    {
        *("recommendation_id", "ranked", "summary", "command", "engine_default", "engine_default_capacity", "memory"),
        *("policy", "assumed", "renders", "range", "holds_until", "explanation"),
    }
)


def recommendation_record(read: ReadQuery, content: dict[str, Any], *, caller: Caller, now_ms: int) -> Record:
    """The row of an answer of POST /v1/recommend."""
    policy = content["policy"]
    return Record(
        "recommendations",
        {
            "id": content["recommendation_id"],
            "created_ms": now_ms,
            "caller": caller.caller,
            "project": caller.project,
            "endpoint": caller.endpoint,
            "mode": caller.mode,
            "model": read.query.scenario.model.name,
            "gpu": read.query.gpu.name,
            "decision": content["decision"],
            "request": _text(_request(read)),
            "features": _text(_features(read)),
            "answer": _text(_answer(content)),
            "policy_version": policy["version"],
            "policy_sha256": policy["sha256"],
        },
    )


def _request(read: ReadQuery) -> dict[str, Any]:
    query = read.query
    model = query.scenario.model
    return {
        "model": {
            "name": model.name,
            "weight_gb": model.weight_gb,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "max_model_len": model.max_model_len,
        },
        "workload": _members(query.scenario.workload),
        **({} if query.load_range is None else {"workload_range": _members(query.load_range)}),
        **({} if query.longest is None else {"longest_request_tokens": query.request_tokens}),
        "confidence": read.confidence,
        "gpu_shared": query.gpu_shared,
        "gpu": query.gpu.name,
        "gpu_memory_gib": query.gpu.memory_gib,
        "engine_version": query.engine_version,
        "slo": _members(query.slo),
        "fixed": dict(query.fixed),
        "chunked_prefill": query.chunked_prefill,
        "assumed": read.assumed,
    }


def _members(value: Workload | LoadRange | Slo) -> dict[str, Any]:
    # asdict copies deeply, which costs more than the rest of the record.
    return {name: getattr(value, name) for name in value.__slots__}


def _features(read: ReadQuery) -> dict[str, float]:
    """The 8 of the question by name; the other 4 are those of the candidates, the same in every answer."""
    values = encode_state(read.query.scenario)
    return dict(zip(FEATURE_NAMES[:NUM_STATE_FEATURES], values, strict=True))


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in content.items() if name not in _DERIVED}
    kept["ranked"] = [[row["config_id"], row["score"], row["feasible"]] for row in content["ranked"]]
    return kept


def _text(content: dict[str, Any]) -> str:
    return to_json(content).decode()
