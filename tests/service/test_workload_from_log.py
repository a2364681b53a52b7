"""`python -m service workload from-log`: a log's own numbers, read by the rules that the help text states."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.__main__ import main
from service.commands.log_plot import concurrency_panel, length_panel, spark
from service.commands.log_workload import concurrency_of, parts_of, shared_share

LENGTHS = ("--prompt-tokens", "prompt", "--output-tokens", "output")
TIMES = ("--arrival", "at", "--latency", "took")


def csv_file(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def json_lines(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def workload(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> dict[str, Any]:
    assert main(["workload", "from-log", str(path), *LENGTHS, *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["workload"]
    return found


def said(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    assert main(["workload", "from-log", str(path), *LENGTHS, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    assert main(["workload", "from-log", str(path), *LENGTHS, *arguments]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


# One request a second for ten seconds, each of two seconds: two in flight but in the first second.
STEADY = [{"at": i, "prompt": 100, "output": 10, "took": 2} for i in range(11)]


def test_a_steady_log_is_one_number_for_each_field(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = workload(capsys, csv_file(tmp_path / "steady.csv", STEADY), *TIMES)
    # From 0 to 10 s: one in flight for a second, two for nine: mean 1.9, and two for more than 95 %? 90 % only, so
    # the time-weighted 95th percentile is 2 as well; 1.9 rounds to 2.
    assert found == {"prompt_tokens": 100, "max_new_tokens": 10, "concurrency": 2}


def test_the_prompt_is_a_mean_and_the_output_a_cap_for_95_of_100(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"prompt": 100 + 200 * (i % 2), "output": i + 1} for i in range(101)]
    found = workload(capsys, csv_file(tmp_path / "log.csv", rows))
    # 51 prompts of 100 and 50 of 300: 20,100 / 101 = 199. Outputs 1 … 101: the 95th percentile is the 96th of them.
    # Their mean is 51.
    assert found == {"prompt_tokens": 199, "max_new_tokens": 96, "output_tokens": 51, "max_output_tokens": 101}


def test_a_mean_above_the_cap_is_not_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # One answer of 100,000 among 100 of 10: the mean is 1,000, and 95 of 100 stay within 10.
    rows = [{"prompt": 1, "output": 100_000 if i == 50 else 10} for i in range(101)]
    found = workload(capsys, csv_file(tmp_path / "log.csv", rows))
    assert found == {"prompt_tokens": 1, "max_new_tokens": 10, "max_output_tokens": 100_000}


def test_a_range_is_how_the_log_changed_and_not_how_requests_differ(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 1,000 requests are 20 parts of 50; in part k prompts alternate between k and 2,000 + k, with mean 1,000 + k, so
    # 1,000 to 1,019: narrower than 5 %. Outputs are 10 in the first half and 40 in the second.
    rows = [
        {"prompt": (i // 50) + 2000 * (i % 2) or 1, "output": 10 if i < 500 else 40, "at": i, "took": 0.5}
        for i in range(1000)
    ]
    found = workload(capsys, csv_file(tmp_path / "log.csv", rows), *TIMES)
    assert isinstance(found["prompt_tokens"], int)
    assert found["max_new_tokens"] == [10, 40]


def test_without_latency_the_rate_is_said_instead_of_a_concurrency(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Two a second in the first 100 s, ten a second afterwards; all parts of 40 requests are of one kind.
    arrivals = [i / 2 for i in range(200)] + [100 + i / 10 for i in range(200)]
    path = csv_file(tmp_path / "log.csv", [{"at": at, "prompt": 5, "output": 5} for at in arrivals])
    found = workload(capsys, path, "--arrival", "at")
    assert "concurrency" not in found
    assert found["requests_per_second"] == [2.0, 10.0]
    assert "concurrency is not known" in said(capsys, path, "--arrival", "at")


def test_one_request_alone_has_neither_rate_nor_concurrency(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", STEADY[:1])
    assert workload(capsys, path, *TIMES) == {"prompt_tokens": 100, "max_new_tokens": 10}
    text = said(capsys, path, *TIMES, "--plot", str(tmp_path / "one.svg"))
    assert "add concurrency: the one request arrives at one moment, and it takes a time between arrivals" in text
    assert "add concurrency: without times" in said(capsys, path)


def test_requests_that_all_arrive_at_once_have_times_but_no_concurrency(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = csv_file(tmp_path / "log.csv", [{**row, "at": 7} for row in STEADY])
    assert "concurrency" not in workload(capsys, path, *TIMES)
    text = said(capsys, path, *TIMES)
    assert "add concurrency: all requests arrive at one moment" in text
    assert "without times" not in text


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [
        ("s", 0, 1.5),
        ("ms", 0, 1500),
        ("us", 0, 1_500_000),
        ("ns", 0, 1_500_000_000),
        ("iso", "2023-11-16 18:15:46.6805900", "2023-11-16 18:15:48.180590"),
        ("iso", "2023-11-16T18:15:46Z", "2023-11-16T20:15:47.5+02:00"),
    ],
)
def test_times_are_read_in_their_unit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, unit: str, first: object, second: object
) -> None:
    rows = [{"at": first, "prompt": 5, "output": 5}, {"at": second, "prompt": 5, "output": 5}]
    found = workload(capsys, csv_file(tmp_path / "log.csv", rows), "--arrival", "at", "--unit", unit)
    assert found["requests_per_second"] == pytest.approx(1 / 1.5, rel=1e-3)


def test_two_of_arrival_end_and_latency_say_the_third(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{**row, "done": row["at"] + row["took"]} for row in STEADY]
    path = csv_file(tmp_path / "log.csv", rows)
    pairs = [("--arrival", "at", "--end", "done"), ("--end", "done", "--latency", "took"), TIMES]
    assert [workload(capsys, path, *pair)["concurrency"] for pair in pairs] == [2, 2, 2]
    assert "two of arrival, end and latency" in refused(capsys, path, "--latency", "took")


def test_requests_are_put_in_the_order_of_their_arrival(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"at": 5, "prompt": 600, "output": 1, "hashes": "a b"},
        {"at": 1, "prompt": 600, "output": 1, "hashes": "a"},
    ]
    found = workload(capsys, csv_file(tmp_path / "log.csv", rows), "--arrival", "at", "--token-hashes", "hashes")
    # Only the later one, which is the first line, finds its first block: 512 of 1,200 tokens.
    assert found["shared_prefix_ratio"] == round(512 / 1200, 4)


def test_a_prefix_is_what_an_earlier_request_began_with() -> None:
    prompts = np.array([30, 30, 30, 25])
    blocks = [("a", "b", "c"), ("a", "b", "x"), ("z", "b", "c"), ("a", "b", "c")]
    # 20 of the second; nothing of the third, whose b and c stand behind another beginning; all but one of the last.
    assert shared_share(blocks, prompts, None, block_tokens=10) == (20 + 0 + 24) / 115


def test_a_prefix_is_forgotten_a_window_after_its_last_use() -> None:
    prompts, blocks = np.array([10, 10, 10]), [("a",), ("a",), ("a",)]
    arrivals = np.array([0.0, 6.0, 20.0])
    # 9 tokens count of a repeated prompt of 10: the last is computed in any case.
    assert shared_share(blocks, prompts, arrivals, block_tokens=10, window_s=10.0) == 9 / 30
    assert shared_share(blocks, prompts, arrivals, block_tokens=10, window_s=14.0) == 18 / 30
    assert shared_share(blocks, prompts, arrivals, block_tokens=10, window_s=5.0) == 0.0


def test_the_share_is_given_from_windowed_to_never_forgotten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"at": 1000 * i, "prompt": 1024, "output": 1, "hashes": [1, i]} for i in (0, 1, 2, 3)]
    path = json_lines(tmp_path / "log.jsonl", rows)
    hashed = ("--arrival", "at", "--token-hashes", "hashes")
    # The common block of 512 comes back after 1,000 s: in three of four requests.
    assert workload(capsys, path, *hashed)["shared_prefix_ratio"] == [0.0, 0.375]
    assert workload(capsys, path, *hashed, "--cache-window", "1000")["shared_prefix_ratio"] == 0.375
    assert workload(capsys, path, "--token-hashes", "hashes")["shared_prefix_ratio"] == 0.375


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=2, max_size=40
    )
)  # fmt: skip
def test_concurrency_is_what_counting_at_every_instant_gives(requests: list[tuple[int, int]]) -> None:
    arrival = np.array([float(at) for at, _ in requests])
    end = arrival + np.array([float(took) for _, took in requests])
    seen = concurrency_of(arrival, end)
    # Everything happens at whole seconds, so the middles of the seconds see every state for as long as it holds.
    moments = np.arange(arrival.min(), arrival.max()) + 0.5
    if seen is None:
        assert len(moments) == 0
        return
    counts = np.array([int(((arrival <= moment) & (moment < end)).sum()) for moment in moments])
    assert seen.mean == pytest.approx(counts.mean())
    assert seen.p95 == np.sort(counts)[int(np.ceil(0.95 * len(counts) - 1e-9)) - 1]


@given(st.integers(1, 5000))
def test_parts_are_equally_long_and_leave_nothing_out(requests: int) -> None:
    parts = parts_of(requests)
    sizes = [part.stop - part.start for part in parts]
    assert [part.start for part in parts] == [0, *np.cumsum(sizes)[:-1].tolist()]
    assert (sum(sizes), max(sizes) - min(sizes) <= 1) == (requests, True)
    assert len(parts) == 1 or min(sizes) >= 50


def test_csv_json_lines_and_their_gzip_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nested = [
        {"request": {"at": r["at"]}, "took": r["took"], "prompt": r["prompt"], "output": r["output"]} for r in STEADY
    ]
    plain = csv_file(tmp_path / "log.csv", STEADY)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    tabbed = tmp_path / "log.tsv"
    tabbed.write_text(plain.read_text().replace(",", "\t"))
    other = tmp_path / "log.txt"
    other.write_text(plain.read_text().replace(",", ";"))
    expected = workload(capsys, plain, *TIMES)
    assert workload(capsys, packed, *TIMES) == expected
    assert workload(capsys, tabbed, *TIMES) == expected
    assert workload(capsys, other, *TIMES, "--format", "csv", "--delimiter", ";") == expected
    in_json = json_lines(tmp_path / "log.jsonl", nested)
    assert workload(capsys, in_json, "--arrival", "request.at", "--latency", "took") == expected


def test_only_the_lines_that_are_asked_for_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"model": "a" if i % 2 else "b", "prompt": 10 + i % 2, "output": 1} for i in range(10)]
    path = csv_file(tmp_path / "log.csv", rows)
    assert workload(capsys, path, "--where", "model=a")["prompt_tokens"] == 11
    assert "5 of others" in said(capsys, path, "--where", "model=a")
    assert "no request with model=c" in refused(capsys, path, "--where", "model=c")


def test_a_few_bad_lines_are_left_out_counted_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": 100, "output": 10} for _ in range(200)]
    rows[7]["prompt"], rows[100]["output"] = "many", 0
    path = csv_file(tmp_path / "log.csv", rows)
    text = said(capsys, path)
    assert text.startswith("198 requests; 200 lines, 2 unusable\n")
    assert "left out: line 9: prompt: 'many' cannot be used; give a whole number from 1 to 10000000" in text
    assert "left out: line 102: output: '0' cannot be used" in text


def test_too_many_bad_lines_refuse_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", [{"prompt": "?" if i < 5 else 1, "output": 1} for i in range(100)])
    message = refused(capsys, path)
    assert "5 of 100 lines cannot be used, more than 0.01 of all: line 2: prompt: '?'" in message
    assert "; …. Mend them" in message
    assert workload(capsys, path, "--most-bad", "0.05") == {"prompt_tokens": 1, "max_new_tokens": 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": 1}', "output: not there; its keys are 'prompt'"),
        ('{"prompt": 1.5, "output": 1}', "prompt: 1.5 cannot be used"),
        ('{"prompt": true, "output": 1}', "prompt: True cannot be used"),
        ('{"prompt": NaN, "output": 1}', "prompt: nan cannot be used"),
        ('{"prompt": 1e400, "output": 1}', "prompt: inf cannot be used"),
        ('{"prompt": null, "output": 1}', "prompt: None cannot be used"),
        ("[1, 2]", "'[1, 2]' is no JSON object"),
        ("[" * 100_000, "is no JSON object"),
        ('{"prompt": 1, "output": 1, "at": "now", "took": 1}', "at: 'now' cannot be used; give a number (in s)"),
        ('{"prompt": 1, "output": 1, "at": 1e308, "took": 1}', "at: 1e+308 cannot be used; give a number (in s) of at"),
        (
            '{"prompt": 1, "output": 1, "at": 1, "took": 1.1e15}',
            "took: 1100000000000000.0 cannot be used; give a number",
        ),
        ('{"prompt": 1, "output": 1, "at": 5, "took": -1}', "took: the request ends before it arrives"),
        ('{"prompt": 1, "output": 1, "at": 5, "took": 1, "hashes": {"a": 1}}', "give a list of block hashes"),
        (
            '{"prompt": 1024, "output": 1, "at": 5, "took": 1, "hashes": [1, 2, 3]}',
            "hashes: 3 blocks of 512 tokens for a prompt of 1024; check --block-tokens",
        ),
    ],
)
def test_a_bad_line_is_named_with_its_field_and_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, why: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    columns = (*TIMES, "--token-hashes", "hashes") if '"at"' in line else ()
    assert why in refused(capsys, path, *columns)


def test_times_that_are_no_times_are_named_with_their_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # The difference of the two is beyond every number.
    rows = [{"at": at, "prompt": 5, "output": 5, "took": 1} for at in ("-1e308", "1e308")]
    message = refused(capsys, csv_file(tmp_path / "log.csv", rows), *TIMES)
    assert "line 2: at: '-1e308' cannot be used" in message
    assert "line 3: at: '1e308' cannot be used; give a number (in s) of at most 1e+15 s" in message


def test_the_farthest_times_are_used_whatever_their_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Nanoseconds since 1970 are more than 1e15, and few seconds.
    rows = [{"at": at, "prompt": 5, "output": 5} for at in (1_700_000_000 * 10**9, 1_700_000_004 * 10**9)]
    path = csv_file(tmp_path / "log.csv", rows)
    assert workload(capsys, path, "--arrival", "at", "--unit", "ns")["requests_per_second"] == 0.25
    far = csv_file(tmp_path / "far.csv", [{**row, "at": at} for row, at in zip(rows, (-1e15, 1e15), strict=True)])
    assert workload(capsys, far, "--arrival", "at")["requests_per_second"] == 5e-16


def test_arrivals_too_near_each_other_for_a_rate_have_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", [{"at": at, "prompt": 5, "output": 5} for at in ("0", "5e-324")])
    assert workload(capsys, path, "--arrival", "at") == {"prompt_tokens": 5, "max_new_tokens": 5}


def test_a_column_that_is_read_and_stands_there_twice_refuses_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt,output,prompt,note,note\n1,2,3,a,b\n")
    message = refused(capsys, path)
    assert "log.csv: --prompt-tokens 'prompt' stands in its first line more than once, in places 1 and 3" in message
    assert "--where 'note' stands" in refused(capsys, path, "--prompt-tokens", "output", "--where", "note=a")
    # What is not read may stand there as often as it likes.
    assert workload(capsys, path, "--prompt-tokens", "output") == {"prompt_tokens": 2, "max_new_tokens": 2}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            '{"prompt": 1, "output": 1, "prompt": 20}',
            "line 1: prompt: stands in one object more than once, as 1 and 20",
        ),
        ('{"a": {"b": 1, "b": "x"}, "prompt": 1, "output": 1}', "b: stands in one object more than once, as 1 and 'x'"),
    ],
)
def test_a_key_that_stands_in_a_line_twice_makes_it_a_bad_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, why: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    assert why in refused(capsys, path)


@pytest.mark.parametrize(
    ("column", "quantity"),
    [("slo_met", "slo_met"), ("result.ttft_ms", "ttft_p95"), ("e2e_latency", "e2e_latency_p95")],
)
def test_requests_are_not_chosen_by_what_a_server_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, column: str, quantity: str
) -> None:
    path = csv_file(tmp_path / "log.csv", [{**row, column: "true"} for row in STEADY])
    message = refused(capsys, path, "--where", f"{column}=true")
    assert f"--where {column!r} is the measured quantity {quantity!r}" in message


def test_a_row_of_another_length_than_the_header_is_bad(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt,output\n1,2,3\n")
    assert "line 2: not the 2 values that the header names" in refused(capsys, path)
    path.write_text("prompt,output\n1\n")
    assert "line 2: not the 2 values that the header names" in refused(capsys, path)


def test_files_that_are_none_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    assert "No such file" in refused(capsys, path)
    path.write_text("")
    assert "--prompt-tokens 'prompt' is no column of it; its first line names: none" in refused(capsys, path)
    path.write_text("prompt,output\n")
    assert "no request in it" in refused(capsys, path)
    path.write_bytes(gzip.compress(b"prompt,output\n" + b"1,2\n" * 5000)[:-20])
    assert "damaged behind its line" in refused(capsys, path)
    path.write_bytes(bytes(range(256)))
    assert "is no column of it" in refused(capsys, path)
    assert "say what it is: --format" in refused(capsys, csv_file(tmp_path / "log.dat", STEADY))


@pytest.mark.parametrize(
    ("option", "column", "quantity"),
    [
        ("--output-tokens", "generation_tokens", "output_throughput"),
        ("--prompt-tokens", "vllm.cached_tokens", "prefix_cache_hit_rate"),
        ("--token-hashes", "prefix_cache_hit_rate", "prefix_cache_hit_rate"),
        ("--arrival", "queue_time", "waiting_queue_length"),
        ("--latency", "ttft_ms", "ttft_p95"),
        ("--latency", "queue_time", "waiting_queue_length"),
        ("--prompt-tokens", "latency", "e2e_latency_p95"),
    ],
)
def test_what_a_server_measured_of_itself_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, column: str, quantity: str
) -> None:
    path = csv_file(tmp_path / "log.csv", [{**STEADY[0], column: 1}])
    message = refused(capsys, path, "--arrival", "at", option, column)
    assert f"{option} {column!r} is the measured quantity {quantity!r}" in message


def test_how_long_requests_took_may_be_called_a_latency(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", [{**row, "e2e_latency_ms": 2000} for row in STEADY])
    arguments = ("--arrival", "at", "--latency", "e2e_latency_ms", "--latency-unit", "ms")
    assert workload(capsys, path, *arguments)["concurrency"] == 2


def test_a_model_makes_it_a_whole_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", STEADY)
    assert main(["workload", "from-log", str(path), *LENGTHS, *TIMES, "--model", "Qwen/Qwen3-8B", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (set(body), body["model"]) == ({"model", "workload"}, {"name": "Qwen/Qwen3-8B"})


def test_the_plot_has_a_panel_for_everything_that_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, picture = csv_file(tmp_path / "a<b>&.csv", STEADY), tmp_path / "plot.svg"
    said(capsys, path, "--plot", str(picture))
    assert titles(picture)[1:] == ["Prompt tokens: number of requests", "Output tokens: number of requests"]
    said(capsys, path, *TIMES, "--plot", str(picture))
    assert titles(picture)[0] == "a<b>&.csv: 11 requests"
    assert titles(picture)[3:] == ["Arrivals: requests per second over time", "Requests in flight over time"]
    assert [found.name for found in tmp_path.iterdir() if found.name.startswith(".")] == []


def titles(picture: Path) -> list[str]:
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return [text.text or "" for text in texts if text.get("text-anchor") is None]


def test_the_bars_of_a_plot_hold_every_request() -> None:
    panel = length_panel("", np.array([1, 1, 2, 3, 1000]))
    # Half powers of two from 1: [1, 1.41) holds two, [2, 2.83) one, [2.83, 4) one; 1,000 is in [724, 1024).
    assert panel.heights.tolist() == [2, 0, 1, 1, *[0] * 15, 1]
    assert panel.ticks[0] == (0.0, "1")
    seen = concurrency_of(np.array([0.0, 4.0, 8.0]), np.array([6.0, 8.0, 9.0]))
    assert seen is not None
    # One in flight until 4, two until 6, one until 8: 80 bars of 0.1 s.
    assert concurrency_panel(seen, 8.0).heights == pytest.approx([1.0] * 40 + [2.0] * 20 + [1.0] * 20)
    assert spark(np.array([0.0, 1.0, 8.0])) == " ▁█"
