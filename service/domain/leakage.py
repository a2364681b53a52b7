"""The two leak guards: nothing that is measured after launch may become an input.

The first published version of this ranker took 9 of its 17 inputs from a run of candidate 0. Guard 1 is a list of
16 measured quantities that may be labels but never inputs; guard 2 checks that what describes the model and the
workload is the same for all candidates of a scenario.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.domain.errors import LeakageError
from service.domain.features import NUM_STATE_FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredField:
    """A quantity that exists only while a server runs, and a pattern over its spellings."""

    name: str
    pattern: str


_PERCENTILE = r"(p\d+|median|mean|avg|average|max|min|percentile)*"
_LOW_PERCENTILE = r"(p50|median)"

# Patterns match names in lower case without separators, units or a `vllm:` prefix. Order matters: the first match
# names the field, so a p50 is tried before the catch-all for the same quantity.
FORBIDDEN_FIELDS: tuple[MeasuredField, ...] = (
    MeasuredField(name="kv_cache_usage", pattern=r"(kv|gpu|cpu)*(cache)?usage(peak|max|mean|avg)?|kvutili[sz]ation"),
    MeasuredField(name="running_queue_length", pattern=r"(num)?(requests?|seqs?|queue)?running(requests?|queue.*)?"),
    MeasuredField(
        name="waiting_queue_length",
        pattern=r"(num)?(requests?|seqs?|queue)?waiting(requests?|queue.*|atend)?|queue(length|depth|size|time)|requestqueuetime",
    ),
    MeasuredField(
        name="prefix_cache_hit_rate",
        pattern=r"((gpu)?prefix)?(cache)?(hit(s|rate|ratio)?|queries)|cachedtoken(s|ratio)?|(prefix)?cachehit(s|rate|ratio)?",
    ),
    MeasuredField(
        name="ttft_p50", pattern=rf"{_LOW_PERCENTILE}(ttft|timetofirsttoken)|(ttft|timetofirsttoken){_LOW_PERCENTILE}"
    ),
    MeasuredField(name="ttft_p95", pattern=rf"{_PERCENTILE}(ttft|timetofirsttoken){_PERCENTILE}"),
    MeasuredField(
        name="tpot_p50",
        pattern=rf"{_LOW_PERCENTILE}(tpot|timeperoutputtoken|itl|intertokenlatency)"
        rf"|(tpot|timeperoutputtoken|itl|intertokenlatency){_LOW_PERCENTILE}",
    ),
    MeasuredField(
        name="tpot_p95",
        pattern=rf"{_PERCENTILE}(request)?(tpot|timeperoutputtoken|itl|intertokenlatency){_PERCENTILE}",
    ),
    MeasuredField(
        name="e2e_latency_p95",
        pattern=rf"{_PERCENTILE}(e2el?|endtoend|e2erequest|request)?latency{_PERCENTILE}|{_PERCENTILE}e2el{_PERCENTILE}",
    ),
    MeasuredField(
        name="output_throughput",
        pattern=r"(output|token|tokens|generation|goodput)*(throughput|goodput)|generationtokens|(output)?tokenspersecond",
    ),
    MeasuredField(name="request_throughput", pattern=r"requests?throughput|rps|qps|achieved(rps|qps)"),
    MeasuredField(name="slo_met", pattern=r"slo(met|attained|attainment|violated|violation|violationrate)"),
    MeasuredField(name="preemptions", pattern=r"(num)?preempt(ion|ions|ed)(s|rate|count)?"),
    MeasuredField(name="error_rate", pattern=r"(num)?(error|errors|failure)(rate|count|s)?"),
    MeasuredField(
        name="completed_requests", pattern=r"(num)?(requests?)?(completed|success|successful)(requests?)?(count)?"
    ),
    MeasuredField(
        name="server_started", pattern=r"(server)?(started|startup(ok|failed|success)?|startsuccess|startfailed)"
    ),
)

_COMPILED = tuple((field.name, re.compile(field.pattern)) for field in FORBIDDEN_FIELDS)
_AFFIX = re.compile(
    r"^(?:vllm|measured|observed|actual)|(?:milliseconds|seconds|sec|ms|us|s|perc|pct|percent|total|tps)$"
)
_LONGEST_NAME = 80
_SEPARATOR = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=4096)
def measured_field(name: str) -> str | None:
    """The forbidden quantity that `name` spells, or None. Case, separators, units and `vllm:` do not matter."""
    # Longer names than any spelling of ours are no alias; leaving early keeps hostile keys cheap.
    squashed = _SEPARATOR.sub("", name.casefold()) if len(name) <= _LONGEST_NAME else ""
    while squashed:
        for field, pattern in _COMPILED:
            if pattern.fullmatch(squashed):
                return field
        bare = _AFFIX.sub("", squashed, count=1)
        if bare == squashed:
            return None
        squashed = bare
    return None


def find_measured_fields(
    body: object, *, exempt: Sequence[tuple[str, ...]] = (), path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every (path, forbidden quantity) in a parsed JSON body, objects and arrays alike.

    Paths in `exempt` are not entered: an SLO names the same quantities as goals, and a config.json is foreign text.
    """
    if path in exempt:
        return
    if isinstance(body, Mapping):
        for key, value in body.items():
            here = (*path, str(key))
            field = None if here in exempt else measured_field(str(key))
            if field is not None:
                yield here, field
            else:
                yield from find_measured_fields(value, exempt=exempt, path=here)
    elif isinstance(body, list):
        for index, value in enumerate(body):
            yield from find_measured_fields(value, exempt=exempt, path=(*path, str(index)))


def check_feature_names(names: Iterable[str]) -> None:
    """Guard 1 over a feature list: LeakageError names the first measured quantity in it."""
    for name in names:
        field = measured_field(name)
        if field is not None:
            raise LeakageError(
                f"feature {name!r} is the measured quantity {field!r}: it exists only after launch and may be a label, "
                "never an input; remove it from the feature list"
            )


def check_state_invariance(features: NDArray[np.float32], scenario_ids: Sequence[str]) -> None:
    """Guard 2: the 8 model and workload features are the same for all candidates of each scenario.

    features: [scenarios, candidates, features]. Raises LeakageError naming the scenario and the column.
    """
    if features.ndim != 3 or features.shape[0] != len(scenario_ids) or features.shape[2] < NUM_STATE_FEATURES:
        raise ValueError(f"features of shape {features.shape} do not fit {len(scenario_ids)} scenarios")
    state = features[:, :, :NUM_STATE_FEATURES]
    # NaN differs from itself, so it is a violation too.
    differs = np.argwhere((state != state[:, :1, :]).any(axis=1))
    if len(differs):
        scenario, column = (int(x) for x in differs[0])
        raise LeakageError(
            f"scenario {scenario_ids[scenario]!r}: state feature {column} differs between its candidates, so it "
            "depends on a run of one of them; take it from the plan, not from results"
        )
