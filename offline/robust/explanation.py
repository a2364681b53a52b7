"""Which limit of the SLO is broken under which policy, and what happens to first tokens where violations are repaired.

Read off sets that were opened; it explains figures, decides none, and is no part of what a registration fixes.
"""

from typing import Any

import numpy as np

from offline.metrics import percentile
from offline.robust.choices import Choices
from offline.robust.lists import Floats
from offline.robust.measures import TAIL_SHARE, Picked, pick
from offline.robust.panel import Panel
from offline.robust.protocol import ENGINE_DEFAULT, ROBUST
from service.domain.slo import REFERENCE_SLO


def explain(panel: Panel, choices: dict[str, Choices]) -> dict[str, Any]:
    """Shares of draws by what broke them, and TTFT where both policies meet the SLO and where ours repairs it."""
    ours, base = pick(panel, choices[ROBUST]), pick(panel, choices[ENGINE_DEFAULT])
    both, repaired = ours.met & base.met, ours.met & ~base.met & ~base.failed
    return {
        "broken": {name: _broken(panel, one) for name, one in ((ENGINE_DEFAULT, base), (ROBUST, ours))},
        "ttft_tail_where_both_meet_ms": {ENGINE_DEFAULT: _tail(base, both), ROBUST: _tail(ours, both)},
        "ttft_median_where_repaired_ms": {
            ENGINE_DEFAULT: float(np.median(base.ttft_p95_ms[repaired])) if repaired.any() else None,
            ROBUST: float(np.median(ours.ttft_p95_ms[repaired])) if repaired.any() else None,
        },
        "repaired_by_tpot_alone": float((repaired & (base.ttft_p95_ms <= REFERENCE_SLO.max_p95_ttft_ms)).mean()),
        "repaired": float(repaired.mean()),
    }


def _broken(panel: Panel, picked: Picked) -> dict[str, float]:
    tpot_ms: Floats = panel.judged.tpot_p95_ms[np.arange(len(panel)), :, picked.choices]
    late = (picked.ttft_p95_ms > REFERENCE_SLO.max_p95_ttft_ms) & ~picked.failed
    slow = (tpot_ms > REFERENCE_SLO.max_p95_tpot_ms) & ~picked.failed
    return {
        "failed": float(picked.failed.mean()),
        "TTFT alone": float((late & ~slow).mean()),
        "TPOT alone": float((slow & ~late).mean()),
        "both": float((late & slow).mean()),
    }


def _tail(picked: Picked, where: Any) -> float | None:
    return float(percentile(picked.ttft_p95_ms[where], TAIL_SHARE)) if where.any() else None
