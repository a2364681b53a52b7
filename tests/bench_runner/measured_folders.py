"""Small measured runs and layer profiles on disk, whose outcome can be worked out by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODEL, GPU = "meta-llama/Llama-3.1-8B", "TESTGPU"
META: dict[str, Any] = {
    "model": MODEL,
    "vllm_version": "0.19.0",
    "engine_kwargs": {
        "tensor_parallel_size": 1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "dtype": "bfloat16",
    },
    "started_at": "2026-04-25T18:00:00Z",
}
CONFIG: dict[str, Any] = {
    "nodes": [{"instances": [{"model_name": MODEL, "hardware": GPU, "npu_mem": {"mem_size": 96, "mem_util": 0.9}}]}]
}
# 18:00:00 UTC on that day.
START_S = 1777140000.0
SERIES = ("t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct")


def request(
    *, arrival: float, queued: float, first: float, last: float, prompt: int = 32, output: int = 3
) -> dict[str, Any]:
    """One line of requests.jsonl. Times in seconds: the arrival from START_S, the others on the engine's clock."""
    return {
        "request_id": "r",
        "input_toks": prompt,
        "output_toks": output,
        "arrival_time": START_S + arrival,
        "queued_ts": queued,
        "scheduled_ts": queued,
        "first_token_ts": first,
        "last_token_ts": last,
    }


def write_run(
    folder: Path,
    requests: Sequence[Mapping[str, Any]],
    *,
    series: Sequence[Sequence[float]] = ((1.0, 0.0, 0.0, 0, 0, 0.0),),
    meta: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A measured run in a folder."""
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({**META, "num_requests": len(requests), **(meta or {})}))
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in requests))
    lines = [",".join(SERIES), *(",".join(str(value) for value in row) for row in series)]
    (folder / "timeseries.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_profile(folder: Path, *, meta: Mapping[str, Any] | None = None, mixed_factor: float = 1.0) -> Path:
    """A profile in which a token costs 10 µs in gate_up_proj of each layer, and everything else next to nothing.

    Attention: 100 µs a prompt token, 1,000 µs a decode, in each layer; beside a prompt mixed_factor times as much.
    """
    folder.mkdir(parents=True)
    content = {"model": MODEL, "hardware": GPU, "variant": "bf16", "tp_degrees": [1], "vllm_version": "0.19.0"}
    lines = [f"{name}: {json.dumps(value)}" for name, value in {**content, **(meta or {})}.items()]
    (folder / "meta.yaml").write_text("\n".join(lines) + "\n")
    nothing = 1e-6
    names = ("embedding", "final_layernorm", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "act_fn", "down_proj")
    dense = [f"{name},{tokens},{nothing}" for name in names for tokens in (1, 64)]
    dense += [f"gate_up_proj,{tokens},{10 * tokens}" for tokens in (1, 64)]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]) + "\n")
    heads = [f"{name},{sequences},{nothing}" for name in ("lm_head", "sampler") for sequences in (1, 8)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *heads]) + "\n")
    attention = [f"0,0,{n},{kv},{1000 * n}" for n in (1, 4) for kv in (16, 64)]
    for chunk in (16, 64):
        attention += [f"{chunk},{past},0,0,{100 * chunk}" for past in (0, 64)]
        attention += [f"{chunk},0,{n},{kv},{100 * chunk + mixed_factor * 1000 * n}" for n in (1, 4) for kv in (16, 64)]
    head = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    (folder / "attention.csv").write_text("\n".join([head, *attention]) + "\n")
    return folder
