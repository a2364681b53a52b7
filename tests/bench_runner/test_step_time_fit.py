from pathlib import Path

import numpy as np
import pytest

from bench_runner.step_time import StepTable, gpu_ms, load_step_tables
from bench_runner.step_time_fit import (
    STEP_TERMS,
    FrontEndPoint,
    StepPoint,
    attended_pairs,
    fit_terms,
    measured_settings,
    write_tables,
)
from service.domain.errors import ArtefactError
from tests.bench_runner.test_step_time import step_of

# Milliseconds per STEP_TERMS: powers of two, so that sums show which terms are in them.
COSTS = dict(zip(STEP_TERMS, (4.0, 0.125, 0.5, 2.0, 2**-8, 2**-14, 2**-10), strict=True))
FRONT_END = (2.0, 0.001, 0.05, 0.25)


def point(**numbers: int) -> StepPoint:
    """A kind of step that takes exactly what COSTS says."""
    shape = {"new_tokens": 0, "past_tokens": 0, "sequences": 1, "context_tokens": 64} | numbers
    terms = StepPoint.of([1.0] * 3, **shape).terms()
    return StepPoint.of([float(np.dot(terms, list(COSTS.values())))] * 3, **shape)


POINTS = [
    *(point(sequences=n, context_tokens=c) for n in (1, 4, 16, 64) for c in (64, 1024)),
    *(point(new_tokens=new, past_tokens=past) for new in (32, 512, 2000) for past in (0, 1024)),
]
CPU = [
    FrontEndPoint(requests=r, prompt_tokens=p, output_tokens=o, steps=s, cpu_ms=float(np.dot((r, p, o, s), FRONT_END)))
    for r, p, o, s in ((160, 2560, 160, 5), (160, 163840, 160, 5), (160, 2560, 10240, 320), (5, 80, 1280, 1280))
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Tables of COSTS and FRONT_END."""
    write_tables(tmp_path / "cpu.json", model="tiny", steps=POINTS, cpu=CPU)
    return tmp_path / "cpu.json"


@pytest.fixture
def table(written: Path) -> StepTable:
    """The table that the simulator reads from them."""
    return load_step_tables(written).of("tiny")


def test_a_chunk_attends_to_what_is_before_it_and_to_half_of_itself() -> None:
    # Token k of the chunk sees past + k keys; over 4 tokens behind 10 that is 4 · 10 + (1+2+3+4) ≈ 40 + 8.
    assert attended_pairs(4, 10) == 48


def test_the_fit_finds_the_costs_that_made_the_points() -> None:
    terms = np.array([p.terms() for p in POINTS], float)
    found = fit_terms(terms, np.array([p.step_ms for p in POINTS]))
    assert found == pytest.approx(list(COSTS.values()), rel=1e-6)


def test_one_disturbed_point_moves_no_other() -> None:
    terms, times = np.array([p.terms() for p in POINTS], float), np.array([p.step_ms for p in POINTS])
    times[3] *= 10
    assert fit_terms(terms, times) == pytest.approx(list(COSTS.values()), rel=0.02)


def test_a_cost_that_would_be_negative_is_zero() -> None:
    # y falls with the second term: 10 at 0, 8 at 1.
    terms = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    found = fit_terms(terms, np.array([10.0, 8.0, 10.0, 8.0]))
    assert found[1] == 0
    assert 8 <= found[0] <= 10


def test_the_tables_price_decodes_as_measured(table: StepTable) -> None:
    requests, step = step_of([(10, 1, 99, True), (10, 1, 299, True)])
    # 4 + 2 tokens + 2 samples + 2 sequences × mean context 200.
    assert gpu_ms(table, requests, step) == pytest.approx(4 + 2 * 0.125 + 2 * 0.5 + 2 * 200 * 2**-10)


def test_the_tables_price_a_chunk_beside_a_decode_as_measured(table: StepTable) -> None:
    requests, step = step_of([(2000, 512, 1024, False), (10, 1, 63, True)])
    decode = 1 * 64 * 2**-10
    chunk = 2 + 1024 * 2**-8 + 512 * (1024 + 256) * 2**-14
    assert gpu_ms(table, requests, step) == pytest.approx(4 + 513 * 0.125 + 0.5 + decode + chunk)


def test_host_time_is_in_the_steps_and_the_front_end_is_the_cpu_time_of_the_api_server(written: Path) -> None:
    settings = measured_settings(written, ramp_ms=250.0)
    assert (settings.host_step_ms, settings.host_sequence_ms, settings.asynchronous) == (0, 0, False)
    assert settings.request_ms == pytest.approx(2.0, rel=1e-4)
    assert settings.prompt_token_ms == pytest.approx(0.001, rel=1e-4)
    assert settings.output_token_ms == pytest.approx(0.05, rel=1e-4)
    assert settings.ramp_ms == 250


def test_a_point_is_the_median_of_its_readings_and_keeps_their_range() -> None:
    found = StepPoint.of([9.0, 1.0, 2.0], sequences=1, context_tokens=8)
    assert (found.step_ms, found.low_ms, found.high_ms) == (2.0, 1.0, 9.0)


def test_two_readings_are_too_few() -> None:
    with pytest.raises(ArtefactError, match="2 readings, 3 are needed"):
        StepPoint.of([1.0, 2.0], sequences=1, context_tokens=8)


def test_tables_of_kernel_times_have_no_settings_of_a_server() -> None:
    committed = Path(__file__).parents[2] / "bench_runner" / "step_tables" / "b200_sxm.json"
    with pytest.raises(ArtefactError, match="probe one again"):
        measured_settings(committed, ramp_ms=0.0)
