"""The member `expected` of an answer: numbers of what is recommended and of the engine's default."""

from collections.abc import Mapping
from typing import Any

from service.domain.manifest import Manifest
from service.domain.slo import Slo
from service.expectation import Change, Expected, Range
from service.forecast_error import apart
from service.recommend import Query, Recommendation


def expected_json(
    query: Query, found: Recommendation, manifest: Manifest, errors: Mapping[str, float]
) -> dict[str, Any] | None:
    """None where nothing is estimated: outside of support, and of bundles that carry no estimator. errors: of that, by
    quantity."""
    expectation, part = found.expectation, manifest.estimator
    if expectation is None or part is None:
        return None
    return {
        "evidence": manifest.evidence,
        "recommended": _side(expectation.recommended),
        "declined": _side(expectation.declined),
        "engine_default": _side(expectation.engine_default),
        "change": _change(expectation.change),
        "told_apart": _named(apart(expectation, errors)),
        "slo": _limits(query.slo),
        "slo_trained_for": _limits(manifest.slo),
        "band": {"from_quantile": part.levels[0], "to_quantile": part.levels[-1]},
    }


def _side(one: Expected | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "config_id": one.config_id,
        "output_throughput_tps": _range(one.throughput_tps),
        "ttft_p95_ms": _range(one.ttft_p95_ms),
        "tpot_p95_ms": _range(one.tpot_p95_ms),
        "slo_met_chance": one.slo_met_chance,
        "meets_slo": {"max_p95_ttft_ms": one.meets_ttft, "max_p95_tpot_ms": one.meets_tpot},
        "regime": one.regime,
        "simulator_error_unknown": dict(one.error_unknown),
    }


def _change(found: Change | None) -> dict[str, Any] | None:
    return None if found is None else _named({name: _range(one) for name, one in found._asdict().items()})


def _named(by_quantity: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As answers call the quantities."""
    if by_quantity is None:
        return None
    return {"output_throughput_tps" if name == "throughput_tps" else name: one for name, one in by_quantity.items()}


def _range(found: Range | None) -> dict[str, float] | None:
    return None if found is None else {"value": found[0], "low": found[1], "high": found[2]}


def _limits(slo: Slo) -> dict[str, float]:
    # asdict copies deeply, which costs more than all that stands around it.
    return {name: getattr(slo, name) for name in Slo.__slots__}
