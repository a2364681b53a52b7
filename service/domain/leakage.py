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
    """A quantity that exists only while a server runs. aliases: its spellings without case, separators and noise."""

    name: str
    aliases: frozenset[str]


def _measured(name: str, aliases: str) -> MeasuredField:
    return MeasuredField(name=name, aliases=frozenset([name.replace("_", ""), *aliases.split()]))


_TTFT = "ttft timetofirsttoken firsttokenlatency"
_TPOT = "tpot timeperoutputtoken requesttimeperoutputtoken itl intertokenlatency"

# A quantity of which the median and the tail are two fields is recognised by the second; the median is told apart.
FORBIDDEN_FIELDS: tuple[MeasuredField, ...] = (
    _measured(
        "kv_cache_usage",
        "kvusage gpucacheusage cpucacheusage cacheusage "
        "kvutilization kvutilisation kvcacheutilization kvcacheutilisation",
    ),
    _measured(
        "running_queue_length",
        "running requestsrunning seqsrunning runningrequests runningreqs runningqueue runningatend",
    ),
    _measured(
        "waiting_queue_length",
        "waiting requestswaiting seqswaiting waitingrequests waitingreqs waitingqueue waitingatend "
        "queuelength queuedepth queuesize queuetime requestqueuetime",
    ),
    _measured(
        "prefix_cache_hit_rate",
        "hits hitrate hitratio cachehit cachehits cachehitrate cachehitratio prefixhitrate prefixhitratio "
        "prefixcachehit prefixcachehits prefixcachehitratio prefixcachequeries gpuprefixcachehitrate "
        "cachedtokens cachedtokenratio",
    ),
    _measured("ttft_p50", ""),
    _measured("ttft_p95", _TTFT),
    _measured("tpot_p50", ""),
    _measured("tpot_p95", _TPOT),
    _measured(
        "e2e_latency_p95",
        "e2e e2el e2elatency endtoend endtoendlatency e2erequestlatency requestlatency latency",
    ),
    _measured(
        "output_throughput",
        "throughput goodput tokenthroughput outputtps tokenspersecond outputtokenspersecond generationtokens "
        "generationthroughput generationthroughputtoksper",
    ),
    _measured("request_throughput", "requeststhroughput requestgoodput rps qps achievedrps achievedqps"),
    _measured("slo_met", "sloattained sloattainment sloviolated sloviolation sloviolations sloviolationrate"),
    _measured("preemptions", "preemption preempted preemptionrate preemptioncount"),
    _measured("error_rate", "error errors errorcount failure failures failurerate failedrequests"),
    _measured(
        "completed_requests", "completed requestscompleted success requestsuccess successfulrequests finishedrequests"
    ),
    _measured("server_started", "started startupok startupfailed startupsuccess startfailed startsuccess"),
)

_FIELD_BY_ALIAS = {alias: field.name for field in FORBIDDEN_FIELDS for alias in field.aliases}
_MEDIAN_OF = {"ttft_p95": "ttft_p50", "tpot_p95": "tpot_p50"}
_MEDIAN = re.compile(r"p50|median")
# Words that say how a quantity was taken or in which unit, not which quantity it is.
_NOISE = (
    r"vllm|measured|observed|actual|num|p\d+|median|mean|average|avg|max|min|peak|std|percentile|"
    r"milliseconds|seconds|sec|ms|us|s|percent|perc|pct|tps|total|sum|count|bucket"
)
_NOISE_WORD = re.compile(rf"\d+|{_NOISE}")
_NOISE_AFFIX = re.compile(rf"^(?:{_NOISE})|(?:{_NOISE})$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 80


def measured_field(name: str) -> str | None:
    """The forbidden quantity that `name` spells, or None. Case, separators, units and percentiles do not matter."""
    # Longer names than any spelling of ours are no alias; leaving early keeps hostile keys cheap and out of the cache.
    return _recognise(name) if len(name) <= _LONGEST_NAME else None


@lru_cache(maxsize=4096)
def _recognise(name: str) -> str | None:
    words = _SEPARATOR.split(_CAMEL.sub("_", name).casefold())
    squashed = "".join(words)
    field = _FIELD_BY_ALIAS.get(squashed) or _without_affixes("".join(w for w in words if not _NOISE_WORD.fullmatch(w)))
    field = field or _without_affixes(squashed)
    return _MEDIAN_OF.get(field, field) if field and _MEDIAN.search(squashed) else field


def _without_affixes(core: str) -> str | None:
    """The field of a squashed name once noise is taken from its ends, one word at a time."""
    while core:
        if core in _FIELD_BY_ALIAS:
            return _FIELD_BY_ALIAS[core]
        bare = _NOISE_AFFIX.sub("", core, count=1)
        if bare == core:
            return None
        core = bare
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
