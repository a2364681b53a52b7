from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench_runner.band_table import band_table
from bench_runner.batch_sweep import COLUMNS, GPU_NAME, milliseconds_per_sequence, read_batch_rows
from bench_runner.fidelity_report import LABELS
from bench_runner.files import read_json
from bench_runner.layer_profile import read_layer_profile
from bench_runner.measured_run import EngineFacts, MeasuredRequests, MeasuredRun, TimeSeries, read_measured_run
from bench_runner.profile_table import Extent, step_table
from bench_runner.published_summary import read_summary
from bench_runner.run_comparison import FITTED
from bench_runner.run_errors import (
    SimulatedSeconds,
    errors_by_regime,
    latency_statistics,
    series_errors,
    simulated_seconds,
    statistics_of,
)
from bench_runner.step_fit import fit_step_ms
from bench_runner.step_time import StepTable, gpu_ms
from bench_runner.trace_driven import SimulatedRun, SimulatedSteps, simulate_requests
from service.domain.candidate import Candidate
from service.domain.errors import MemoryPolicyError
from service.domain.regime import Regime
from tests.bench_runner.measured_folders import request, write_profile, write_run
from tests.bench_runner.sweeping import run_runner
from tests.bench_runner.test_step_time import step_of

COMMITTED = Path(__file__).resolve().parents[2] / "bench_runner" / "measured"
RUN = "RTXPRO6000__Llama-3.1-8B"
CANDIDATE = Candidate(max_num_seqs=4, max_num_batched_tokens=64, gpu_memory_utilization=0.9, enable_prefix_caching=True)


def profiled(folder: Path, *, mixed_factor: float = 1.0, step_ms: float = 0.0) -> tuple[StepTable, Extent]:
    profile = read_layer_profile(write_profile(folder, mixed_factor=mixed_factor))
    return step_table(profile, layers=2, step_ms=step_ms)


def asked(*, prompt: list[int], output: list[int], arrival_ms: list[float]) -> MeasuredRequests:
    """Requests of which only what was asked matters."""
    never = np.zeros(len(prompt))
    return MeasuredRequests(
        prompt=np.array(prompt),
        output=np.array(output),
        arrival_ms=np.array(arrival_ms),
        queued_ms=never,
        first_ms=never,
        last_ms=never,
    )


def test_a_step_is_its_layers_times_their_number_plus_attention(tmp_path: Path) -> None:
    table, _ = profiled(tmp_path / "profile")
    # Two layers: 16 tokens cost 16 · 10 µs, their attention 16 · 100 µs; a decode 10 µs and 1,000 µs.
    requests, prompt = step_of([(32, 16, 0, False)])
    assert gpu_ms(table, requests, prompt) == pytest.approx(2 * (0.16 + 1.6), abs=1e-6)
    requests, decodes = step_of([(8, 1, 8, True), (8, 1, 40, True)])
    assert gpu_ms(table, requests, decodes) == pytest.approx(2 * (0.02 + 2.0), abs=1e-6)


def test_between_and_beyond_profiled_sizes_the_line_goes_on(tmp_path: Path) -> None:
    table, extent = profiled(tmp_path / "profile")
    requests, between = step_of([(64, 40, 0, False)])
    assert gpu_ms(table, requests, between) == pytest.approx(2 * (0.4 + 4.0), abs=1e-6)
    requests, beyond = step_of([(256, 128, 0, False)])
    assert gpu_ms(table, requests, beyond) == pytest.approx(2 * (1.28 + 12.8), abs=1e-6)
    assert (extent.tokens, extent.chunk, extent.decodes) == ((1, 64), (16, 64), (1, 4))


def test_decodes_beside_a_prompt_cost_what_the_profile_says(tmp_path: Path) -> None:
    rows = [(32, 16, 0, False), (8, 1, 8, True)]
    requests, step = step_of(rows)
    for factor in (1.0, 1.7):
        table, _ = profiled(tmp_path / str(factor), mixed_factor=factor)
        assert gpu_ms(table, requests, step) == pytest.approx(2 * (0.17 + 1.6 + factor * 1.0), abs=1e-6)
    profile = read_layer_profile(tmp_path / "1.7")
    apart, _ = step_table(profile, layers=2, mixed=False)
    assert gpu_ms(apart, requests, step) == pytest.approx(2 * (0.17 + 1.6 + 1.0), abs=1e-6)


def test_a_run_is_repeated_step_by_step(tmp_path: Path) -> None:
    table, extent = profiled(tmp_path / "profile", step_ms=0.5)
    requests = asked(prompt=[32, 32], output=[3, 2], arrival_ms=[0.0, 1000.0])
    run = simulate_requests(requests, CANDIDATE, kv_blocks=100, table=table, extent=extent)
    # Each request is alone: its prompt takes 2 · (0.32 + 3.2) + 0.5 ms, each further token 2 · (0.01 + 1) + 0.5 ms.
    prompt_ms, decode_ms = 2 * 3.52 + 0.5, 2 * 1.01 + 0.5
    assert run.queued_ms == pytest.approx([0, 1000])
    assert run.ttft_ms == pytest.approx([prompt_ms] * 2, abs=1e-5)
    assert run.tpot_ms == pytest.approx([decode_ms] * 2, abs=1e-5)
    assert run.latency_ms == pytest.approx([prompt_ms + 2 * decode_ms, prompt_ms + decode_ms], abs=1e-5)
    assert run.steps.prompt_tokens.tolist() == [32, 0, 0, 32, 0]
    assert run.steps.decodes.tolist() == [0, 1, 1, 0, 1]
    assert run.preemptions == 0


def test_a_request_that_comes_during_a_step_is_taken_in_when_the_step_ends(tmp_path: Path) -> None:
    table, _ = profiled(tmp_path / "profile")
    requests = asked(prompt=[32, 32], output=[3, 2], arrival_ms=[0.0, 1.0])
    run = simulate_requests(requests, CANDIDATE, kv_blocks=100, table=table)
    assert run.queued_ms[1] == pytest.approx(7.04, abs=1e-5)


def test_steps_outside_the_profile_are_counted_by_what_is_outside(tmp_path: Path) -> None:
    table, extent = profiled(tmp_path / "profile")
    requests = asked(prompt=[8], output=[2], arrival_ms=[0.0])
    run = simulate_requests(requests, CANDIDATE, kv_blocks=100, table=table, extent=extent)
    # A chunk of 8 tokens is shorter than the shortest that was profiled, and so is the decode's context of 9.
    assert run.beyond == {"tokens": 0, "sequences": 0, "chunk": 1, "decodes": 0, "mixed_decodes": 0, "context": 1}


def test_memory_for_one_request_preempts_and_is_counted(tmp_path: Path) -> None:
    table, _ = profiled(tmp_path / "profile")
    requests = asked(prompt=[30, 30], output=[8, 8], arrival_ms=[0.0, 0.0])
    # Five usable blocks: two prompts of two blocks start, and both need a third one.
    run = simulate_requests(requests, CANDIDATE, kv_blocks=6, table=table)
    assert run.preemptions == 1


def fitted_with(true_ms: float, *, requests: int) -> tuple[MeasuredRequests, SimulatedRun]:
    """Requests that followed one another with 2 + true_ms a token, and the simulation's form of them."""
    first = np.arange(requests, dtype=np.float64) * 100
    output = np.full(requests, 11)
    last = first + 10 * (2 + true_ms)
    measured = MeasuredRequests(
        prompt=output, output=output, arrival_ms=first, queued_ms=first, first_ms=first, last_ms=last
    )
    none = np.zeros(0, dtype=np.int64)
    steps = SimulatedSteps(
        end_ms=last, prompt_tokens=none, decodes=none, requests=none, held_tokens=none, prefill_share=last
    )
    simulated = SimulatedRun(
        queued_ms=first,
        first_ms=first,
        last_ms=last,
        output=output,
        steps=steps,
        preemptions=0,
        kv_tokens=16,
        beyond={},
    )
    return measured, simulated


def test_the_time_per_step_that_a_run_has_is_found_again() -> None:
    measured, _ = fitted_with(1.125, requests=60)
    fit = fit_step_ms(measured, lambda step_ms: fitted_with(step_ms, requests=60)[1])
    assert fit.step_ms == pytest.approx(1.125)
    # All requests say the same, so drawing them again changes nothing.
    assert (fit.low_ms, fit.high_ms) == pytest.approx((1.125, 1.125))
    assert fit.requests == 30
    assert fit.others["all requests"] == pytest.approx(1.125)


def test_too_few_requests_are_not_fitted_on() -> None:
    measured, _ = fitted_with(1.0, requests=20)
    with pytest.raises(MemoryPolicyError, match="10 requests ended in the first half"):
        fit_step_ms(measured, lambda step_ms: fitted_with(step_ms, requests=20)[1])


def test_every_second_has_what_ran_waited_and_came_out(tmp_path: Path) -> None:
    table, _ = profiled(tmp_path / "profile")
    requests = asked(prompt=[32, 32], output=[3, 2], arrival_ms=[0.0, 1000.0])
    run = simulate_requests(requests, CANDIDATE, kv_blocks=100, table=table)
    ends = np.array([500.0, 999.0, 1008.0, 2000.0])
    seconds = simulated_seconds(run, requests.arrival_ms, ends)
    assert seconds.prompt_tps.tolist() == [32, 32, 32, 32]
    # The first request ends after 11 ms, so what begins at 8 ms has two of its tokens and the other's first.
    assert seconds.output_tps.tolist() == [3, 3, 3, 2]
    assert seconds.running.tolist() == [0, 0, 1, 0]
    assert seconds.waiting.tolist() == [0, 0, 0, 0]
    assert seconds.kv_share[2] == pytest.approx(32 / (99 * 16))
    measured = TimeSeries(
        end_ms=ends,
        prompt_tps=seconds.prompt_tps,
        output_tps=seconds.output_tps + np.array([1.0, -1.0, 1.0, -1.0]),
        running=seconds.running,
        waiting=seconds.waiting,
        kv_share=None,
    )
    errors = series_errors(measured, seconds)
    assert errors["output_tps"]["rmse"] == pytest.approx(1)
    assert errors["output_tps"]["mean_error"] == pytest.approx(0)
    assert "kv_share" not in errors


def test_statistics_leave_out_what_is_undefined() -> None:
    found = statistics_of(np.array([1.0, 3.0, np.nan]))
    assert (found["mean"], found["p50"]) == (2.0, 2.0)


def test_a_band_is_of_all_sources_or_says_why_it_is_none() -> None:
    errors = {"a": {"ttft": {"light": [0.0, 0.1]}}, "b": {"ttft": {"light": [0.2]}, "tpot": {"light": [0.1]}}}
    reasons = dict.fromkeys(("light", "prefill-bound", "decode-bound", "kv-bound"), "nobody measured it")
    bands = band_table(errors, reasons)  # type: ignore[arg-type] # literals of the two names
    ttft = bands["ttft"]["light"]
    assert ttft.bias == pytest.approx(0.1)
    # Percentiles 5 and 95 of 0, 0.1, 0.2.
    assert ttft.low == pytest.approx(0.01)
    assert ttft.high == pytest.approx(0.19)
    assert ttft.n == 3
    assert ttft.source == "2 from a; 1 from b"
    assert bands["tpot"]["light"].reason == "1 comparisons, 3 are needed; nobody measured it"
    assert bands["ttft"]["kv-bound"].reason == "nothing to compare with; nobody measured it"


def batch_file(path: Path, *, tpot: str = "0.05") -> Path:
    row = {
        "Model": "mistralai/Mistral-7B-Instruct-v0.3",
        "GPU": GPU_NAME,
        "TP": "1",
        "Avg TPOT (s)": tpot,
        "Token tput (tok/s)": "1000",
        "Avg Output Tokens": "400",
        "Max BS (reqs)": "64",
        "task": "chat",
    }
    others = [{**row, "GPU": "A100"}, {**row, "TP": "2"}, {**row, "task": "code"}, {**row, "Model": "other"}]
    path.write_text("\n".join([",".join(COLUMNS), *(",".join(r[c] for c in COLUMNS) for r in [*others, row])]) + "\n")
    return path


def test_a_batch_sweep_gives_the_rows_that_there_are_tables_for(tmp_path: Path) -> None:
    (row,) = read_batch_rows(batch_file(tmp_path / "sweep.csv"))
    assert (row.max_num_seqs, row.tpot_ms, row.output_tokens) == (64, 50.0, 400.0)
    assert milliseconds_per_sequence([64, 128], [10.0, 16.4]) == pytest.approx(0.1)
    with pytest.raises(MemoryPolicyError, match=r"sweep\.csv:6: Avg TPOT \(s\): 'slow' cannot be used"):
        read_batch_rows(batch_file(tmp_path / "sweep.csv", tpot="slow"))


def paced_run(folder: Path) -> Path:
    """Sixty requests, each alone, that took 1 ms a step more than the profile in two layers would say."""
    prompt_s, token_s = (32 * 7.04 / 32 + 1) / 1000, (2.02 + 1) / 1000
    rows = [
        request(arrival=n, queued=50 + n, first=50 + n + prompt_s, last=50 + n + prompt_s + 2 * token_s)
        for n in range(60)
    ]
    series = [(float(n + 1), 32.0, 3.0, 0, 0, 0.0) for n in range(60)]
    return write_run(folder, rows, series=series)


def test_a_run_and_its_profile_become_a_page_pictures_and_figures(tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "profile")
    # A model of two layers, so that the times are those of the profile twice.
    config = (
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 2,'
    )
    config += ' "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100000,'
    config += ' "max_position_embeddings": 4096, "tie_word_embeddings": false}'
    (tmp_path / "config.json").write_text(config)
    written = run_runner(
        [
            "fidelity",
            f"--measured={paced_run(tmp_path / 'paced')}",
            f"--profile={profile}",
            f"--model-config={tmp_path / 'config.json'}",
            f"--output={tmp_path / 'out'}",
        ]
    )
    assert written.returncode == 0, written.stderr
    page = (tmp_path / "out" / "report.md").read_text()
    assert "**Fitted: 1.00 ms per step** [1.00, 1.00]" in page
    assert "| **fitted time added to every step** | -0.0% |" in page.replace("+0.0%", "-0.0%")
    assert "The run reports a KV use of 0 throughout" in page
    pictures = [path for path in (tmp_path / "out").iterdir() if path.suffix == ".png"]
    assert len(pictures) == 2
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert (tmp_path / "out" / "result.json").is_file()


def test_a_run_needs_a_profile_and_a_fitting_one(tmp_path: Path) -> None:
    folder = paced_run(tmp_path / "paced")
    alone = run_runner(["fidelity", f"--measured={folder}"])
    assert alone.returncode == 1
    assert alone.stderr.strip() == "error: --measured and --profile belong together; give both"
    other = write_profile(tmp_path / "profile", meta={"hardware": "B200"})
    refused = run_runner(["fidelity", f"--measured={folder}", f"--profile={other}", f"--output={tmp_path / 'out'}"])
    assert refused.returncode == 1
    assert "the run is of GPU 'TESTGPU', the profile profile of 'B200'" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_the_committed_run_has_the_statistics_that_it_was_published_with() -> None:
    run = read_measured_run(COMMITTED / RUN)
    published = read_summary(COMMITTED / RUN / "summary.txt").measured
    for latency, statistics in latency_statistics(run).items():
        for name, value in statistics.items():
            assert value == pytest.approx(published[latency][name], abs=0.051)
    for profile in (COMMITTED / "profiles").iterdir():
        assert read_layer_profile(profile).model == run.engine.model


def test_the_committed_figures_come_out_again_and_are_nearer_than_the_published_ones() -> None:
    run, profile = read_measured_run(COMMITTED / RUN), read_layer_profile(COMMITTED / "profiles" / RUN)
    figures = next(of for of in read_json(COMMITTED.parent / "fidelity" / "measured.json")["runs"] if of["name"] == RUN)
    table, _ = step_table(profile, layers=32, step_ms=figures["step_ms"])
    candidate = replace(CANDIDATE, max_num_seqs=128, max_num_batched_tokens=2048)
    simulated = simulate_requests(run.requests, candidate, kv_blocks=figures["kv_blocks"], table=table)
    page = (COMMITTED.parent / "FIDELITY.md").read_text(encoding="utf-8")
    for latency, statistics in latency_statistics(simulated).items():
        known = figures["simulated_ms"][FITTED][latency]
        assert statistics == pytest.approx(known, rel=1e-3)
        error = figures["errors"][FITTED][latency]["mean"]
        assert abs(error) <= abs(figures["published_errors"][latency]["mean"])
        assert f"{LABELS[latency]} {error:+.1%}" in page


def test_errors_are_told_apart_by_the_regime_that_they_arose_in() -> None:
    count, output = 10, 11
    first = np.arange(count, dtype=np.float64) * 1000 + 500
    run = measured_as(first - 100, first, first + 200, output=output)
    # The simulator takes twice as long to the first token and half as long after it, second by second.
    ends = first + 100
    simulated = simulated_as(first - 200, first, ends, output=output)
    light: Regime = "light"
    full: Regime = "kv-bound"
    zeros = np.zeros(11)
    seconds = SimulatedSeconds(
        prompt_tps=zeros,
        output_tps=zeros,
        running=zeros,
        waiting=zeros,
        kv_share=zeros,
        prefill_share=zeros,
        regimes=[light] * 5 + [full] * 6,
    )
    errors = errors_by_regime(run, simulated, seconds)
    assert errors["ttft"] == {"light": [pytest.approx(1.0)], "kv-bound": [pytest.approx(1.0)]}
    assert errors["tpot"] == {"light": [pytest.approx(-0.5)], "kv-bound": [pytest.approx(-0.5)]}
    # Both give out a tenth of all tokens every second, but the very first tenth comes after 1,000 and 600 ms.
    assert errors["throughput"]["light"][0] == pytest.approx(1000 / 600 - 1)
    assert errors["throughput"]["kv-bound"] == [pytest.approx(0.0, abs=1e-9)] * len(errors["throughput"]["kv-bound"])


def measured_as(
    queued: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64], *, output: int
) -> MeasuredRun:
    """A run of one request a second, whose tokens all count for the second in which it ends."""
    count = len(first)
    tokens = np.full(count, output)
    ends, zeros = np.arange(1, count + 2, dtype=np.float64) * 1000, np.zeros(count + 1)
    return MeasuredRun(
        name="made",
        engine=EngineFacts(
            model="m",
            gpu="g",
            tensor_parallel=1,
            dtype="bf16",
            engine_version="0",
            max_num_seqs=1,
            max_num_batched_tokens=1,
            memory_gib=1.0,
            utilization=0.9,
            kv_blocks=9,
        ),
        requests=MeasuredRequests(
            prompt=tokens, output=tokens, arrival_ms=queued, queued_ms=queued, first_ms=first, last_ms=last
        ),
        series=TimeSeries(
            end_ms=ends,
            prompt_tps=zeros,
            output_tps=np.append(np.full(count, float(output)), 0.0),
            running=zeros,
            waiting=zeros,
            kv_share=None,
        ),
    )


def simulated_as(
    queued: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64], *, output: int
) -> SimulatedRun:
    """A simulated run in which each request's tokens come out together with its last one."""
    tokens = np.full(len(first), output)
    steps = SimulatedSteps(
        end_ms=last,
        prompt_tokens=tokens,
        decodes=tokens,
        requests=tokens,
        held_tokens=tokens,
        prefill_share=np.zeros(len(first)),
    )
    return SimulatedRun(
        queued_ms=queued,
        first_ms=first,
        last_ms=last,
        output=tokens,
        steps=steps,
        preemptions=0,
        kv_tokens=16,
        beyond={},
    )
