"""An evaluation that is made, not computed: every figure is chosen, so what a card has to say follows by hand."""

import gzip
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offline.artefacts import canonical_json, sha256_bytes
from offline.export import EVALUATION_FILE, seal
from offline.robust.forecast import RATIOS
from offline.robust.opening import scenarios_path
from offline.robust.protocol import ENGINE_DEFAULT, FIXED, ORACLE_ROBUST, ORACLE_SUFFIX, ROBUST, goals, judge
from offline.robust.report import EARLIER
from service.domain.manifest import CHANCES, MANIFEST_FILE, QUANTITIES, Manifest

ROOT = Path(__file__).parents[3]
REGISTRATION = "robust-9"
# Scenario by scenario: out of support; default kept though 0.3 could be had; 0.2 of 0.3; 0.1 worse than the default.
SCENARIOS: dict[str, list[Any]] = {
    "gain_of_the_best": [0.4, 0.3, 0.3, 0.0],
    "gain_of_the_choice": [0.0, 0.0, 0.2, -0.1],
    "chosen": [15, 15, 3, 4],
    "supported": [False, True, True, True],
}


def reliability(ece: float) -> dict[str, Any]:
    """Two of ten bins with something in them."""
    bins = [{"low": i / 10, "high": (i + 1) / 10, "n": 0, "predicted": None, "happened": None} for i in range(10)]
    bins[0] |= {"n": 5, "predicted": 0.05, "happened": 0.2}
    bins[9] |= {"n": 95, "predicted": 0.95, "happened": 0.9}
    return {"bins": bins, "ece": ece}


def _forecast() -> dict[str, Any]:
    own = {"error": 0.1, "error_p90": 0.5, "coverage": 0.9, "width": 3.0}
    ratio = {"error": 0.0234, "error_p90": 0.2, "coverage": 0.89, "width": 1.5}
    return dict.fromkeys(QUANTITIES, own) | dict.fromkeys(RATIOS, ratio)


def _policy(violation: float, goodput: float) -> dict[str, Any]:
    return {
        "slo_violation_rate": violation,
        "failure_rate": 0.0,
        "output_throughput_tps": 1200.0,
        "goodput_tps": goodput,
        "regret": 0.02,
        "slo_regret": 0.03,
        "ttft_p95_p95_ms": None,
        "n_no_feasible": 0,
        "coverage": 0.5,
    }


def _comparison(*, tail: float) -> dict[str, Any]:
    return {
        "slo_violation_rate": {"delta": -0.0625, "ci": [-0.08, -0.04]},
        "goodput_tps": {"delta": 50.0, "ci": [20.0, 80.0]},
        "ttft_tail_ratio": {"value": tail, "ci": [1.0, 1.5]},
        "unsafe_rate": {"value": 0.001, "upper95": 0.002},
        "worse_rate": {"value": 0.004, "upper95": 0.0075},
        "repaired_rate": {"value": 0.06},
        "coverage": 0.5,
    }


def table(*, tail: float) -> dict[str, Any]:
    """A test set of four scenarios. tail: the TTFT tail ratio, over 1 misses its goal."""
    cell = {"n": 4, "best": "s512-b8192-g0.85-p1", "best_share": 0.75, "flags_set": 0.5}
    return {
        "n": 4,
        "draws": 8,
        "gpu": "NVIDIA-B200",
        "in_support": 0.75,
        "policies": {
            FIXED: _policy(0.25, 900.0),
            ENGINE_DEFAULT: _policy(0.1875, 1000.0),
            ROBUST: _policy(0.125, 1050.0),
        },
        "comparisons": {f"{ROBUST}-vs-{base}": _comparison(tail=tail) for base in (ENGINE_DEFAULT, FIXED)},
        "risk": {
            ENGINE_DEFAULT: {
                "where set": {"value": 0.004, "upper95": 0.0075},
                "in support": {"value": 0.005, "upper95": 0.0085},
            },
            FIXED: {
                "where set": {"value": 0.003, "upper95": 0.0061},
                "in support": {"value": 0.013, "upper95": 0.0192},
            },
        },
        "by_stratum": {},
        "chosen": {},
        "worst": [
            {
                "scenario": 3,
                "model": "Qwen/Qwen3-8B",
                "prompt_tokens": 700,
                "max_new_tokens": 100,
                "shared_prefix_ratio": 0.5,
                "concurrency": 64,
                "chosen": "s32-b8192-g0.85-p1",
                "violations": [0.25, 0.125],
                "goodput_tps": [800.0, 900.0],
                "reason": "of 8 draws the default kept the SLO in 7: p95 TPOT over 60 ms in 1",
            }
        ],
        "where_it_matters": {"n": 2, "coverage": 0.5},
        "map": [
            {"prompt_tokens": [16, 127], "concurrency": [1, 3], "gain": 0.0, **cell},
            {"prompt_tokens": [512, 2047], "concurrency": [64, 255], "gain": 0.25, **cell},
        ],
        "reliability": dict(zip(CHANCES, map(reliability, (0.02, 0.0123, 0.0145)), strict=True)),
        "forecast": _forecast(),
        "coverage_risk": [
            {"risk_price": price, "coverage_where_it_matters": share, "worse_rate": worse}
            for price, share, worse in ((60.0, 0.2, 0.001), (9.0, 0.5, 0.004), (0.0, 0.9, 0.03))
        ],
    }


def oracle_table(*, violations: float, goodput: float) -> dict[str, Any]:
    """The oracle's table of such a set: our differences against the default; the oracle repairs 5 points of violations
    and loses 20 tokens/s."""

    def one(points: float, tps: float) -> dict[str, Any]:
        return {
            "slo_violation_rate": {"delta": points, "ci": [points - 0.01, points + 0.01]},
            "goodput_tps": {"delta": tps, "ci": [tps - 10, tps + 10]},
            "coverage": 0.5,
            "captured": {"slo_violation_rate": {"value": points / -0.05}, "goodput_tps": {"value": None}},
        }

    ours, best = f"{ROBUST}-vs-{ENGINE_DEFAULT}", f"{ORACLE_ROBUST}-vs-{ENGINE_DEFAULT}"
    policies = {ENGINE_DEFAULT: _policy(0.1875, 1000.0), ROBUST: _policy(0.125, 1050.0)}
    return {
        "n": 4,
        "draws": 8,
        "in_support": 0.75,
        "policies": policies | {ORACLE_ROBUST: _policy(0.1375, 980.0)},
        "comparisons": {ours: one(violations, goodput), best: one(-0.05, -20.0)},
        "where_it_matters": {"n": 2, "coverage": 0.5},
    }


def _calibration() -> dict[str, Any]:
    row = {"coverage": 0.4, "utility": 0.5, "worse": {"default": 0.004, "fixed": 0.002}, "upper95": 0.0294}
    bounds = {"default": 0.0294, "fixed": 0.0153}
    groups = {"families": {"n": 200, "worse": {"default": 2, "fixed": 0}, "upper95": bounds}}
    dev = {
        "utility": 0.4,
        "violations_vs_default": 0.0,
        "goodput_vs_default_tps": 0.0,
        "worse_rate": 0.0,
        "coverage": 0.0,
    }
    return {
        "rule": {
            "margin": 0.01,
            "risk_price": 9.0,
            "fixed_price": 2.25,
            "threshold": 0.8,
            "near_tie": 0.0,
            "low_utilisation_gain": 0.04,
        },
        "rows": [{"risk_price": 60.0, **row, "by_group": groups}, {"risk_price": 9.0, **row, "by_group": groups}],
        "lists": {"trained": 300, "calibration": 100, "dev": 80},
        "dev": {ENGINE_DEFAULT: dev},
        "reliability": dict(zip(CHANCES, map(reliability, (0.01, 0.011, 0.012)), strict=True)),
        "forecast": _forecast(),
    }


def evaluation(*, variant: str = "typical", tails: dict[str, float] | None = None) -> dict[str, Any]:
    """evaluation.json with a table for each set of `tails`, judged by the goals of those sets about tails and risk."""
    tables = {name: table(tail=tail) for name, tail in (tails or {}).items()}
    verdicts = judged(tables, ("ttft_tail_ratio", "worse"))
    return {
        "schema_version": 2,
        "registration": {"name": REGISTRATION, "sha256": "9" * 64},
        "evidence": "simulated",
        "variant": variant,
        "calibration": _calibration(),
        "earlier_ablation": None,
        "opened": dict.fromkeys(tables, "1" * 64),
        "not_opened": [],
        "goals": verdicts,
        "explanation": {},
        "test_sets": tables,
    }


def judged(tables: dict[str, Any], figures: tuple[str, ...]) -> list[dict[str, Any]]:
    """The verdicts on the goals about some figures against the engine's default."""
    found = []
    for goal in goals():
        if goal.test_set in tables and goal.base == ENGINE_DEFAULT and goal.figure in figures:
            value, met = judge(goal, tables)
            found.append({**asdict(goal), "value": value, "met": met})
    return found


def manifest() -> Manifest:
    """That of the committed bundle for typical workloads."""
    path = ROOT / "service" / "bundles" / "dense-b200-robust" / MANIFEST_FILE
    return Manifest.from_json(json.loads(path.read_text()))


def write_scenarios(content: dict[str, Any]) -> None:
    """The record of every scenario of every set of an evaluation, which then names its sha256. Below the present
    folder, with the records of the registration before."""
    for name, one in content["test_sets"].items():
        if name.endswith(ORACLE_SUFFIX):
            continue
        path = scenarios_path(REGISTRATION, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        compressed = gzip.compress(canonical_json(SCENARIOS), mtime=0)
        path.write_bytes(compressed)
        one["scenarios_sha256"] = sha256_bytes(compressed)
    folder = scenarios_path(REGISTRATION, "T2").parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / "offline" / "registrations" / "robust").glob(f"{EARLIER}*.json"):
        shutil.copy(path, folder)


def write_bundle(folder: Path, content: dict[str, Any]) -> Path:
    """The committed bundle's graphs under a made evaluation, with a picture of an earlier card."""
    shutil.copytree(ROOT / "service" / "bundles" / "dense-b200-robust", folder)
    (folder / "of_an_earlier_card.png").write_bytes(b"old")
    (folder / EVALUATION_FILE).write_bytes(canonical_json(content))
    seal(folder, manifest())
    return folder
