"""One measured run beside its simulations: fitted, unfitted, and as the product's step tables would price it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench_runner.files import read_json
from bench_runner.layer_profile import LayerProfile
from bench_runner.measured_run import EngineFacts, MeasuredRequests, MeasuredRun
from bench_runner.profile_table import step_table
from bench_runner.run_errors import LATENCIES, STATISTICS, latency_statistics
from bench_runner.simulator import SimulationSettings
from bench_runner.step_fit import StepFit, fit_step_ms
from bench_runner.trace_driven import IN_ENGINE, SimulatedRun, simulate_requests
from service.domain.candidate import Candidate
from service.domain.catalogue import model_by_name
from service.domain.errors import ArtefactError, UnknownNameError
from service.domain.memory import kv_blocks
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch

ASSUMED = SimulationSettings()
# Beside the fit: what is assumed for the product, added to every step or hidden behind the GPU as it assumes.
UNFITTED = "nothing added"
HIDDEN = f"host {ASSUMED.host_step_ms:g} ms + {ASSUMED.host_sequence_ms:g} ms a sequence, hidden behind the GPU"
ADDED = f"{ASSUMED.host_step_ms:g} ms added to every step"
AS_PRODUCT = "as the product simulates: host hidden, prompts and decodes priced apart"
APART_FITTED = "fitted time added, prompts and decodes priced apart"
FITTED = "fitted time added to every step"
GIVEN = "time that was fitted elsewhere added to every step"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """simulated: by what was assumed. step_ms: what `best` has added to every step; fit: None where it was given."""

    engine: EngineFacts
    kv_blocks: int
    kv_source: str
    fit: StepFit | None
    step_ms: float
    best: str
    simulated: Mapping[str, SimulatedRun]
    measured: Mapping[str, Mapping[str, float]]
    profile_name: str
    profile_version: str
    has_mixed: bool

    def errors(self, assumption: str) -> dict[str, dict[str, float]]:
        """{latency: {statistic: (simulated − measured) ÷ measured}}."""
        simulated = latency_statistics(self.simulated[assumption])
        return {
            name: {key: simulated[name][key] / self.measured[name][key] - 1 for key in STATISTICS} for name in LATENCIES
        }


def architecture_of(name: str, config: Path | None = None) -> ModelArch:
    """The model by its config.json, or from the catalogue by its name or that of its instruction-tuned checkpoint."""
    if config is not None:
        return parse_config(read_json(config))
    try:
        return model_by_name(name)
    except UnknownNameError:
        try:
            return model_by_name(f"{name}-Instruct")
        except UnknownNameError as error:
            raise ArtefactError(f"{name!r} is in no catalogue; give its config.json with --model-config") from error


def compare_run(
    engine: EngineFacts,
    requests: MeasuredRequests,
    measured: Mapping[str, Mapping[str, float]],
    profile: LayerProfile,
    *,
    model: ModelArch,
    step_ms: float | None = None,
    fit_on: MeasuredRequests | None = None,
) -> RunComparison:
    """Simulates the requests on that engine. step_ms: taken as it is; None: fitted on the measured requests fit_on."""
    profile.check_fits(model=engine.model, gpu=engine.gpu, dtype=engine.dtype, tensor_parallel=engine.tensor_parallel)
    candidate = Candidate(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        gpu_memory_utilization=engine.utilization,
        enable_prefix_caching=True,
    )
    blocks = engine.kv_blocks or kv_blocks(model, candidate, memory_gib=engine.memory_gib)

    def simulate(added_ms: float, *, mixed: bool = True, settings: SimulationSettings = IN_ENGINE) -> SimulatedRun:
        table, extent = step_table(profile, layers=model.num_layers, step_ms=added_ms, mixed=mixed)
        return simulate_requests(requests, candidate, kv_blocks=blocks, table=table, extent=extent, settings=settings)

    fit = None
    if step_ms is None:
        if fit_on is None:
            raise ArtefactError("nothing to fit on: give the measured requests, or --step-ms")
        fit = fit_step_ms(fit_on, simulate)
        step_ms = fit.step_ms
    best = GIVEN if fit is None else FITTED
    hidden = SimulationSettings(request_ms=0.0, prompt_token_ms=0.0, output_token_ms=0.0, step_jitter=0.0)
    return RunComparison(
        engine=engine,
        kv_blocks=blocks,
        kv_source="as the engine reported it" if engine.kv_blocks else _kv_source(engine),
        fit=fit,
        step_ms=step_ms,
        best=best,
        simulated={
            AS_PRODUCT: simulate(0.0, mixed=False, settings=hidden),
            APART_FITTED: simulate(step_ms, mixed=False),
            UNFITTED: simulate(0.0),
            HIDDEN: simulate(0.0, settings=hidden),
            ADDED: simulate(ASSUMED.host_step_ms),
            best: simulate(step_ms),
        },
        measured=measured,
        profile_name=profile.name,
        profile_version=profile.engine_version,
        has_mixed=len(step_table(profile, layers=1)[0].mixed_new) > 0,
    )


def _kv_source(engine: EngineFacts) -> str:
    return (
        f"by service/domain/memory.py from {engine.memory_gib:g} GiB and utilisation {engine.utilization:g}, "
        "because the run does not say it"
    )


def compare_measured_run(
    run: MeasuredRun, profile: LayerProfile, *, model: ModelArch, step_ms: float | None = None
) -> RunComparison:
    """compare_run for a run with all its requests, on which step_ms is fitted where it is None."""
    return compare_run(
        run.engine,
        run.requests,
        latency_statistics(run),
        profile,
        model=model,
        step_ms=step_ms,
        fit_on=run.requests,
    )


def held_share(run: SimulatedRun) -> float:
    """The largest share of the KV cache that sequences held at the end of a step; 1 at most."""
    return float(min(np.max(run.steps.held_tokens) / run.kv_tokens, 1.0))
