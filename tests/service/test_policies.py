"""Several bundles: each answers for the GPU and the confidence in the workload that it was trained for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service.__main__ import main
from service.app import create_app
from service.bundle import load_bundle
from service.domain.candidate import Candidate
from service.domain.errors import ArtefactError
from service.domain.gpu import gpu_by_name
from service.domain.manifest import MODEL_FILE, Confidence
from service.policies import Policies, load_policies, load_policy
from service.settings import DEFAULT_BUNDLE_DIR, Settings
from tests.service.bundles import graph, only_sequences, random_layers, write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import creation, decided

H200 = "NVIDIA-H200"


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A typical and a rough one for a B200, and a typical one for an H200."""
    of: dict[str, dict[str, Any]] = {
        "b200": {},
        "b200-rough": {"confidence": "rough", "model": only_sequences(1.0)},
        "h200": {"gpu": H200, "model": only_sequences(-1.0)},
    }
    return {name: write_bundle(tmp_path / name, version=name, **parts) for name, parts in of.items()}


def settings(folders: dict[str, Path], tmp_path: Path, **changes: Any) -> Settings:
    more = ",".join(str(folders[name]) for name in ("b200-rough", "h200"))
    given = {"bundle_dir": folders["b200"], "more_bundle_dirs": more, "data_dir": tmp_path / "data", **changes}
    return Settings(**given, hook_deadline_ms=60_000)


@pytest.fixture
def client(folders: dict[str, Path], tmp_path: Path) -> Client:
    return Client(create_app(settings(folders, tmp_path)))


def asking(gpu: str | None = "B200", confidence: str | None = None) -> dict[str, Any]:
    return {**QUESTION, "gpu": gpu, "workload": {**QUESTION["workload"], "confidence": confidence}}


def answered(client: Client, gpu: str | None = "B200", confidence: str | None = None) -> dict[str, Any]:
    return client.answer(asking(gpu, confidence))


@pytest.mark.parametrize(
    ("gpu", "confidence", "version", "of"),
    [
        ("B200", None, "b200", ("NVIDIA-B200", "typical")),
        (None, "typical", "b200", ("NVIDIA-B200", "typical")),
        ("B200", "rough", "b200-rough", ("NVIDIA-B200", "rough")),
        ("H200", None, "h200", (H200, "typical")),
    ],
)
def test_the_policy_is_that_of_the_gpu_and_the_confidence(
    client: Client, gpu: str | None, confidence: str | None, version: str, of: tuple[str, str]
) -> None:
    answer = answered(client, gpu, confidence)
    assert (answer["policy"]["version"], answer["policy"]["gpu"], answer["policy"]["confidence"]) == (version, *of)
    assert answer["decision"] == "recommended"
    assert answer["assumed"].get("workload.confidence") == (None if confidence else "typical")
    assert not any("was trained for" in warning for warning in answer["warnings"])


def test_each_policy_ranks_by_its_own_network(client: Client) -> None:
    assert answered(client, "H200")["ranked"][0]["engine_args"]["max_num_seqs"] == 32
    assert answered(client, "B200", "rough")["ranked"][0]["engine_args"]["max_num_seqs"] == 512


@pytest.mark.parametrize(("gpu", "confidence", "version"), [("B200", "exact", "b200"), ("H200", "rough", "h200")])
def test_where_no_policy_was_trained_for_that_confidence_the_typical_one_answers_and_says_so(
    client: Client, gpu: str, confidence: str, version: str
) -> None:
    answer = answered(client, gpu, confidence)
    assert (answer["policy"]["version"], answer["decision"]) == (version, "recommended")
    known = {"exact": "known exactly", "rough": "known roughly"}[confidence]
    (warning,) = [one for one in answer["warnings"] if "was trained for" in one]
    assert f"No policy for {answer['policy']['gpu']} was trained for a workload that is {known}" in warning
    assert "known as usual" in warning


def test_a_gpu_without_a_policy_is_out_of_the_support_of_the_primary_one(client: Client) -> None:
    answer = answered(client, "H100", "rough")
    assert (answer["policy"]["version"], answer["reason"]) == ("b200", "out_of_support")
    assert [entry["feature"] for entry in answer["support"]["out_of_range"]] == ["gpu"]
    assert not any("was trained for" in warning for warning in answer["warnings"])


def test_of_a_gpu_the_typical_policy_is_taken_before_any_other_and_any_before_none(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    primary, typical = load_policy(folders["b200"]), load_policy(folders["h200"])
    rough = load_policy(write_bundle(tmp_path / "h200-rough", gpu=H200, confidence="rough"))
    assert Policies(primary, [rough, typical]).choose(H200, "exact") is typical
    assert Policies(primary, [rough]).choose(H200, "typical") is rough
    assert Policies(primary, [rough]).choose("NVIDIA-A10", "rough") is primary


def test_an_unknown_confidence_is_refused_by_name(client: Client) -> None:
    response = client.recommend(asking(confidence="certain"))
    assert response.status_code == 422
    (detail,) = response.json()["details"]
    assert detail["path"] == "$.workload.confidence"
    assert all(word in detail["message"] for word in ("exact", "typical", "rough"))


def test_a_batch_asks_each_policy_and_keeps_the_order(client: Client) -> None:
    asked = [("H200", None), ("B200", None), ("B200", "rough"), ("H100", None), ("H200", "typical")]
    body = {"items": [asking(*one) for one in asked]}
    items = client.request("POST", "/v1/recommend:batch", json=body).json()["items"]
    for one, item in zip(asked, items, strict=True):
        assert item["answer"] | {"recommendation_id": ""} == answered(client, *one) | {"recommendation_id": ""}


def test_all_policies_are_shown_the_primary_one_in_full(client: Client, folders: dict[str, Path]) -> None:
    shown = client.get("/v1/policy").json()
    assert shown["manifest"]["version"] == "b200"
    assert [(one["manifest"]["version"], one["confidence"]) for one in shown["others"]] == [
        ("b200-rough", "rough"),
        ("h200", "typical"),
    ]
    assert [one["sha256"] for one in shown["others"]] == [
        load_bundle(folders[name]).sha256 for name in ("b200-rough", "h200")
    ]


def test_the_hook_names_the_policy_that_decided(client: Client) -> None:
    context = {"gpu_product": H200, "engine": "vllm", "engine_version": "0.28.0"}
    decision = decided(client, creation(context=context))
    assert (decision["decision"], decision["policy_version"]) == ("apply", "h200")
    assert decision["selected_rank"] == 1
    elsewhere = decided(client, creation(context={**context, "gpu_product": "NVIDIA-H100-80GB-HBM3"}))
    assert (elsewhere["reason"], elsewhere["policy_version"]) == ("out_of_support", "b200")


def test_the_command_line_chooses_like_the_api(
    client: Client,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(folders["b200"]))
    monkeypatch.setenv("MEMORYPOLICY_MORE_BUNDLE_DIRS", f"{folders['b200-rough']}, {folders['h200']}")
    words = "--model Qwen/Qwen3-8B --prompt-tokens 512 --max-new-tokens 256 --shared-prefix-ratio 0 --concurrency 64"
    assert main(["recommend", "--json", *words.split(), "--gpu", "B200", "--confidence", "rough"]) == 0
    by_command = json.loads(capsys.readouterr().out)
    assert by_command | {"recommendation_id": ""} == answered(client, "B200", "rough") | {"recommendation_id": ""}
    event = folders["b200"].parent / "event.json"
    event.write_text(json.dumps(creation(context={"gpu_product": H200, "engine_version": "0.28.0"})))
    assert main(["hook", "--file", str(event), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy_version"] == "h200"


def activate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    monkeypatch.setenv("MEMORYPOLICY_DATA_DIR", str(tmp_path / "data"))
    assert main(["bundle", *(command or ("activate", str(folder)))]) == 0


def versions(client: Client) -> list[str]:
    """Of what answers for a B200 whose load is known typically and roughly, and for an H200."""
    asked: tuple[tuple[str, Confidence], ...] = (("B200", "typical"), ("B200", "rough"), ("H200", "typical"))
    return [answered(client, *one)["policy"]["version"] for one in asked]


def test_an_activated_bundle_takes_the_place_of_that_of_its_gpu_and_confidence(
    client: Client, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = client.app.state.api.memory.watch
    parts: dict[str, dict[str, Any]] = {
        "rough": {"confidence": "rough"},
        "b200": {},
        "h100": {"gpu": "NVIDIA-H100-80GB-HBM3"},
    }
    new = {
        name: write_bundle(tmp_path / f"new-{name}", version=f"new-{name}", model=graph(random_layers(3)), **part)
        for name, part in parts.items()
    }
    activate(new["rough"], tmp_path, monkeypatch)
    watch.look()
    assert versions(client) == ["b200", "new-rough", "h200"]
    activate(new["b200"], tmp_path, monkeypatch)
    watch.look()
    assert versions(client) == ["new-b200", "b200-rough", "h200"]
    # One for a GPU that had none stands beside the others, and the primary one goes on.
    activate(new["h100"], tmp_path, monkeypatch)
    watch.look()
    assert versions(client) == ["b200", "b200-rough", "h200"]
    assert answered(client, "H100")["policy"]["version"] == "new-h100"
    assert answered(client, None)["policy"]["version"] == "b200"
    # One of the settings' own: they answer as they are.
    activate(folders["h200"], tmp_path, monkeypatch)
    watch.look()
    assert versions(client) == ["b200", "b200-rough", "h200"]
    assert answered(client, "H100")["reason"] == "out_of_support"
    activate(folders["h200"], tmp_path, monkeypatch, "rollback")
    watch.look()
    assert answered(client, "H100")["policy"]["version"] == "new-h100"
    before = watch.swaps
    watch.look()
    assert watch.swaps == before


def test_to_activate_what_answers_already_changes_nothing(
    client: Client, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = client.app.state.api.memory.watch
    before, swaps = watch.current, watch.swaps
    activate(folders["h200"], tmp_path, monkeypatch)
    watch.look()
    assert (watch.current is before, watch.swaps) == (True, swaps)


def test_the_record_says_how_well_the_load_is_known_and_who_answered(client: Client) -> None:
    answer = client.recommend({**asking(confidence="rough"), "gpu_shared": True}).json()
    with client.app.state.api.memory.database.transaction() as connection:
        row = dict(connection.execute(text("SELECT * FROM recommendations")).mappings().one())
    request = json.loads(row["request"])
    assert (request["confidence"], request["gpu_shared"]) == ("rough", True)
    assert row["policy_sha256"] == answer["policy"]["sha256"]


def test_a_decision_is_another_one_when_any_policy_is_another_one(
    client: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    alone = Client(create_app(settings(folders, tmp_path, more_bundle_dirs="none")))
    ids = [decided(one, creation())["decision_id"] for one in (client, client, alone)]
    assert ids[0] == ids[1] != ids[2]


def test_metrics_name_every_bundle_that_answers(client: Client) -> None:
    shown_text = client.get("/metrics").text
    shown = [
        line
        for line in shown_text.splitlines()
        if line.startswith("memorypolicy_bundle_info{") and line.endswith(" 1.0")
    ]
    assert len(shown) == 3
    # One series by which replicas are compared, whatever the number of bundles.
    one_name = client.app.state.api.policies.sha256
    named = [line for line in shown_text.splitlines() if line.startswith("memorypolicy_policy_info{")]
    assert named == [f'memorypolicy_policy_info{{sha256="{one_name}"}} 1.0']


def test_a_further_bundle_that_is_broken_stops_the_start(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders["h200"] / MODEL_FILE).write_bytes(b"other")
    with pytest.raises(ArtefactError, match=r"h200.*sha256"):
        create_app(settings(folders, tmp_path))
    monkeypatch.setenv("MEMORYPOLICY_MORE_BUNDLE_DIRS", str(tmp_path / "nowhere"))
    words = "--model Qwen/Qwen3-8B --prompt-tokens 512 --max-new-tokens 256 --shared-prefix-ratio 0 --concurrency 64"
    assert main(["recommend", "--bundle-dir", str(folders["b200"]), *words.split()]) == 1
    assert "nowhere: no bundle folder" in capsys.readouterr().err


def test_a_further_bundle_whose_graph_cannot_run_stops_the_start(tmp_path: Path, bundle_dir: Path) -> None:
    broken = write_bundle(tmp_path / "broken", gpu=H200, model=b"no graph")
    with pytest.raises(ArtefactError, match="ONNX Runtime cannot load it"):
        load_policies(bundle_dir, [broken])


def test_two_bundles_for_the_same_are_refused_with_both_folders(folders: dict[str, Path], tmp_path: Path) -> None:
    twin = shutil.copytree(folders["h200"], tmp_path / "twin")
    with pytest.raises(ArtefactError) as caught:
        load_policies(folders["b200"], [folders["h200"], twin])
    assert all(text in str(caught.value) for text in (str(twin), str(folders["h200"]), H200, "typical"))
    assert "MEMORYPOLICY_MORE_BUNDLE_DIRS" in str(caught.value)


def test_a_bundle_made_for_another_default_of_the_engine_is_refused(tmp_path: Path) -> None:
    default = gpu_by_name("H200").engine_default
    assert load_policy(write_bundle(tmp_path / "same", gpu=H200, engine_default=default)).manifest.gpu == H200
    older = Candidate(
        max_num_seqs=256, max_num_batched_tokens=8192, gpu_memory_utilization=0.9, enable_prefix_caching=True
    )
    with pytest.raises(ArtefactError, match=r"s256-b8192-g0\.90-p1.*make train"):
        load_policy(write_bundle(tmp_path / "other", gpu=H200, engine_default=older))


def test_a_bundle_of_one_s_own_is_not_joined_by_those_that_come_with_the_service(folders: dict[str, Path]) -> None:
    assert Settings(bundle_dir=folders["b200"]).further_bundles() == []
    assert Settings(more_bundle_dirs="none").further_bundles() == []
    assert Settings(more_bundle_dirs=" a , b/c,").further_bundles() == [Path("a"), Path("b/c")]
    assert all(folder.parent == DEFAULT_BUNDLE_DIR.parent for folder in Settings().further_bundles())


def test_the_bundles_that_come_with_the_service_can_be_served_together() -> None:
    policies = load_policies(DEFAULT_BUNDLE_DIR, Settings().further_bundles())
    assert policies.primary.key == ("NVIDIA-B200", "typical")
    assert len({policy.key for policy in policies}) == 1 + len(policies.others)


def test_one_that_rests_holds_no_session_until_it_is_asked(folders: dict[str, Path]) -> None:
    policies = load_policies(folders["b200"], [folders["h200"]])
    (resting,) = policies.others
    assert "scorer" not in vars(resting)
    assert set(resting.bundle.files) == {MODEL_FILE}
    assert policies.choose(H200, "typical") is resting
    assert resting.scorer.score_question([1.0] * 8, [1.0] * 4).shape == (16,)
    assert "scorer" in vars(resting)


def test_one_name_for_all_of_them_changes_with_any(folders: dict[str, Path]) -> None:
    alone, h200 = load_policy(folders["b200"]), load_policy(folders["h200"])
    assert Policies(alone).sha256 == alone.bundle.sha256
    assert len({Policies(alone).sha256, Policies(alone, [h200]).sha256, Policies(h200).sha256}) == 3
