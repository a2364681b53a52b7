"""A bundle's model card in the form of Hugging Face's: what is missed comes first, and every table is in it."""

from typing import Any

from offline.conclusions import number
from offline.robust import card_prose as prose
from offline.robust.card_sets import at_most, set_tables
from offline.robust.card_table import markdown_table
from offline.robust.card_training import estimator_text, explanation_text, rule_text, training_text
from offline.robust.front_matter import front_matter
from offline.robust.losses import Loss, losses_of
from offline.robust.pictures import COVERAGE_RISK, LOSSES, MAP_BEST, MAP_GAIN, REGRET, RELIABILITY
from offline.robust.protocol import FIXED, HYPOTHESES, METRICS, ORACLE_SUFFIX, ROBUST, goals
from offline.robust.report import EARLIER, Report

_CAPTIONS = {
    REGRET: "Regret of expected utility by scenario, against the best in hindsight over the judged draws.",
    COVERAGE_RISK: "Coverage against both risks; the star is the bundle's price of risk, the dashed line the goal of "
    "1 %.",
    RELIABILITY: "Predicted chances against what happened.",
    MAP_BEST: "The best configuration in hindsight over prompt × concurrency; of equals the first candidate.",
    MAP_GAIN: "What the best gains over the engine's default, over prompt × concurrency.",
    LOSSES: "Utility lost against the best in hindsight, by reason.",
}
_POLICIES_CAPTION = "Violations and goodput of every policy against the engine's default, with 95 % intervals."


def render_card(report: Report, pictures: tuple[str, ...]) -> str:
    """The whole card. pictures: file names in the bundle, in the order in which they are shown."""
    manifest, evaluation = report.manifest, report.evaluation
    sections = {
        "Model Details": prose.details(manifest, evaluation),
        "Uses": prose.uses(manifest),
        "Bias, Risks, and Limitations": prose.limits(manifest),
        "How to Get Started with the Model": prose.getting_started(manifest),
        "Training Details": "### Training Data\n\n"
        + training_text(manifest, evaluation)
        + "\n\n### Training Procedure\n\n"
        + prose.procedure(manifest, evaluation)
        + "\n\n#### When flags are recommended\n\n"
        + rule_text(manifest, evaluation),
        "Evaluation": _evaluation(report, pictures),
        "Environmental Impact": prose.environment(manifest, evaluation),
        "Technical Specifications": prose.specification(manifest),
        "Citation": prose.citation(manifest),
    }
    parts = [f"# {manifest.name}", verdict(evaluation), *against_fixed(evaluation), prose.summary(manifest)]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    return front_matter(manifest, evaluation) + "\n" + "\n\n".join(parts) + "\n"


def verdict(evaluation: dict[str, Any]) -> str:
    """What the card says first: what is missed, before what is met, and what is not known yet."""
    if evaluation["registration"] is None:
        return "**For trying out: these weights are registered nowhere and were tested on nothing.**"
    judged, closed = evaluation["goals"], evaluation["not_opened"]
    missed = [goal for goal in judged if not goal["met"]]
    parts = []
    if missed:
        each = "; ".join(
            f"`{goal['name']}` {number(goal['value'])}, wanted {goal['op']} {goal['target']:g}" for goal in missed
        )
        verb = "is" if len(missed) == 1 else "are"
        parts.append(f"**{len(missed)} of {len(judged)} goals {verb} missed:** {each}.")
    elif judged:
        parts.append(f"All {len(judged)} goals that were judged are met.")
    if closed:
        parts.append(f"**Test sets that are still closed: {', '.join(closed)}**; nothing is claimed about them.")
    else:
        parts.append("Every test set was opened once.")
    return " ".join(parts)


def against_fixed(evaluation: dict[str, Any]) -> list[str]:
    """What the answers as a whole risk against candidate 0, of each set that was opened."""
    figures = [
        f"{name} {at_most(table['risk'][FIXED]['in support'])}"
        for name, table in evaluation["test_sets"].items()
        if table.get("risk") and table["risk"][FIXED]["in support"]["value"] is not None
    ]
    if not figures:
        return []
    return [
        f"Draws in support that are worse with these answers than with {FIXED}, candidate 0, those to set nothing "
        f"included: {', '.join(figures)}."
    ]


def _evaluation(report: Report, pictures: tuple[str, ...]) -> str:
    evaluation = report.evaluation
    shown = {name: _picture(name) for name in pictures}
    policies = "\n\n".join(shown[name] for name in pictures if name not in _CAPTIONS)
    parts = [
        "### Testing Data, Factors & Metrics",
        _protocol(evaluation),
        "### Results",
        "#### Goals",
        _goals(evaluation),
        policies,
        shown.get(REGRET, ""),
    ]
    if report.missed_before:
        parts += ["#### What was missed before", _missed_before(report)]
    if report.scenarios:
        parts += ["#### Where it loses and why", _losses(report), shown.get(LOSSES, "")]
        parts += [shown.get(MAP_BEST, ""), shown.get(MAP_GAIN, "")]
    if evaluation["explanation"]:
        parts += ["#### What breaks the SLO", explanation_text(evaluation)]
    parts += ["#### Coverage and risk", shown.get(COVERAGE_RISK, ""), "#### The estimator"]
    parts += [estimator_text(report.manifest, evaluation), shown.get(RELIABILITY, ""), *set_tables(evaluation)]
    return "\n\n".join(part for part in parts if part)


def _picture(name: str) -> str:
    return f"![{_CAPTIONS.get(name, _POLICIES_CAPTION)}]({name})"


def _protocol(evaluation: dict[str, Any]) -> str:
    registration = evaluation["registration"]
    registered = "Nothing is registered."
    if registration is not None:
        registered = (
            f"Registration `{registration['name']}` (sha256 `{registration['sha256']}`) fixed sets, models, rules, "
            "goals and the analysis code before a test list was simulated; each set was opened once, and its table is "
            "kept in `offline/registrations/robust/`."
        )
    hypotheses = "\n".join(f"- {one}" for one in HYPOTHESES)
    return f"{registered}\n\n{hypotheses}\n\nMetrics:\n\n" + "\n".join(f"- {one}" for one in METRICS)


def _goals(evaluation: dict[str, Any]) -> str:
    if not evaluation["goals"]:
        return "No test set has been opened, so no goal is judged."
    # What is missed stands first; otherwise the protocol's order.
    judged = sorted(evaluation["goals"], key=lambda goal: goal["met"])
    rows = [
        [
            goal["name"],
            goal["figure"],
            goal["end"],
            number(goal["value"]),
            f"{goal['op']} {goal['target']:g}",
            _verdict(goal),
        ]
        for goal in judged
    ]
    return markdown_table(["goal", "figure", "of", "value", "target", "verdict"], rows)


def _missed_before(report: Report) -> str:
    judged = {goal["name"]: goal for goal in report.evaluation["goals"]}
    asked = {goal.name: goal for goal in goals()}
    rows = []
    for goal in report.missed_before:
        # A captured share was undefined, so missed, where the oracle gains nothing; kept is defined everywhere.
        successor = asked.get(goal["name"]) or asked.get(goal["name"].replace("-captured-", "-kept-"))
        present = judged.get(successor.name) if successor else None
        rows.append(
            [
                f"{goal['name']}, {goal['test_set']}",
                f"{goal['op']} {goal['target']:g}",
                number(goal["value"]),
                number(goal["same_now"]) if "same_now" in goal else "",
                f"{successor.name}, {successor.test_set}: {successor.op} {successor.target:g}" if successor else "none",
                "" if present is None else number(present["value"]),
                "not judged" if present is None else _verdict(present),
            ]
        )
    header = ["goal, set", "target", f"under {EARLIER}", "same figure now", "goal now, set", "value", "verdict now"]
    return (
        f"Goals that the ranker before this one missed on its own test sets, under registration `{EARLIER}`; the same "
        "figure here, on fresh sets of these names; and the goal that asks for it now. Where a captured share was "
        "asked for, what is kept of the oracle's gain is now, and coverage is judged by the oracle's draws wherever "
        f"there are any:\n\n{markdown_table(header, rows)}"
    )


def _verdict(goal: dict[str, Any]) -> str:
    return "met" if goal["met"] else "**missed**"


def _losses(report: Report) -> str:
    names = [name for name in report.evaluation["test_sets"] if name in report.scenarios]
    rows = [
        [name, reason, f"{100 * one.scenarios:.1f}", f"{one.lost:.4f}", f"{100 * one.share:.0f}"]
        for name in names
        if not name.endswith(ORACLE_SUFFIX)
        for reason, one in _sorted(losses_of(report.scenarios[name]))
    ]
    return (
        f"Expected utility that {ROBUST} loses against the best configuration in hindsight over the same draws, luck "
        "of the draws included: percent of the scenarios that lose for that reason, mean loss over all scenarios, "
        "percent of everything lost. T2's includes what lies beyond the hull. The ten worst scenarios of each set, "
        "with the limit that was broken, are in its table below.\n\n"
        + markdown_table(["set", "instead", "scenarios %", "lost", "share %"], rows)
    )


def _sorted(losses: dict[str, Loss]) -> list[tuple[str, Loss]]:
    return sorted(losses.items(), key=lambda item: -item[1].lost)
