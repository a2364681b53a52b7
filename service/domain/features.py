"""The 12 inputs of the ranker: all of them known before launch."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of the encoding."""

    name: str
    unit: str
    meaning: str


# fmt: off
FEATURES: tuple[Feature, ...] = (
    Feature(name="weight_gb", unit="1e9 bytes", meaning="loaded model weights, tied embeddings counted once"),
    Feature(name="num_layers", unit="layers", meaning="decoder layers of the model"),
    Feature(name="hidden_size", unit="channels", meaning="width of the residual stream"),
    Feature(name="kv_bytes_per_token", unit="bytes", meaning="key and value of one token over all layers"),
    Feature(name="prompt_tokens", unit="tokens", meaning="announced prompt length of a request"),
    Feature(name="max_new_tokens", unit="tokens", meaning="announced output length of a request"),
    Feature(name="shared_prefix_ratio", unit="share of the prompt", meaning="designed, not measured, prefix in common"),
    Feature(name="log2_concurrency", unit="log2 clients", meaning="clients that each keep one request in flight"),
    Feature(name="log2_max_num_seqs", unit="log2 sequences", meaning="candidate: sequences in one step"),
    Feature(name="log2_max_num_batched_tokens", unit="log2 tokens", meaning="candidate: token budget of one step"),
    Feature(name="gpu_memory_utilization", unit="share of memory", meaning="candidate: memory the engine may use"),
    Feature(name="enable_prefix_caching", unit="0 or 1", meaning="candidate: automatic prefix caching"),
)
# fmt: on

FEATURE_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
NUM_FEATURES = len(FEATURES)
# The first eight describe the model and the workload and are equal for every candidate of a scenario.
NUM_STATE_FEATURES = 8


def encode_state(scenario: Scenario) -> tuple[float, ...]:
    """The 8 model and workload features of a scenario, in order."""
    model, workload = scenario.model, scenario.workload
    return (
        model.weight_gb,
        float(model.num_layers),
        float(model.hidden_size),
        float(model.kv_bytes_per_token),
        float(workload.prompt_tokens),
        float(workload.max_new_tokens),
        workload.shared_prefix_ratio,
        math.log2(workload.concurrency),
    )


def encode_candidate(candidate: Candidate) -> tuple[float, ...]:
    """The 4 candidate features, in order."""
    return (
        math.log2(candidate.max_num_seqs),
        math.log2(candidate.max_num_batched_tokens),
        candidate.gpu_memory_utilization,
        float(candidate.enable_prefix_caching),
    )


_CANDIDATE_ROWS: NDArray[np.float32] = np.array([encode_candidate(c) for c in CANDIDATES], dtype=np.float32)


def encode(scenario: Scenario) -> NDArray[np.float32]:
    """[15, 12] float32: one row per candidate, columns as in FEATURES."""
    rows = np.empty((len(CANDIDATES), NUM_FEATURES), dtype=np.float32)
    rows[:, :NUM_STATE_FEATURES] = encode_state(scenario)
    rows[:, NUM_STATE_FEATURES:] = _CANDIDATE_ROWS
    return rows


def feature_schema_hash() -> str:
    """sha256 of names, units, meanings and order: a bundle trained on another schema must not be served."""
    payload = json.dumps([asdict(feature) for feature in FEATURES], separators=(",", ":"))
    return hashlib.sha256(payload.encode()).hexdigest()
