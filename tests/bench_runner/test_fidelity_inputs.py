from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_runner.layer_profile import read_layer_profile
from bench_runner.measured_run import read_measured_run
from bench_runner.published_summary import read_summary
from service.domain.errors import MemoryPolicyError
from tests.bench_runner.measured_folders import GPU, MODEL, request, write_profile, write_run

GOOD = [
    request(arrival=0.0, queued=50.0, first=50.1, last=50.3),
    request(arrival=1.0, queued=51.02, first=51.2, last=51.6),
]


def test_both_clocks_of_a_run_count_from_its_first_arrival(tmp_path: Path) -> None:
    run = read_measured_run(write_run(tmp_path / "run", GOOD))
    # The first request was queued at once, so the engine's clock is 50 s ahead of the first arrival.
    assert run.requests.queued_ms == pytest.approx([0, 1020])
    assert run.requests.ttft_ms == pytest.approx([100, 180])
    assert run.requests.tpot_ms == pytest.approx([100, 200])
    assert run.requests.latency_ms == pytest.approx([300, 580])
    assert run.series.end_ms == pytest.approx([1000])
    assert run.series.kv_share is None
    assert (run.engine.model, run.engine.gpu, run.engine.dtype) == (MODEL, GPU, "bf16")
    assert run.engine.kv_blocks is None


def test_requests_are_taken_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    run = read_measured_run(write_run(tmp_path / "run", GOOD[::-1]))
    assert run.requests.arrival_ms == pytest.approx([0, 1000])


def test_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    one = request(arrival=0.0, queued=50.0, first=50.1, last=50.1, output=1)
    run = read_measured_run(write_run(tmp_path / "run", [one]))
    assert np.isnan(run.requests.tpot_ms).all()


def test_kv_use_and_blocks_are_read_where_the_run_has_them(tmp_path: Path) -> None:
    series = [(1.0, 5.0, 6.0, 2, 1, 25.0)]
    meta = {"kv_cache": {"num_gpu_blocks": 99}}
    run = read_measured_run(write_run(tmp_path / "run", GOOD, series=series, meta=meta))
    assert run.series.kv_share == pytest.approx([0.25])
    assert run.engine.kv_blocks == 99


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"output_toks": 0}, "requests.jsonl:2: output_toks: 0 cannot be used; a whole number of at least 1"),
        ({"output_toks": 2.5}, "requests.jsonl:2: output_toks: 2.5"),
        ({"input_toks": True}, "requests.jsonl:2: input_toks: True"),
        ({"queued_ts": "soon"}, "requests.jsonl:2: queued_ts: 'soon' cannot be used; a number of at least 0"),
        ({"queued_ts": float("nan")}, "requests.jsonl:2: queued_ts: nan"),
        (
            {"last_token_ts": 51.1},
            "requests.jsonl:2: last_token_ts: 51.1 cannot be used; it lies before first_token_ts",
        ),
        ({"arrival_time": None}, "requests.jsonl:2: arrival_time: None"),
    ],
)
def test_a_bad_request_is_refused_by_line_and_field(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    folder = write_run(tmp_path / "run", [GOOD[0], {**GOOD[1], **change}])
    with pytest.raises(MemoryPolicyError) as refused:
        read_measured_run(folder)
    assert says in str(refused.value)


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (edited("requests.jsonl", '"r"', "r"), "requests.jsonl:1"),
        (edited("timeseries.csv", "waiting", "wait"), "timeseries.csv:1: no column waiting"),
        (edited("timeseries.csv", "1.0,0.0", "1.0,-3"), "timeseries.csv:2: prompt_throughput: '-3' cannot be used"),
        (edited("meta.json", '"num_requests": 2', '"num_requests": 3'), "tells of 3 requests, requests.jsonl has 2"),
        (edited("meta.json", "2026-04-25", "yesterday"), "started_at"),
        (edited("meta.json", "max_num_seqs", "seqs"), "lacks 'max_num_seqs'"),
        (edited("config.json", MODEL, "other/model"), "config.json of 'other/model'"),
        (lambda folder: (folder / "timeseries.csv").unlink(), "cannot be read"),
    ],
)
def test_a_spoilt_run_is_refused(tmp_path: Path, spoil: Callable[[Path], None], says: str) -> None:
    folder = write_run(tmp_path / "run", GOOD)
    spoil(folder)
    with pytest.raises(MemoryPolicyError) as refused:
        read_measured_run(folder)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (edited("dense.csv", "act_fn,1,", "act_fn,one,"), "tokens: 'one' cannot be used; a whole number of at least 1"),
        (edited("dense.csv", "embedding,1,1e-06", "embedding,1,0"), "dense.csv:2: time_us: '0' cannot be used"),
        (edited("dense.csv", "act_fn,1,", "moe_gate,1,"), "has times of moe_gate"),
        (edited("per_sequence.csv", "layer,", "name,"), "per_sequence.csv:1: no column layer"),
        (edited("attention.csv", "0,0,1,16,1000", "0,0,1,-16,1000"), "attention.csv:2: kv_decode: '-16'"),
        (edited("meta.yaml", "variant", "kind"), "lacks 'variant'"),
        (edited("meta.yaml", "model:", "model: ["), "cannot be read"),
        (lambda folder: (folder / "per_sequence.csv").unlink(), "per_sequence.csv cannot be read"),
    ],
)
def test_a_spoilt_profile_is_refused(tmp_path: Path, spoil: Callable[[Path], None], says: str) -> None:
    folder = write_profile(tmp_path / "profile")
    spoil(folder)
    with pytest.raises(MemoryPolicyError) as refused:
        read_layer_profile(folder)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("of_run", "says"),
    [
        ({"model": "other/model"}, f"the run is of model 'other/model', the profile profile of '{MODEL}'"),
        ({"gpu": "B200"}, f"of GPU 'B200', the profile profile of '{GPU}'"),
        ({"dtype": "fp16"}, "of data type 'fp16', the profile profile of 'bf16'"),
        ({"tensor_parallel": 2}, "the run is on 2 GPUs"),
    ],
)
def test_a_profile_of_something_else_is_refused_naming_both(tmp_path: Path, of_run: dict[str, Any], says: str) -> None:
    profile = read_layer_profile(write_profile(tmp_path / "profile"))
    fitting: dict[str, Any] = {"model": MODEL, "gpu": GPU, "dtype": "bf16", "tensor_parallel": 1}
    profile.check_fits(**fitting)
    with pytest.raises(MemoryPolicyError) as refused:
        profile.check_fits(**{**fitting, **of_run})
    assert says in str(refused.value)


def test_a_published_summary_keeps_its_printed_errors(tmp_path: Path) -> None:
    names = [
        (latency, name) for latency in ("TTFT", "TPOT", "Latency") for name in ("Mean", "Median", "P90", "P95", "P99")
    ]
    lines = ["Metric vLLM Sim Diff%", *(f"{latency} {name}   32.5   32.1   -1.0%" for latency, name in names)]
    path = tmp_path / "summary.txt"
    path.write_text("\n".join(lines))
    summary = read_summary(path)
    assert summary.measured["latency"]["p99"] == 32.5
    assert summary.errors["tpot"]["p50"] == pytest.approx(-0.01)
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(MemoryPolicyError, match="no p99 of latency"):
        read_summary(path)
    path.write_text("\n".join(lines).replace("32.5", "fast", 1))
    with pytest.raises(MemoryPolicyError, match=r"summary\.txt:2: TTFT Mean: 'fast' cannot be used"):
        read_summary(path)
