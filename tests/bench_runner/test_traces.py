import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench_runner.lengths import QuantileTable
from bench_runner.traces import read_lengths, read_quantiles, read_rates, read_trace
from service.domain.errors import ArtefactError


def written(folder: Path, *lines: str) -> Path:
    path = folder / "traffic.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_is_read_with_its_times_in_milliseconds_and_its_hash_blocks(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path,
            "arrival_s,prompt_tokens,output_tokens,a_column_of_no_interest,hash_ids_512",
            "0.0,600,5,x,3 4",
            "1.5,512,7,y,3",
        )
    )
    assert trace.arrival_ms.tolist() == [0.0, 1500.0]
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([600, 512], [5, 7])
    assert trace.hashes is not None
    assert (trace.hashes.ids.tolist(), trace.hashes.start.tolist()) == ([3, 4, 3], [0, 2, 3])
    assert trace.lengths().prompt.tolist() == [600, 512]


def test_a_trace_without_hashes_has_none(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, "arrival_s,prompt_tokens,output_tokens", "0,1,1")).hashes is None


def test_lengths_are_drawn_as_pairs_that_occurred(tmp_path: Path) -> None:
    lengths = read_lengths(written(tmp_path, "prompt_tokens,output_tokens", "10,1", "20,2"))
    prompt, output = lengths.draw(np.random.default_rng(0), 1000)
    assert set(zip(prompt.tolist(), output.tolist(), strict=True)) == {(10, 1), (20, 2)}
    assert (prompt == 10).mean() == pytest.approx(0.5, abs=0.06)


def test_empty_requests_are_left_out_on_request_only(tmp_path: Path) -> None:
    path = written(tmp_path, "prompt_tokens,output_tokens", "0,9", "20,2", "5,0")
    assert read_lengths(path, skip_empty=True).prompt.tolist() == [20]
    with pytest.raises(ArtefactError, match="line 2, prompt_tokens: '0'"):
        read_lengths(path)


def test_a_quantile_table_is_linear_between_its_points_and_constant_beyond_them(tmp_path: Path) -> None:
    table = read_quantiles(written(tmp_path, "quantile,tokens", "0.1,10", "0.5,50", "1.0,1000"))
    shares = np.array([0.0, 0.1, 0.3, 0.5, 0.75, 1.0])
    assert table.at(shares).tolist() == [10, 10, 30, 50, 525, 1000]


def test_a_table_of_one_point_is_a_constant() -> None:
    table = QuantileTable(quantile=np.array([0.5]), tokens=np.array([7.0]))
    assert table.at(np.array([0.0, 1.0])).tolist() == [7, 7]


def test_the_last_window_of_a_rate_table_is_as_long_as_the_one_before(tmp_path: Path) -> None:
    rates = read_rates(written(tmp_path, "window_start_s,total_rate_rps", "0,2.5", "600,4"))
    assert (rates.start_s.tolist(), rates.rate_rps.tolist(), rates.end_s) == ([0.0, 600.0], [2.5, 4.0], 1200.0)


TRACE, LENGTHS = "arrival_s,prompt_tokens,output_tokens", "prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("read", "lines", "says"),
    [
        (read_trace, (TRACE, "0,5,1", "1,many,1"), "line 3, prompt_tokens: 'many' cannot be used; a whole number"),
        (read_trace, (TRACE, "0,5,1", "1,5,-2"), "line 3, output_tokens: '-2'"),
        (read_trace, (TRACE, "0,5"), "line 2, output_tokens: ''"),
        (read_trace, (TRACE, "0,5,1,9"), "line 2: more values than"),
        (read_trace, (TRACE, "4,5,1", "3,5,1"), "line 3, arrival_s: '3' cannot be used; it follows 4; sort the rows"),
        (read_trace, (TRACE, "nan,5,1"), "line 2, arrival_s: 'nan'"),
        (read_trace, (TRACE,), "line 1: '' follows the header; give at least one row"),
        (read_trace, (LENGTHS, "5,1"), "line 1: 'prompt_tokens, output_tokens' lacks the column arrival_s"),
        (
            read_trace,
            (f"{TRACE},hash_ids_512", "0,600,1,4"),
            "line 2, hash_ids_512: '1 ids' cannot be used; 600 prompt",
        ),
        (read_trace, (f"{TRACE},hash_ids_512", "0,5,1,a"), "line 2, hash_ids_512: 'a'"),
        (read_lengths, (LENGTHS, "5,1", "1e3,1"), "line 3, prompt_tokens: '1e3'"),
        (read_quantiles, ("quantile,tokens", "0.5,3", "1.5,4"), "line 3, quantile: '1.5'"),
        (read_quantiles, ("quantile,tokens", "0.5,3", "0.5,4"), "line 3, quantile: '0.5' cannot be used; it follows"),
        (read_quantiles, ("quantile,tokens", "0.5,3", "0.6,2"), "line 3, tokens: '2'"),
        (read_quantiles, ("quantile,tokens", "0.5,0"), "line 2, tokens: '0'"),
        (read_rates, ("window_start_s,total_rate_rps", "0,1"), "at least two windows"),
        (read_rates, ("window_start_s,total_rate_rps", "0,1", "9,-1"), "line 3, total_rate_rps: '-1'"),
    ],
)
def test_a_bad_row_is_refused_with_file_line_value_and_remedy(
    tmp_path: Path, read: Callable[[Path], object], lines: tuple[str, ...], says: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(ArtefactError, match=re.escape(says)) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))


def test_what_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "traffic.csv").write_bytes(b"\xff\xfe\x00arrival")
    for path in (tmp_path / "traffic.csv", tmp_path / "none.csv"):
        with pytest.raises(ArtefactError, match="cannot be read as CSV"):
            read_trace(path)
