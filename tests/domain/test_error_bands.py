import json
import math
from pathlib import Path
from typing import Any

import pytest

from service.domain.error_bands import BAND_METRICS, ERROR_BANDS_FILE, ErrorBand, ErrorBands
from service.domain.errors import ArtefactError
from service.domain.regime import REGIMES

COMMITTED = Path(__file__).resolve().parents[2] / "bench_runner" / ERROR_BANDS_FILE
BAND: dict[str, Any] = {"bias": 0.05, "low": -0.2, "high": 0.25, "n": 9, "source": "nine windows"}


def test_the_committed_bands_say_a_range_or_why_there_is_none() -> None:
    content = json.loads(COMMITTED.read_bytes())
    bands = ErrorBands.from_json(content)
    assert bands.to_json() == content
    assert set(bands.bands) == {"measured", "measured-cpu"}
    for metric in BAND_METRICS:
        for regime in REGIMES:
            band = bands.of(metric, regime)
            assert (band.low is None) == bool(band.reason)


def test_a_measurement_lies_where_the_errors_put_it() -> None:
    # 80 simulated is 20 % below 100 measured, 125 is 25 % above.
    low, high = ErrorBand(**BAND).measured_range(100.0) or (0.0, 0.0)
    assert low == pytest.approx(80)
    assert high == pytest.approx(125)
    assert ErrorBand(bias=None, low=None, high=None, n=0, reason="no data").measured_range(100.0) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"low": None}, "together"),
        ({"n": 0}, "together"),
        ({"source": None}, "together"),
        ({"low": 0.3}, "above high"),
        ({"low": -1}, "above -1"),
        ({"high": math.nan}, "finite"),
        ({"high": "1"}, "finite"),
        ({"n": 1.5}, "number of comparisons"),
        ({"bias": None, "low": None, "high": None, "n": 0}, "a reason"),
    ],
)
def test_a_band_that_says_nothing_or_nonsense_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ArtefactError, match=says):
        ErrorBand(**{**BAND, **change})


def test_foreign_files_are_refused_with_what_is_wrong() -> None:
    content = json.loads(COMMITTED.read_bytes())
    with pytest.raises(ArtefactError, match="schema_version 2"):
        ErrorBands.from_json({**content, "schema_version": 2})
    with pytest.raises(ArtefactError, match="'guessed' is none of"):
        ErrorBands.from_json({**content, "bands": {"guessed": {}}})
    with pytest.raises(ArtefactError, match="no class `measured`"):
        ErrorBands.from_json({**content, "bands": {}})
    del content["bands"]["measured"]["ttft"]["light"]
    with pytest.raises(ArtefactError, match="'light' is missing"):
        ErrorBands.from_json(content)
