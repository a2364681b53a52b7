"""`python -m service hook`: a dry run, coverage of recorded calls, and a mapping that is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from tests.service.hooking import CREATION, FOUR, creation, requesting

EXAMPLE = Path(__file__).parents[2] / "service" / "kubernetes" / "inference-service.json"


@pytest.fixture(autouse=True)
def _bundle(bundle_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(bundle_dir))
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_dry_run_shows_the_change_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = creation("--no-enable-prefix-caching")
    body["request"]["hf_token"] = "planted"
    shown = run(capsys, "hook", "--file", written(tmp_path / "request.json", body))
    assert shown.startswith("apply\n")
    assert '-    "extra_args": "--no-enable-prefix-caching"' in shown
    assert '+    "extra_args": "--max-num-seqs=' in shown
    assert "--gpu-memory-utilization=0.9: set, nobody" in shown or "--gpu-memory-utilization=0.85: set, nobody" in shown
    assert "--no-enable-prefix-caching: left, set by the user; alone we would take True" in shown
    assert "planted" not in shown


def test_a_dry_run_is_coloured_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m+" in run(capsys, "hook", "--file", written(tmp_path / "request.json", CREATION))


def test_the_json_of_a_dry_run_is_the_answer_of_the_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "hook", "--file", written(tmp_path / "request.json", CREATION), "--json"))
    assert (answer["decision"], len(answer["cli_args"])) == ("apply", 4)


def test_a_manifest_is_rendered_for_the_repository_that_declares_it(capsys: pytest.CaptureFixture[str]) -> None:
    rendered = json.loads(run(capsys, "hook", "--file", EXAMPLE, "--json"))
    args = rendered["spec"]["predictor"]["model"]["args"]
    assert (len(args), args[-1]) == (5, "--max-model-len=8192")
    assert '+    "memorypolicy.io/status": "applied"' in run(capsys, "hook", "--file", EXAMPLE)


def test_coverage_counts_decisions_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [CREATION, creation(mode="shadow"), creation(FOUR), requesting(workload_type="SGLANG")]
    lines = written(tmp_path / "calls.jsonl", "\n".join(map(json.dumps, [*calls, CREATION])) + "\n\n")
    report = json.loads(run(capsys, "hook", "coverage", "--file", lines, "--json"))
    assert report["calls"] == 5
    assert report["shares"][0] == {"decision": "apply", "reason": None, "calls": 2, "share": 0.4}
    assert {row["reason"] for row in report["shares"]} == {None, "all_pinned", "unsupported_workload_type"}
    assert "  40.0%       2  apply\n" in run(capsys, "hook", "coverage", "--file", lines)


def test_coverage_with_a_mapping_is_that_after_the_rollout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(tmp_path / "calls.jsonl", json.dumps(creation(context=None, workload=None)))
    mapping = written(
        tmp_path / "m.toml",
        'schema_version = 1\n[models]\n"Qwen/Qwen3-8B" = "chat"\n[profiles.chat]\nprompt_tokens = 512\n'
        "max_new_tokens = 256\nshared_prefix_ratio = 0.0\nendpoint_concurrency = 64\n",
    )
    assert "unknown_gpu" in run(capsys, "hook", "coverage", "--file", lines)
    mapping.write_text(mapping.read_text() + '[namespaces.n]\ngpu = "B200"\nengine_version = "0.28.0"\n')
    lines.write_text(json.dumps(creation(context={"namespace": "n"}, workload=None)))
    assert "100.0%       1  apply" in run(capsys, "hook", "coverage", "--file", lines, "--mapping", mapping)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("schema_version = 2", "schema_version"),
        ("schema_version = 1\nclusterz = 1", "clusterz"),
        ("schema_version = 1\n[clusters.a]\ngpu = 3", "clusters.a.gpu"),
        ('schema_version = 1\n[models]\nm = "chat"', "models.m: profile 'chat' is not there"),
        ("schema_version = ", "not TOML"),
    ],
)
def test_a_mapping_that_is_wrong_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, named: str
) -> None:
    request, mapping = written(tmp_path / "r.json", CREATION), written(tmp_path / "m.toml", content)
    line = run(capsys, "hook", "--file", request, "--mapping", mapping, status=1)
    assert named in line
    assert line.count("\n") == 1


def test_a_call_that_is_wrong_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(tmp_path / "calls.jsonl", json.dumps(CREATION) + "\n{}\n")
    assert "line 2: $." in run(capsys, "hook", "coverage", "--file", lines, status=1)


def test_half_of_tls_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("MEMORYPOLICY_TLS_CERT_FILE", str(tmp_path / "tls.crt"))
    assert "TLS_KEY_FILE" in run(capsys, "serve", "--port", "0", status=1)
