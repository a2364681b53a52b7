"""make bench BENCH=load: what the load generator costs and how exact it is, beside `vllm bench serve`, in one run.

Both send the same number of requests of the same lengths, at the same Poisson rate and with the same limit on how many
are on their way, to the same scripted server, by turns. Costs are the CPU seconds of the client's processes from the
moment that the server reads the first request to the moment that it writes the last token; start-up, imports and the
final statistics are left out on both sides, and so are the prompts of `vllm bench serve`, which it writes beforehand.
The TTFT error of a request is the client's TTFT minus the server's own: first token written − request read. Both
clients run with the same raised priority, and the server, being the reference, with a higher one.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from numpy.typing import NDArray

from bench_runner.bar import Bar
from bench_runner.load import LoadResult, LoadSpec, client_saturated, run_load
from bench_runner.priority import TIMING, raise_priority
from bench_runner.protocol import Protocol
from bench_runner.request_log import Outcome, request_ids
from bench_runner.server import free_port
from service.domain.errors import ArtefactError

MODEL = "scripted"
PROMPT_TOKENS, OUTPUT_TOKENS, SLOTS = 256, 128, 128
# An answer takes 1.64 s, so 128 places bear 78 requests per second; 66 of them are 8,400 tokens.
SCRIPT = {"first_token_s": 0.05, "token_interval_s": 0.0125}
REQUESTS_PER_S = 66.0
REQUESTS, ROUNDS = 800, 2
# 256 answers of 256 tokens in 3.26 s: 20,100 tokens per second.
FULL_CLIENTS, FULL_TOKENS = 256, 256
FULL_SCRIPT = {"first_token_s": 0.05, "token_interval_s": 0.0126}
WORDS = 1000
PROTOCOL = Protocol(warm_up_s=4.0, window_s=10.0, ramp_seed=1, prefix_seed=2, prompt_seed=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A run of one client. errors_ms: TTFT errors [requests]."""

    cpu_s: float
    tokens: int
    errors_ms: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTarget:
    """A running scripted server."""

    base_url: str
    pid: int

    def log(self) -> dict[str, dict[str, Any]]:
        """What it did, by X-Request-Id."""
        with urllib.request.urlopen(f"{self.base_url}/script/log", timeout=60) as answer:
            records = [json.loads(line) for line in answer]
        return {record["request_id"]: record for record in records}


def main() -> int:
    """Prints a BAR line for each goal; exit code 0 whether reached or not, 1 if something could not be measured."""
    try:
        for bar in (*_compared(), _at_full_rate()):
            print(bar.line(), flush=True)
    except ArtefactError as error:
        print(f"load_bench: {error}", file=sys.stderr)
        return 1
    return 0


def _compared() -> Iterator[Bar]:
    sides: dict[str, list[Costs]] = {"bench_runner": [], "vllm bench serve": []}
    with tempfile.TemporaryDirectory() as folder, _scripted_server(Path(folder), SCRIPT) as server:
        tokenizer = _write_tokenizer(Path(folder))
        for number in range(ROUNDS):
            sides["bench_runner"].append(_ours(server, seed=number))
            sides["vllm bench serve"].append(_theirs(server, tokenizer, seed=number))
    rates, tails = [], []
    for name, costs in sides.items():
        rates.append(1e6 * sum(cost.cpu_s for cost in costs) / sum(cost.tokens for cost in costs))
        middle, tail = np.percentile(np.abs(np.concatenate([cost.errors_ms for cost in costs])), [50, 95])
        tails.append(float(tail))
        print(f"{name}: {rates[-1]:.2f} CPU s per million tokens; TTFT error p50 {middle:.3f} ms, p95 {tail:.3f} ms")
    yield Bar(name="load_client_cpu_ratio", value=rates[0] / rates[1], target=0.5, at_most=True)
    yield Bar(name="load_ttft_error_ratio", value=tails[0] / tails[1], target=1, at_most=True)


def _at_full_rate() -> Bar:
    with tempfile.TemporaryDirectory() as folder, _scripted_server(Path(folder), FULL_SCRIPT) as server:
        spec = _spec(
            server,
            clients=FULL_CLIENTS,
            max_new_tokens=FULL_TOKENS,
            warm_up_s=PROTOCOL.warm_up_s,
            window_s=PROTOCOL.window_s,
        )
        result = _run(spec)
        errors_ms = _ttft_errors_ms(result, spec, server.log())
    flagged = client_saturated(
        result.client, max_lag_p95_ms=PROTOCOL.max_loop_lag_p95_ms, max_cpu_share=PROTOCOL.max_client_cpu
    )
    rate, client = result.tokens_in_window / PROTOCOL.window_s, result.client
    print(
        f"{FULL_CLIENTS} clients: {rate:.0f} tokens/s, loop lag p95 {client.loop_lag_p95_ms:.2f} ms, "
        f"CPU {100 * (client.cpu_share or 0):.0f} % of the busiest process, client_saturated {flagged}"
    )
    error_ms = float(np.percentile(np.abs(errors_ms), 95))
    return Bar(name="load_ttft_error_p95_ms_c256", value=error_ms, target=5, at_most=True, flagged=flagged)


def _ours(server: ScriptedTarget, *, seed: int) -> Costs:
    gaps_s = np.random.default_rng(seed).exponential(1 / REQUESTS_PER_S, REQUESTS)
    arrivals_s = tuple(np.cumsum(gaps_s).tolist())
    spec = _spec(server, clients=SLOTS, arrivals_s=arrivals_s, warm_up_s=0.0, window_s=arrivals_s[-1] + 4.0)
    # What this process does for its workers counts in full, from their start to their end.
    before_s = time.thread_time()
    with CpuClock(but=server.pid) as clock:
        result = _run(spec)
        own_s = time.thread_time() - before_s
    log, names = server.log(), request_ids(result.log, spec.prompt_seed)
    if int(np.sum(result.log.outcome == Outcome.COMPLETED)) != REQUESTS:
        raise ArtefactError(f"of {REQUESTS} requests some did not complete ({result.log.errors}); run it again")
    return Costs(
        cpu_s=own_s + clock.between([log[name] for name in names if name]),
        tokens=int(result.log.tokens.sum()),
        errors_ms=_ttft_errors_ms(result, spec, log),
    )


def _theirs(server: ScriptedTarget, tokenizer: Path, *, seed: int) -> Costs:
    saved, prefix = tokenizer.with_name(f"{seed}.json"), f"theirs{seed}-"
    options = {
        "backend": "openai",
        "base-url": server.base_url,
        "model": MODEL,
        "served-model-name": MODEL,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": OUTPUT_TOKENS,
        "num-prompts": REQUESTS,
        "max-concurrency": SLOTS,
        "request-rate": REQUESTS_PER_S,
        "request-id-prefix": prefix,
        "temperature": 0,
        "seed": seed,
        "result-dir": saved.parent,
        "result-filename": saved.name,
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", *flags]
    with CpuClock(but=server.pid) as clock:
        output, code = _run_timed([*command, "--save-result", "--save-detailed", "--disable-tqdm"])
    if code or not saved.exists():
        last = (output.strip().splitlines() or ["it said nothing"])[-1]
        raise ArtefactError(f"vllm bench serve failed ({last}); it comes with the environment of make test-engine")
    found = json.loads(saved.read_text())
    if found["completed"] != REQUESTS:
        raise ArtefactError(f"vllm bench serve completed {found['completed']} of {REQUESTS} requests; run it again")
    log = server.log()
    records = [log[f"{prefix}{number}"] for number in range(REQUESTS)]
    errors_ms = 1000 * np.array(found["ttfts"]) - np.array([_server_ttft_ms(record) for record in records])
    return Costs(cpu_s=clock.between(records), tokens=sum(found["output_lens"]), errors_ms=errors_ms)


def _run_timed(command: list[str]) -> tuple[str, int]:
    """Output and exit code of a process with the priority that the load generator's own have."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            raise_priority(process.pid)
            output, _ = process.communicate()
        finally:
            process.kill()
    return output, process.returncode


class CpuClock:
    """CPU seconds of all processes that this one has started, but one, over time."""

    def __init__(self, *, but: int) -> None:
        self._but = but
        self._at_ns: list[int] = []
        self._cpu_s: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, records: list[dict[str, Any]]) -> float:
        """From the arrival of the first of these requests to the last token of the last."""
        moments = [min(r["arrived_ns"] for r in records), max(r["last_ns"] for r in records)]
        start_s, end_s = np.interp(moments, self._at_ns, self._cpu_s)
        return float(end_s - start_s)

    def _run(self) -> None:
        seen: dict[int, float] = {}
        while not self._ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                if process.pid != self._but:
                    try:
                        times = process.cpu_times()
                    except psutil.Error:
                        continue
                    seen[process.pid] = times.user + times.system
            self._at_ns.append(time.monotonic_ns())
            self._cpu_s.append(sum(seen.values()))


def _spec(server: ScriptedTarget, **changes: Any) -> LoadSpec:
    settings: dict[str, Any] = {
        "base_url": server.base_url,
        "served_model": MODEL,
        "prompt_tokens": PROMPT_TOKENS,
        "shared_prefix_tokens": 0,
        "max_new_tokens": OUTPUT_TOKENS,
        "ramp_s": PROTOCOL.ramp_s,
        "prefix_seed": PROTOCOL.prefix_seed,
        "ramp_seed": PROTOCOL.ramp_seed,
        "prompt_seed": time.time_ns(),
        "token_ids": (PROTOCOL.token_id_low, PROTOCOL.token_id_high),
        "request_timeout_s": PROTOCOL.request_timeout_s,
    }
    return LoadSpec(**{**settings, **changes})


def _run(spec: LoadSpec) -> LoadResult:
    result = run_load(spec, should_stop=lambda: False, on_progress=lambda _: None)
    if result.gave_up is not None:
        raise ArtefactError(f"the load generator gave up: {result.gave_up}")
    return result


def _ttft_errors_ms(result: LoadResult, spec: LoadSpec, log: dict[str, dict[str, Any]]) -> NDArray[np.float64]:
    """Of the requests whose first token came in the timed region."""
    start_ns = result.start_ns + round(1e9 * spec.warm_up_s)
    timed = result.log.first_ns >= start_ns
    truth_ms = [
        _server_ttft_ms(log[name]) if name and counts else np.nan
        for name, counts in zip(request_ids(result.log, spec.prompt_seed), timed, strict=True)
    ]
    errors_ms: NDArray[np.float64] = (result.log.ttft_ms(from_due=False) - np.array(truth_ms))[timed]
    return errors_ms


def _server_ttft_ms(record: dict[str, Any]) -> float:
    return float(record["first_ns"] - record["arrived_ns"]) / 1e6


@contextmanager
def _scripted_server(folder: Path, script: dict[str, Any]) -> Iterator[ScriptedTarget]:
    path, port = folder / "script.json", free_port()
    path.write_text(json.dumps(script))
    module = [sys.executable, "-m", "bench_runner.scripted_server", "--script", str(path), "serve", MODEL]
    command = [*module, f"--port={port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            raise_priority(process.pid, niceness=2 * TIMING)
            target = ScriptedTarget(base_url=f"http://127.0.0.1:{port}", pid=process.pid)
            deadline = time.monotonic() + 30
            while not _answers(target):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise ArtefactError("the scripted server does not start; run it by hand to see why")
                time.sleep(0.05)
            yield target
        finally:
            process.kill()


def _answers(target: ScriptedTarget) -> bool:
    try:
        target.log()
    except OSError:
        return False
    return True


def _write_tokenizer(folder: Path) -> Path:
    """A tokeniser of words, since there is none for a scripted model and `vllm bench serve` wants one."""
    path = folder / "tokenizer"
    path.mkdir()
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    (path / "tokenizer.json").write_text(json.dumps(whole))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


if __name__ == "__main__":
    sys.exit(main())
