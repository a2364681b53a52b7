"""The front matter of a model card: what Hugging Face's hub reads, every value from the evaluation."""

from typing import Any

import yaml

from offline.robust.forecast import RATIOS
from offline.robust.protocol import BASES, ENGINE_DEFAULT, FIXED, ROBUST
from offline.robust.report import CHANCE_NAMES
from service.domain.manifest import QUANTITIES, Manifest

_POLICY_METRICS = {
    "slo_violation_rate": "SLO violation rate",
    "goodput_tps": "goodput, tokens/s",
    "output_throughput_tps": "output throughput, tokens/s",
    "slo_regret": "slo_regret",
}


def front_matter(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """Between its two rules. Names of results say the evidence class, for a hub shows them without the card."""
    content = {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "onnx",
        "pipeline_tag": "tabular-regression",
        "tags": [
            "vllm",
            "llm-serving",
            "configuration",
            "learning-to-rank",
            "onnx",
            f"evidence-{manifest.evidence}",
            manifest.gpu.lower(),
        ],
        "metrics": [*_POLICY_METRICS, "worse_rate", "expected_calibration_error"],
        "model-index": [{"name": manifest.name, "results": _results(manifest, evaluation)}],
    }
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{text}---\n"


def _results(manifest: Manifest, evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    sets = {"calibration split, on which the rule was chosen": ("calibration", evaluation["calibration"])}
    sets |= {f"{name}, {table['n']} scenarios": (name, table) for name, table in evaluation["test_sets"].items()}
    return [
        {
            "task": {"type": "tabular-regression", "name": f"ranking vLLM configurations ({manifest.evidence})"},
            "dataset": {"type": "memorypolicy-lists", "name": f"{name} ({manifest.evidence})", "split": split},
            "metrics": metrics,
        }
        for name, (split, table) in sets.items()
        if (metrics := _metrics(manifest, table))
    ]


def _metrics(manifest: Manifest, table: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[tuple[str, str, Any]] = []
    policies = table.get("policies", {})
    for metric, label in _POLICY_METRICS.items():
        found += [
            (metric, f"{label}, {policy}", policies[policy][metric])
            for policy in (ROBUST, *BASES)
            if policy in policies
        ]
    worse = table.get("comparisons", {}).get(f"{ROBUST}-vs-{ENGINE_DEFAULT}", {}).get("worse_rate")
    if worse:
        found.append(("worse_rate", "draws worse than the engine's default", worse["value"]))
        found.append(("worse_rate", "draws worse than the engine's default, 95 % bound", worse["upper95"]))
    for what, one in table.get("risk", {}).get(FIXED, {}).items():
        found.append(("worse_rate", f"draws worse than {FIXED}, {what}", one["value"]))
        found.append(("worse_rate", f"draws worse than {FIXED}, {what}, 95 % bound", one["upper95"]))
    for chance, label in CHANCE_NAMES.items():
        if "reliability" in table:
            ece = table["reliability"][chance]["ece"]
            found.append(("expected_calibration_error", f"expected calibration error, {label}", ece))
    for quantity in (*QUANTITIES, *RATIOS):
        if "forecast" in table:
            error = table["forecast"][quantity]["error"]
            found.append(("median_relative_error", f"median relative error, {quantity}", error))
    return [
        {"type": kind, "name": f"{label} ({manifest.evidence})", "value": value}
        for kind, label, value in found
        if value is not None
    ]
