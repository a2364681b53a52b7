"""What differs between the engine that was learnt for and another, and what follows. Pure: facts in, verdict out.

widen: what was learnt holds, the bundle may name the version too. retrain: the engine can be simulated, but is
another one. refuse: it cannot even be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service import engine_options
from service.api.argument_effects import NEUTRAL, SAME_QUESTION
from service.domain.candidate import CANDIDATES
from service.domain.gpu import ENGINE_VERSION, GPUS

Outcome = Literal["widen", "retrain", "refuse"]
EXIT_CODES: dict[Outcome, int] = {"widen": 0, "retrain": 3, "refuse": 4}
KNOBS = tuple(CANDIDATES[0].engine_args())
TABLES = (
    *("SWITCHES", "FLAGS", "INTEGERS", "SIZES", "AUTOMATIC_SIZES", "FLOATS"),
    *("TEXTS", "OPTIONAL_TEXTS", "LISTS", "APPENDED"),
)
# What a verdict rests on when nobody asked for less.
CELLS, SCENARIOS = 294, 200
# Of a choice against the engine's default: goodput below this share of it is a loss.
TOLERATED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """An engine. batch_defaults: GPU -> (max_num_seqs, max_num_batched_tokens); problems: what could not be read."""

    version: str
    options: Mapping[str, str]
    short_forms: Mapping[str, str]
    defaults: Mapping[str, object]
    batch_defaults: Mapping[str, tuple[int, int]]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Random cells on our scheduler and the installed one: agreed of cells, or the problem that prevented it."""

    cells: int
    agreed: int
    first_difference: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One configuration under one scenario. Latency limits are those of the reference's SLO."""

    goodput_tps: float
    slo_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """What was recommended against the engine's default, as learnt (our scheduler, our defaults) and as installed."""

    scenario: int
    learnt: tuple[Side, Side]
    installed: tuple[Side, Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The scenarios: kept are those in which no flag was recommended, which then runs as the engine's default does.

    bundle: the version that answered, None if there was no answer.
    """

    bundle: str | None
    asked: int
    kept: int
    results: tuple[ScenarioResult, ...]
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The outcome, why (per outcome), and what has to be done in the tables before a version is named."""

    refuse: list[str] = field(default_factory=list)
    retrain: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """The gravest that there is a reason for."""
        return "refuse" if self.refuse else "retrain" if self.retrain else "widen"


def known_options() -> dict[str, str]:
    """Option -> kind, as the service's tables have it."""
    return {name: kind for kind in TABLES for name in getattr(engine_options, kind)}


def judge(facts: Facts, equivalence: Equivalence, rehearsal: Rehearsal) -> Verdict:
    """Everything that speaks against widening."""
    verdict = Verdict()
    verdict.refuse.extend(facts.problems)
    if facts.options:
        _judge_options(facts, verdict)
        _judge_defaults(facts, verdict)
    if equivalence.problem is not None:
        verdict.refuse.append(f"its scheduler cannot be run: {equivalence.problem}")
    elif equivalence.agreed < equivalence.cells:
        different = equivalence.cells - equivalence.agreed
        verdict.retrain.append(
            f"its scheduler decides otherwise in {different} of {equivalence.cells} random cells, first: "
            f"{equivalence.first_difference}"
        )
    if equivalence.cells < 1 or rehearsal.asked < 1:
        verdict.refuse.append("nothing was compared: ask for one cell and one scenario at least")
    if rehearsal.problem is not None:
        verdict.refuse.append(f"the scenarios cannot be run: {rehearsal.problem}")
    worse = newly_unsafe(rehearsal.results)
    if worse:
        verdict.retrain.append(
            f"in {len(worse)} of {len(rehearsal.results)} scenarios the recommendation is now worse than its default "
            f"and was not before, first: scenario {worse[0]}"
        )
    return verdict


def _judge_options(facts: Facts, verdict: Verdict) -> None:
    known = known_options()
    spelled = [name.replace("_", "-") for name in KNOBS]
    for name in spelled:
        if name not in facts.options:
            verdict.refuse.append(f"--{name}, which is set, is no option of it")
        elif facts.options[name] != known[name]:
            verdict.retrain.append(f"--{name} takes {facts.options[name]} and took {known[name]}")
    for name in sorted(facts.options.keys() - known.keys()):
        verdict.tables.append(
            f"new option --{name} ({facts.options[name]}): out of support until somebody looked at it"
        )
    verdict.tables.extend(f"option --{name} is gone" for name in sorted(known.keys() - facts.options.keys()))
    verdict.tables.extend(
        f"--{name} takes {facts.options[name]} and took {known[name]}"
        for name in sorted(known.keys() & facts.options.keys())
        if facts.options[name] != known[name] and name not in spelled
    )
    if facts.short_forms != engine_options.SHORT_FORMS:
        changed = sorted(facts.short_forms.items() ^ engine_options.SHORT_FORMS.items())
        verdict.tables.append(f"short forms differ: {', '.join(f'{short} {name}' for short, name in changed)}")


def _judge_defaults(facts: Facts, verdict: Verdict) -> None:
    for gpu in GPUS:
        learnt = (gpu.engine_default.max_num_seqs, gpu.engine_default.max_num_batched_tokens)
        found = facts.batch_defaults.get(gpu.name)
        if found is not None and tuple(found) != learnt:
            verdict.retrain.append(
                f"on {gpu.name} it starts with {found[0]} sequences and {found[1]} batched tokens, not {learnt[0]} and "
                f"{learnt[1]}"
            )
    utilisation = facts.defaults.get("gpu_memory_utilization")
    expected = GPUS[0].engine_default.gpu_memory_utilization
    if utilisation != expected:
        verdict.retrain.append(f"its gpu_memory_utilization is {utilisation}, not {expected}")
    for name, values in SAME_QUESTION.items():
        if name.replace("_", "-") not in facts.options:
            continue
        default = facts.defaults.get(name)
        # Left open by the parser and decided when it starts, as in 0.28.
        if default is not None and default != values[0]:
            verdict.retrain.append(f"the default of --{name.replace('_', '-')} is {default!r}, not {values[0]!r}")


def is_unsafe(chosen: Side, default: Side) -> bool:
    """The SLO newly violated, or goodput more than 5 % below the default's."""
    return (default.slo_met and not chosen.slo_met) or chosen.goodput_tps < TOLERATED * default.goodput_tps


def newly_unsafe(results: Sequence[ScenarioResult]) -> list[int]:
    """Scenarios in which the recommendation loses against the installed engine's default and did not as learnt."""
    return [one.scenario for one in results if is_unsafe(*one.installed) and not is_unsafe(*one.learnt)]


def lines_of(facts: Facts, equivalence: Equivalence, rehearsal: Rehearsal, verdict: Verdict) -> list[str]:
    """The report. Its last line is the verdict."""
    neutral = sum(option.replace("-", "_") in NEUTRAL for option in facts.options)
    results = rehearsal.results
    lines = [
        f"learnt for vLLM {ENGINE_VERSION}, installed {facts.version}",
        f"options: {len(facts.options)} ({neutral} of them neutral), {len(verdict.tables)} differences in the tables",
        f"defaults: read for {len(facts.batch_defaults)} of {len(GPUS)} GPUs",
        f"scheduler: {equivalence.agreed} of {equivalence.cells} random cells agree exactly (simulated)",
        f"scenarios: {rehearsal.asked} asked of {rehearsal.bundle or 'no bundle'}, {rehearsal.kept} keep the "
        f"engine's default, {len(results)} simulated: "
        f"worse than the default in {sum(is_unsafe(*one.learnt) for one in results)} as learnt and in "
        f"{sum(is_unsafe(*one.installed) for one in results)} as installed",
    ]
    lines.extend(f"table: {text}" for text in verdict.tables)
    lines.extend(f"retrain: {text}" for text in verdict.retrain)
    lines.extend(f"refuse: {text}" for text in verdict.refuse)
    if verdict.outcome == "widen" and facts.version != ENGINE_VERSION and verdict.tables:
        lines.append("before the version is named, the differences in the tables have to be taken over")
    if verdict.outcome == "widen" and (equivalence.cells < CELLS or rehearsal.asked < SCENARIOS):
        lines.append(f"provisional: {CELLS} cells and {SCENARIOS} scenarios are what a verdict should rest on")
    return [*lines, f"verdict: {verdict.outcome}"]
