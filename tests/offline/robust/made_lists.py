"""Lists that are made, not simulated: every number is chosen so that expectations can be derived by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline.robust.lists import configurations

CONFIGURATIONS = configurations()
WIDTH = len(CONFIGURATIONS)
METADATA = {
    "schema_version": "1",
    "set": "made",
    "evidence": "simulated",
    "definition_sha256": "d" * 64,
    "config_ids": ",".join(one.config_id for one in CONFIGURATIONS),
    "draws": "1",
}


def outcome_row(winner: int, *, tps: float = 100.0) -> dict[str, Any]:
    """The winner meets the SLO with twice everyone's throughput; the engine's default violates it."""
    throughput = [tps] * WIDTH
    throughput[winner] = 2 * tps
    status = [0] * WIDTH
    status[-1] = 1
    return {
        "throughput_tps": throughput,
        "ttft_p95_ms": [500.0] * WIDTH,
        "tpot_p95_ms": [20.0] * (WIDTH - 1) + [80.0],
        "status": status,
    }


def table(rows: int, draws: int, *, seed: int = 0) -> pa.Table:
    """`rows` scenarios; with up to 64 clients configuration 2 wins every draw, above it configuration 10."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, Any]] = []
    for scenario in range(rows):
        clients = int(2 ** rng.uniform(0, 9))
        for draw in range(draws):
            made.append(
                {
                    "scenario": scenario,
                    "draw": draw,
                    "stratum": "base",
                    "model": "Qwen/Qwen3-8B",
                    "family": "Qwen3",
                    "weight_gb": 16.381,
                    "num_layers": 36,
                    "hidden_size": 4096,
                    "kv_bytes_per_token": 147_456,
                    "max_model_len": 40_960,
                    "prompt_tokens": int(rng.integers(16, 8000)) if draw == 0 else made[-1]["prompt_tokens"],
                    "max_new_tokens": 256,
                    "shared_prefix_ratio": 0.0,
                    "concurrency": clients,
                    **outcome_row(2 if clients <= 64 else 10),
                }
            )
    arrays = ("throughput_tps", "ttft_p95_ms", "tpot_p95_ms", "status")
    columns = {
        name: pa.array(
            [row[name] for row in made], type=pa.list_(pa.int8() if name == "status" else pa.float32(), WIDTH)
        )
        if name in arrays
        else pa.array([row[name] for row in made])
        for name in made[0]
    }
    return pa.table(columns).replace_schema_metadata(METADATA)


def write(path: Path, *, rows: int = 8, draws: int = 2, metadata: dict[str, str] | None = None) -> Path:
    """A file of made lists."""
    whole = table(rows, draws)
    pq.write_table(whole.replace_schema_metadata({**METADATA, **(metadata or {})}), path)
    return path
