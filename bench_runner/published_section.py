"""The fit to the published dev table and the opened test table as a section of Markdown. Nothing is simulated here."""

from collections.abc import Mapping
from typing import Any

from bench_runner.published_cells import RULES
from bench_runner.published_fit import KEPT, dev_prompt_ms

_RULE_TEXT = {
    "completed": "every request that completes in the window counts (ours)",
    "sent-after-warm-up": "of those, only requests sent after the warm-up count",
}
# What a table's numbers were asked to explain: (number, which table).
_QUESTIONS = (
    ("FIXED violation", "dev", "FIXED violates the SLO in 9 of 16 dev scenarios"),
    ("FIXED failure", "dev", "FIXED fails in 6 of 16 dev scenarios"),
    ("FIXED regret", "dev", "FIXED's regret on dev is 0.194"),
    ("FIXED ttft_p95_s", "test", "FIXED's p95 TTFT on test is 10.8 s"),
    ("FIXED tpot_p95_ms", "test", "FIXED's p95 TPOT on test is about 7 ms"),
    ("HEUR throughput_ratio", "test", "HEUR has 0.765 of FIXED's throughput on test where both meet the SLO"),
)


def section(fit: Mapping[str, Any], opened: Mapping[str, Any], *, plot: str) -> str:
    """Markdown, from a heading of level 2 on. plot: the picture's name relative to it."""
    design = fit["design"]
    lines = [
        "## The published B200 tables",
        "",
        f"Simulated beside published numbers ({fit['table_source']}). Five times of host and front end were fitted to "
        f"the dev table of FIXED and HEUR alone: {design['settings']} settings, {design['first_round']} of them "
        "spread over the ranges below (a Latin hypercube, logarithmic), the others around the best. *Misfit* is the "
        "sum over the table's eight numbers of ((simulated − published) ÷ tolerance)²; a tolerance is one scenario for "
        "a rate, 5 % for a goodput, 0.02 for a regret. The table does not say which requests count, so two rules were "
        "looked at. The test table was compared once, after the fit had been recorded "
        f"(sha256 {opened['fit_sha256'][:12]}).",
        "",
        f"![Least misfit by parameter; dotted: the limit of the interval]({plot})",
        "",
    ]
    for rule in RULES:
        lines += _fit_lines(fit, rule)
    lines += _interval_lines(fit)
    lines += _test_lines(opened)
    lines += _exploratory_lines(opened)
    return "\n".join([*lines, *_question_lines(fit, opened), ""])


def _fit_lines(fit: Mapping[str, Any], rule: str) -> list[str]:
    found, assumed = fit["rules"][rule], fit["assumed"]["metrics"][rule]
    misfit, total = found["misfit"], fit["design"]["settings"]
    lines = [
        f"### Dev, where {_RULE_TEXT[rule]}",
        "",
        f"{found['settings_with_every_number_within']} of {total} settings give all eight numbers within tolerance; "
        f"the most at once is {found['most_numbers_within_at_once']}. Least misfit {_number(misfit['least'])}, of the "
        f"assumed setting {_number(misfit['assumed'])}.",
        "",
        "| | published | assumed setting | best setting | settings within tolerance | random numbers alone, ± |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, value in fit["table"].items():
        cells = [value, assumed[name], found["best_metrics"][name]]
        within, noise = found["settings_within_by_number"][name], fit["noise"][rule][name]
        lines.append(f"| {name} | {' | '.join(map(_number, cells))} | {within} | {_number(noise)} |")
    return [*lines, ""]


def _interval_lines(fit: Mapping[str, Any]) -> list[str]:
    head = " | ".join(f"best, {rule} | interval" for rule in RULES)
    lines = [
        "### What the dev table says about each time",
        "",
        "An interval holds the values of all settings whose misfit is within the least plus 3.84, widened by the least "
        "misfit per degree of freedom (Birge's factor), because no setting meets the table. "
        + " ".join(f"Under `{rule}` {fit['rules'][rule]['settings_inside']} settings are inside." for rule in RULES)
        + " An interval that spans a range says that the table does not fix that time.",
        "",
        f"| milliseconds | range | assumed | {head} |",
        "| --- | --- | ---: " + "| ---: | --- " * len(RULES) + "|",
    ]
    for name, bounds in fit["ranges"].items():
        cells = [name, _span(bounds), _number(fit["assumed"]["values"][name])]
        for rule in RULES:
            cells += [_number(fit["rules"][rule]["best"][name]), _span(fit["rules"][rule]["interval"][name])]
        lines.append(f"| {' | '.join(cells)} |")
    cells = ["request_ms + 12,000 · prompt_token_ms", "", _number(dev_prompt_ms(fit["assumed"]["values"]))]
    for rule in RULES:
        derived = fit["rules"][rule]["dev_prompt_ms"]
        cells += [_number(derived["best"]), _span(derived["interval"])]
    lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "The last row is the serial work on one prompt of the dev table, all of which have 12,000 tokens: the table "
        "sees that sum and not its parts.",
        "",
    ]


def _test_lines(opened: Mapping[str, Any]) -> list[str]:
    head = " | ".join(f"best, {rule} | {KEPT} best settings: least, median, most" for rule in RULES)
    lines = [
        "### Test, compared once",
        "",
        f"| | published | assumed, {RULES[0]} | {head} |",
        "| --- | ---: | ---: " + "| ---: | --- " * len(RULES) + "|",
    ]
    for name, value in opened["table"].items():
        cells = [name, _number(value), _number(opened["rules"][RULES[0]]["assumed"][name])]
        for rule in RULES:
            found = opened["rules"][rule]
            spread = found["kept"][name]
            cells += [_number(found["best"][name]), "–" if spread is None else ", ".join(map(_number, spread))]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _exploratory_lines(opened: Mapping[str, Any]) -> list[str]:
    names = ("FIXED violation", "FIXED throughput_tps", "FIXED goodput_tps", "FIXED ttft_p95_s", "FIXED tpot_p95_ms",
             "HEUR violation", "HEUR throughput_tps", "HEUR goodput_tps")  # fmt: skip
    lines = [
        "### Exploratory: a serial front end",
        "",
        "That one process in front of the engine makes the published TTFT tail was read off the test table, so nothing "
        f"here confirms it. Every other time is as assumed; rule `{RULES[0]}`.",
        "",
        f"| | {' | '.join(names)} |",
        "| --- " + "| ---: " * len(names) + "|",
        f"| published | {' | '.join(_number(opened['table'][name]) for name in names)} |",
        f"| assumed | {' | '.join(_number(opened['rules'][RULES[0]]['assumed'][name]) for name in names)} |",
    ]
    for what, by_rule in opened["exploratory"].items():
        lines.append(f"| {what} | {' | '.join(_number(by_rule[RULES[0]][name]) for name in names)} |")
    return [*lines, ""]


def _question_lines(fit: Mapping[str, Any], opened: Mapping[str, Any]) -> list[str]:
    """Per question: the published number beside what every kind of setting gives."""
    lines = ["### What this explains and what it does not", ""]
    for name, table, what in _QUESTIONS:
        parts = []
        for rule in RULES:
            found = fit["rules"][rule]
            if table == "dev":
                parts.append(
                    f"`{rule}`: best setting {_number(found['best_metrics'][name])}, "
                    f"{found['settings_within_by_number'][name]} of {fit['design']['settings']} settings within "
                    "tolerance"
                )
            else:
                spread = opened["rules"][rule]["kept"][name]
                inside = "none" if spread is None else f"{_number(spread[0])} to {_number(spread[2])}"
                best = opened["rules"][rule]["best"][name]
                parts.append(f"`{rule}`: best setting {_number(best)}, the {KEPT} best settings {inside}")
        if table == "test":
            found = [by_rule[RULES[0]][name] for by_rule in opened["exploratory"].values()]
            known = [value for value in found if value is not None]
            parts.append(f"exploratory settings {_number(min(known))} to {_number(max(known))}" if known else "")
        published = (fit if table == "dev" else opened)["table"][name]
        lines.append(f"- {what} (published {_number(published)}). {'; '.join(parts)}.")
    return [*lines, "", *_conclusion_lines(fit)]


def _conclusion_lines(fit: Mapping[str, Any]) -> list[str]:
    """What the dev table alone says about a serial stage, and what follows for the assumed settings: nothing."""
    parts = []
    for rule in RULES:
        found = fit["rules"][rule]["dev_prompt_ms"]
        parts.append(f"under `{rule}` {_number(found['best'])} ms [{_span(found['interval'])}]")
    return [
        "Without the test table, the settings closest to dev have more serial work on one prompt than the "
        f"{_number(dev_prompt_ms(fit['assumed']['values']))} ms that are assumed: {'; '.join(parts)}. The intervals "
        "are too wide to establish it, and a setting that lengthens the TTFT tail takes throughput away that the "
        "published table has. The assumed settings therefore stay as they are; which of them matters for a choice is "
        "the next section's question.",
    ]


def _span(bounds: list[float]) -> str:
    return f"{_number(bounds[0])} to {_number(bounds[1])}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
