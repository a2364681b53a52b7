"""Stage 5: the model card, every figure of it from the manifest, the evaluation or the published tables."""

from typing import Any

from offline import published
from offline.card_text import limits, provenance, reproduction, room
from offline.comparison import TTFT_TAIL_RATIO
from offline.conclusions import (
    DEV_CONCLUSIONS,
    FOUR,
    TEST_CONCLUSIONS,
    Conclusion,
    interval_text,
    levels,
    number,
    paragraph,
)
from offline.evaluate import DEV_SET, TEST_SET
from offline.policies import ENGINE_DEFAULT, FIXED, MLP, POLICIES
from service.domain.manifest import Manifest

_LABELS = {
    "slo_violation_rate": "SLO violation",
    "failure_rate": "failure",
    "output_throughput_tps": "throughput tok/s",
    "goodput_tps": "goodput tok/s",
    "regret": "regret",
    "slo_regret": "slo_regret",
    "throughput_ratio_both_meet_slo": "throughput ÷ FIXED's where both meet the SLO",
    "ttft_p95_p95_ms": "p95 TTFT ms, failures unbounded",
    "ttft_p95_p95_ms_without_failures": "p95 TTFT ms, failures left out",
    "tpot_p95_p95_ms_without_failures": "p95 TPOT ms, failures left out",
    "n_failed": "failed",
    "n_no_feasible": "no candidate meets the SLO",
}
_UNBOUNDED = "∞"
_NOTHING = "–"


def render_card(manifest: Manifest, evaluation: dict[str, Any], *, plots: tuple[str, ...]) -> str:
    """The text of MODEL_CARD.md. plots: file names in the bundle, each named after its test set."""
    parts = [
        f"# {manifest.name}: a ranker of vLLM start-up configurations, evidence: {manifest.evidence}",
        _selection(evaluation),
        provenance(manifest),
        _dev_section(manifest, evaluation, plots),
        _test_section(manifest, evaluation, plots),
        _training(manifest),
        limits(manifest),
        reproduction(evaluation),
    ]
    return "\n\n".join(parts) + "\n"


def _selection(evaluation: dict[str, Any]) -> str:
    selected = evaluation["selected_policy"]
    rule = "by SLO violation rate, then regret, of MLP and LightGBM"
    if selected == MLP:
        return f"Dev selects the **MLP** ({rule}); it is the model in this bundle."
    return (
        f"**Dev selects {selected}, not the MLP that this bundle ships** ({rule}). {selected} is the headline on "
        "test; the bundle ships the MLP because the service serves one small network and no trees."
    )


def _dev_section(manifest: Manifest, evaluation: dict[str, Any], plots: tuple[str, ...]) -> str:
    test_set = evaluation["test_sets"][DEV_SET]
    return "\n\n".join(
        [
            f"## Dev: {test_set['n']} scenarios, {manifest.evidence}",
            "Dev chose the grid point and the policy, so these figures are biased in their favour.",
            *_tables(test_set, published.DEV, DEV_CONCLUSIONS, manifest),
            *_images(DEV_SET, plots),
        ]
    )


def _test_section(manifest: Manifest, evaluation: dict[str, Any], plots: tuple[str, ...]) -> str:
    test_set = evaluation["test_sets"].get(TEST_SET)
    registration = evaluation["registration"]
    if test_set is None:
        name = None if registration is None else registration["name"]
        state = "no registration was written" if name is None else f"`{name}` is registered and was not opened"
        return (
            f"## Test\n\nThe test split is closed: {state}. So there is no test figure, and the published test table, "
            f"with nothing to stand beside, is left out. {_opened(evaluation)}"
        )
    return "\n\n".join(
        [
            f"## Test: {test_set['n']} scenarios, {manifest.evidence}",
            f"Opened once under registration `{registration['name']}` (sha256 `{registration['sha256']}`), results "
            f"sha256 `{registration['results_sha256']}`. {_opened(evaluation)}",
            *_tables(test_set, published.TEST, TEST_CONCLUSIONS, manifest),
            _comparisons(test_set),
            _gates(test_set),
            room(test_set, manifest),
            *_images(TEST_SET, plots),
        ]
    )


def _opened(evaluation: dict[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in evaluation["openings"])
    return f"Registrations that ever opened this split: {names or 'none'}."


def _tables(
    test_set: dict[str, Any],
    theirs: dict[str, published.Row],
    conclusions: tuple[Conclusion, ...],
    manifest: Manifest,
) -> list[str]:
    columns = list(theirs[FIXED])
    rows = [[name, *(_beside(test_set, theirs, name, column) for column in columns)] for name in FOUR]
    rest = [column for column in _LABELS if column in test_set["policies"][FIXED]]
    full = [
        [name, *(_cell(row, column) for column in rest)] for name in POLICIES for row in [test_set["policies"][name]]
    ]
    return [
        f"Ours ({manifest.evidence}) / published ({published.SOURCE}):",
        _table(["policy", *(_LABELS[column] for column in columns)], rows),
        f"{paragraph(conclusions, test_set)} {levels(test_set, theirs)}",
        "All policies and metrics, ours. regret counts a violating choice's throughput, so it may be negative; "
        "slo_regret counts 0 for it. ENGINE_DEFAULT sets no flag and is not among the 15 candidates whose best both "
        "are against, so both of its may be negative. ORACLE sees the outcomes and chooses among the 15.",
        _table(["policy", *(_LABELS[column] for column in rest)], full),
        "Against the engine's own default, with 95 % intervals. Unsafe: the default meets the SLO and the policy does "
        "not, with a one-sided 95 % upper bound. Coverage: the policy sets flags at all. A tail ratio is 1 where "
        "failures make both tails unbounded, 0 where the default's alone is.",
        _against_default(test_set),
    ]


def _beside(test_set: dict[str, Any], theirs: dict[str, published.Row], policy: str, column: str) -> str:
    if column == "throughput_ratio_both_meet_slo":
        comparison = test_set["comparisons"].get(f"{policy}-vs-{FIXED}")
        ours = 1.0 if comparison is None else comparison[column]["value"]
    else:
        ours = test_set["policies"][policy][column]
    return f"{_NOTHING if ours is None else number(ours)} / {number(theirs[policy][column])}"


def _cell(row: dict[str, Any], column: str) -> str:
    if row[column] is None:
        return _UNBOUNDED if column == "ttft_p95_p95_ms" else _NOTHING
    return number(row[column])


def _against_default(test_set: dict[str, Any]) -> str:
    rows = []
    for policy in FOUR:
        comparison = test_set["comparisons"][f"{policy}-vs-{ENGINE_DEFAULT}"]
        tail, unsafe = comparison[TTFT_TAIL_RATIO], comparison["unsafe_rate"]
        rows.append(
            [
                policy,
                interval_text(comparison["slo_violation_rate"]["delta"], comparison["slo_violation_rate"]["ci"]),
                interval_text(comparison["goodput_tps"]["delta"], comparison["goodput_tps"]["ci"]),
                interval_text(tail["value"], tail["ci"], missing=_UNBOUNDED),
                f"{number(unsafe['value'])} (≤ {number(unsafe['upper95'])})",
                number(comparison["coverage"]),
            ]
        )
    header = ["policy", "SLO violation −", "goodput tok/s −", "TTFT tail ÷", "unsafe", "coverage"]
    return _table(header, rows)


def _comparisons(test_set: dict[str, Any]) -> str:
    headline = test_set["gates"]["policy"]
    metrics = ("slo_violation_rate", "output_throughput_tps", "goodput_tps")
    rows = []
    for policy, metric in dict.fromkeys((*((headline, metric) for metric in metrics), *published.TEST_DIFFERENCES)):
        ours = test_set["comparisons"][f"{policy}-vs-{FIXED}"][metric]
        theirs = published.TEST_DIFFERENCES.get((policy, metric))
        rows.append(
            [
                f"{policy} − {FIXED}, {_LABELS[metric]}",
                interval_text(ours["delta"], ours["ci"]),
                _NOTHING if theirs is None else interval_text(theirs.delta, (theirs.low, theirs.high)),
            ]
        )
    return "Differences with 95 % intervals (paired bootstrap over scenarios):\n\n" + _table(
        ["difference", "ours", "published"], rows
    )


def _gates(test_set: dict[str, Any]) -> str:
    gates = test_set["gates"]
    rows = []
    for verdict in gates["verdicts"]:
        # null is an unbounded tail, and undefined anywhere else.
        null = _UNBOUNDED if verdict["metric"] == TTFT_TAIL_RATIO else number(None)
        end = null if verdict["interval_end"] is None else number(verdict["interval_end"])
        limit = f"{'≤' if verdict['bound'] == 'upper' else '≥'} {number(verdict['limit'])}"
        outcome = "passed" if verdict["passed"] else "**failed**"
        rows.append([verdict["metric"], f"{verdict['bound']} end {end}", limit, outcome])
    passed = sum(verdict["passed"] for verdict in gates["verdicts"])
    return (
        f"Gates: {gates['policy']} not worse than {gates['base']}, {passed} of {len(rows)} passed. A passed gate shows "
        "that it is not worse by more than its margin, not that it is better.\n\n"
        + _table(["gate", "95 % interval", "limit", "verdict"], rows)
    )


def _training(manifest: Manifest) -> str:
    record = manifest.training
    point = record["chosen_point"]
    settings = record["settings"]["training"]
    grid = [
        [
            f"{entry['learning_rate']:g}",
            f"{entry['weight_decay']:g}",
            str(entry["batch_lists"]),
            number(entry["dev_slo_violation_rate"]),
            number(entry["dev_regret"]),
        ]
        for entry in record["grid"]
    ]
    return (
        f"## Training\n\nMLP 12 → 128 → 64 → 1, {manifest.parameters:,} parameters, ListNet at temperature "
        f"{settings['temperature']:g}, AdamW, {settings['epochs']} epochs, seed {settings['seed']}, CPU. Dev chose "
        f"learning rate {point['learning_rate']:g}, weight decay {point['weight_decay']:g} and "
        f"{point['batch_lists']} lists a step out of {len(grid)} settings. Weights sha256 "
        f"`{record['weights_sha256']}`.\n\n"
        + _table(["learning rate", "weight decay", "lists a step", "dev SLO violation", "dev regret"], grid)
    )


def _images(test_set: str, plots: tuple[str, ...]) -> list[str]:
    return [f"![{name.removesuffix('.png')}]({name})" for name in plots if name.startswith(f"{test_set}_")]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
