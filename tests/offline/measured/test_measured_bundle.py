"""`offline train --plan --bundle`: what the service answers from a bundle of measured cells, and what it does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from bench_runner.plan import Plan, save_plan
from bench_runner.plan_inputs import engine_default
from offline.__main__ import main
from offline.export import read_bundle
from offline.measured.abstention import choose_rule
from offline.measured.held_out import HeldOutScores
from offline.measured.lists import read_lists
from service.api.answer import answer
from service.api.problem import RefusedError
from service.api.query import read_query
from service.api.response_schemas import RecommendAnswer
from service.app import create_app
from service.domain.candidate import CANDIDATES
from service.domain.cell import CellKey, Provenance
from service.domain.gpu import CPU, GPUS
from service.domain.manifest import NEVER_MARGIN, Abstention
from service.policies import Policies, Policy, load_policy
from service.settings import Settings
from tests.offline.measured.made_cells import CONFIGURATIONS, FEW, MANY, SERVER, Rule, measured_tps, plan, written
from tests.service.conftest import Client

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "service" / "bundles" / "qwen3-b200-reference"
DEFAULT = CPU.engine_default
WITH_DEFAULT = (*CONFIGURATIONS, DEFAULT)


def trained(
    folder: Path,
    *arguments: str | Path,
    rule: Rule = measured_tps,
    of: Plan | None = None,
    provenance: Provenance = SERVER,
    expected: int = 0,
) -> Path:
    """The bundle of a plan that a rule filled."""
    filled = of or plan(WITH_DEFAULT)
    written(folder / "measured.parquet", rule, provenance, of=filled)
    save_plan(filled, folder / "plan.json")
    files: list[str | Path] = ["--cells", folder / "measured.parquet", "--plan", folder / "plan.json"]
    files += ["--work", folder / "work", "--bundle", folder / "bundle", "--epochs", "120"]
    assert main(["train", *map(str, [*files, *arguments])]) == expected
    return folder / "bundle"


def question(**changes: Any) -> dict[str, Any]:
    """Of the plan's model, between its lengths."""
    model = plan().models[0]
    numbers = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")
    workload = {"prompt_tokens": 5000, "max_new_tokens": 60, "shared_prefix_ratio": 0.0, "concurrency": 64}
    workload |= changes.pop("workload", {})
    return {"model": {name: getattr(model, name) for name in numbers}, "workload": workload, **changes}


def answered(policy: Policy, body: dict[str, Any]) -> dict[str, Any]:
    read = read_query(body, policies=Policies(policy), default_gpu=None)
    found = answer(read, recommendation_id=str(uuid4()))
    RecommendAnswer.model_validate(found)
    return found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def policy(bundle: Path) -> Policy:
    return load_policy(bundle)


@pytest.mark.parametrize(("prompt_tokens", "best"), [(5000, FEW), (150, MANY)])
def test_the_service_recommends_what_was_measured_and_says_on_what(
    policy: Policy, prompt_tokens: int, best: str
) -> None:
    found = answered(policy, question(workload={"prompt_tokens": prompt_tokens}, explain=True))
    assert found["explanation"]["margin"]["needed"] == 0.0
    assert found["holds_until"] is not None
    assert (found["decision"], found["ranked"][0]["config_id"]) == ("recommended", best)
    assert found["summary"].startswith(f"Of 3 configurations {best} ranks first for this model on CPU")
    assert found["summary"].endswith("judging by measured-cpu runs.")
    assert found["policy"]["evidence"] == "measured-cpu"
    assert found["policy"]["gpu"] == "CPU"
    assert found["assumed"]["gpu"] == "CPU"
    assert found["assumed"]["gpu_memory_gib"] == 1.0
    assert found["expected"] is None
    assert found["ranked"][0]["p_not_worse_than_engine_default"] is None
    # Eight workloads and none worse: 1 - 0.05 ** (1 / 8) is 31 %.
    said = "judged on 16 scenarios of 8 workloads: that such advice does worse than vLLM's defaults in fewer than 31%"
    assert any(said in warning for warning in found["warnings"])


def test_the_running_service_names_the_evidence_in_its_answer_and_its_policy(bundle: Path, tmp_path: Path) -> None:
    client = Client(create_app(Settings(bundle_dir=bundle, data_dir=tmp_path)))
    found = client.answer(question())
    assert (found["decision"], found["policy"]["evidence"]) == ("recommended", "measured-cpu")
    promised = client.get("/v1/policy").json()
    assert promised["manifest"]["held_out"]["groups"] == 8
    assert promised["evaluation"]["evidence"] == "measured-cpu"


def test_what_was_not_measured_is_never_recommended(policy: Policy) -> None:
    rows = answered(policy, question())["ranked"]
    able = [row["config_id"] for row in rows if row["feasible"]]
    assert sorted(able) == sorted(one.config_id for one in CONFIGURATIONS)
    assert {row["feasibility"]["reason"] for row in rows[3:]} == {"not_learnt"}


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"workload": {"prompt_tokens": 9000}}, "prompt_tokens"),
        ({"workload": {"concurrency": 4}}, "log2_concurrency"),
        ({"gpu": "B200"}, "gpu"),
        ({"gpu_memory_gib": 8}, "gpu_memory_gib"),
        ({"engine_version": "0.27.0"}, "engine_version"),
        ({"slo": {"max_p95_ttft_ms": 500}}, "slo.max_p95_ttft_ms"),
        # None of the three has 0.45, and candidates that do were not measured.
        ({"fixed": {"gpu_memory_utilization": 0.45}}, "configuration"),
        # 512 sequences were measured with 8,192 tokens; with them alone fixed vLLM takes its own 2,048.
        ({"fixed": {"max_num_seqs": 512}}, "configuration"),
    ],
)
def test_what_lies_outside_of_the_measurements_is_left_at_the_default(
    policy: Policy, changes: dict[str, Any], feature: str
) -> None:
    found = answered(policy, question(**changes))
    assert (found["decision"], found["reason"], found["set"]) == ("keep_engine_default", "out_of_support", {})
    assert feature in [entry["feature"] for entry in found["support"]["out_of_range"]]
    assert found["policy"]["evidence"] == "measured-cpu"


def test_a_cpu_s_memory_is_its_kv_cache_whatever_the_utilisation(policy: Policy) -> None:
    found = answered(policy, question())
    # 1 GiB ÷ 114,688 bytes in blocks of 16 tokens: 585 blocks, 9,360 tokens; two requests of 5,060 do not fit.
    capacities = {json.dumps(row["capacity"]) for row in found["ranked"]}
    assert len(capacities) == 1
    assert found["ranked"][0]["capacity"]["kv_cache_gib"] == 1.0
    assert found["ranked"][0]["capacity"]["requests_that_fit"] == 1
    assert any("what the KV cache alone is given" in warning for warning in found["warnings"])
    short = answered(policy, question(gpu_memory_gib=0.5))
    assert short["decision"] == "none_feasible"
    assert short["shortfall"]["remedy"]["gpus"] == ()
    assert "for one request of 5,060 tokens, and may use 0.5 GiB" in short["summary"]


def test_a_cpu_that_no_bundle_is_of_has_no_size(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as refused:
        answered(load_policy(REFERENCE), question(gpu="cpu"))
    assert "give gpu_memory_gib too: the GiB of its KV cache" in str(refused.value.details)


def test_manifest_evaluation_and_card_name_one_evidence_class(bundle: Path) -> None:
    manifest = read_bundle(bundle)
    assert (manifest.evidence, manifest.gpu, manifest.engine_version) == ("measured-cpu", "CPU", "0.28.0")
    assert manifest.training_range["prompt_tokens"] == (100.0, 6000.0)
    assert manifest.training_range["log2_concurrency"] == (4.0, 6.0)
    assert manifest.plan_sha256 == plan(WITH_DEFAULT).sha256
    assert (manifest.estimator, manifest.started_from) == (None, None)
    evaluation = json.loads((bundle / "evaluation.json").read_text())
    held_out = evaluation["test_sets"]["held-out"]
    assert evaluation["evidence"] == held_out["evidence"] == "measured-cpu"
    # By the rule the engine's default always has 200 and the best 300.
    assert held_out["policies"]["SERVED"]["goodput_tps"] == 300.0
    assert held_out["comparisons"]["SERVED-vs-ENGINE_DEFAULT"]["goodput_tps"] == {"delta": 100.0, "ci": [100.0, 100.0]}
    assert evaluation["abstention"]["promises_one_percent"] is False
    card = (bundle / "MODEL_CARD.md").read_text()
    assert card.startswith("# bundle, evidence: measured-cpu\n")
    assert "**That advice does worse in at most 1% of cases is not claimed.**" in card
    assert (
        "16 scenarios of 8 workloads, flags in 8 workloads, worse in 0; the 95 % upper bound of that share is 31.2%"
        in card
    )
    assert "no expected numbers and no chances" in card


def test_equal_cells_give_equal_bundles(bundle: Path, tmp_path: Path) -> None:
    again = trained(tmp_path)
    assert [path.read_bytes() for path in sorted(again.iterdir())] == [
        path.read_bytes() for path in sorted(bundle.iterdir())
    ]


def test_a_bundle_that_went_on_from_simulated_runs_says_so_in_every_answer(tmp_path: Path) -> None:
    policy = load_policy(trained(tmp_path, "--fine-tune", REFERENCE))
    assert (policy.manifest.evidence, policy.manifest.started_from) == ("measured-cpu", "simulated")
    for changes in ({}, {"gpu": "B200"}):
        warnings = answered(policy, question(**changes))["warnings"]
        assert "The ranking began with simulated runs and went on with measured-cpu ones." in warnings
    assert "went on from `qwen3-b200-reference`" in (policy.bundle.directory / "MODEL_CARD.md").read_text()


def test_few_workloads_make_a_bundle_that_never_sets_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = plan(WITH_DEFAULT)
    # Two short and two long workloads: even with none worse the bound is 1 - 0.05 ** (1 / 4), 53 %.
    four = replace(full, workloads=(*full.workloads[:2], *full.workloads[4:6]))
    folder = trained(tmp_path, of=four)
    assert "it never sets flags: " in capsys.readouterr().out
    found = answered(load_policy(folder), question(workload={"prompt_tokens": 4500}, explain=True))
    assert (found["decision"], found["reason"]) == ("keep_engine_default", "no_better_than_engine_default")
    assert "would be advice that too little speaks for (4 held-out workloads)" in found["summary"]
    assert found["explanation"]["margin"]["needed"] is None
    evaluation = json.loads((folder / "evaluation.json").read_text())
    policies = evaluation["test_sets"]["held-out"]["policies"]
    assert policies["SERVED"] == policies["ENGINE_DEFAULT"]
    assert "It sets no flag, whatever it is asked" in (folder / "MODEL_CARD.md").read_text()


def test_one_workload_leaves_nothing_to_judge_by(tmp_path: Path) -> None:
    folder = trained(tmp_path, of=replace(plan(WITH_DEFAULT), workloads=plan().workloads[:1]))
    assert read_bundle(folder).abstention == Abstention(margin=NEVER_MARGIN)
    assert json.loads((folder / "evaluation.json").read_text())["test_sets"] == {}
    assert "so none could be held out" in (folder / "MODEL_CARD.md").read_text()
    found = answered(load_policy(folder), question(workload={"prompt_tokens": 100, "max_new_tokens": 50}))
    assert found["decision"] == "keep_engine_default"


def lists_of(folder: Path, rule: Rule, *, workloads: int) -> Any:
    """Lists of short workloads at 16 clients, columns FEW, MANY and the default by name."""
    full = plan(WITH_DEFAULT)
    lengths = [replace(full.workloads[0], name=f"w{i:02}", prompt_tokens=100 + i) for i in range(workloads)]
    made = replace(full, workloads=tuple(lengths), concurrencies=(16,), candidates=(CANDIDATES[12], DEFAULT))
    written(folder / "cells.parquet", rule, of=made)
    save_plan(made, folder / "plan.json")
    return read_lists(folder / "cells.parquet", folder / "plan.json")


def rule_of(folder: Path, gains: list[float], bad: set[int], *, folds: list[int] | None = None) -> Any:
    """The choice, 512 sequences, exceeds the default's score by `gains`; it has a tenth less goodput where `bad`."""

    def tps(key: CellKey) -> float:
        if key.config_id == DEFAULT.config_id:
            return 200.0
        return 180.0 if int(key.workload[1:]) in bad else 220.0

    lists = lists_of(folder, tps, workloads=len(gains))
    default = lists.config_ids.index(DEFAULT.config_id)
    scores = np.zeros((len(gains), 2))
    scores[:, 1 - default] = gains
    fold = np.array(folds or [i % 5 for i in range(len(gains))])
    held_out = HeldOutScores(scores=scores, fold=fold, single=np.zeros(len(gains), np.int64))
    return choose_rule(lists, held_out, default=default)


def test_the_margin_is_the_largest_gain_that_was_a_loss(tmp_path: Path) -> None:
    # 0.4 was a loss, and 0.9 was none; a loss that was scored below the default would not have been advised.
    gains = [0.9] * 8 + [0.4, -2.0]
    found = rule_of(tmp_path, gains, {8, 9})
    assert found.margin == pytest.approx(0.4)
    # The loss lies in fold 3, which the other folds' margin of 0 did not keep from its advice: 9 advised, 1 worse.
    assert (found.advised, found.worse) == (9, 1)
    # Clopper-Pearson: (1 - p) ** 9 + 9 p (1 - p) ** 8 = 0.05 at p = 0.4291.
    assert found.upper95 == pytest.approx(0.4291, abs=1e-4)


def test_advice_that_may_be_worse_as_often_as_not_is_not_given(tmp_path: Path) -> None:
    # 0.5 warns fold 3 of 0.4, which is not advised; 0.4 does not warn fold 4 of 0.5: 1 of 7 advised is worse.
    found = rule_of(tmp_path, [0.9] * 6 + [0.4, 0.5], {6, 7}, folds=[0, 1, 2, 0, 1, 2, 3, 4])
    assert (found.advised, found.worse) == (7, 1)
    # (1 - p) ** 7 + 7 p (1 - p) ** 6 = 0.05 at p = 0.5207.
    assert found.upper95 == pytest.approx(0.5207, abs=1e-4)
    assert found.margin == NEVER_MARGIN
    assert set(found.served.tolist()) == {found.served[0]}


def test_three_hundred_workloads_without_a_loss_promise_one_percent(tmp_path: Path) -> None:
    found = rule_of(tmp_path, [0.5] * 299, set())
    # 1 - 0.05 ** (1 / 299) is 0.00997.
    assert found.promises
    assert not rule_of(tmp_path, [0.5] * 298, set()).promises


@pytest.mark.parametrize(
    ("of", "provenance", "words"),
    [
        (plan(), SERVER, "s128-b2048-g0.92-p1, was not measured, so nothing tells when to set no flags"),
        (plan((DEFAULT, replace(DEFAULT, max_num_seqs=8))), SERVER, "none of the 15 configurations"),
        (plan(WITH_DEFAULT), replace(SERVER, gpu="Abacus 9"), "the service does not know its memory"),
        (plan(WITH_DEFAULT), replace(SERVER, gpu="B200"), "the service calls it 'NVIDIA-B200'"),
    ],
)
def test_what_the_service_could_make_nothing_of_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of: Plan, provenance: Provenance, words: str
) -> None:
    folder = trained(tmp_path, of=of, provenance=provenance, expected=1)
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not folder.exists()
    assert not (tmp_path / "work").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "estimator.onnx").write_text("mine")
    trained(tmp_path, expected=1)
    assert "estimator.onnx, which is no file of such a bundle" in capsys.readouterr().err


def test_a_measured_gpu_has_its_listed_memory(tmp_path: Path) -> None:
    gpu = GPUS[0]
    of = replace(plan((*CONFIGURATIONS, gpu.engine_default)), gpu=gpu.name, memory_gib=gpu.memory_gib)
    folder = trained(tmp_path, of=of, provenance=replace(SERVER, evidence="measured", gpu=gpu.name))
    manifest = read_bundle(folder)
    assert (manifest.evidence, manifest.gpu_memory_gib) == ("measured", None)
    found = answered(load_policy(folder), question())
    assert (found["decision"], found["policy"]["evidence"]) == ("recommended", "measured")
    assert "gpu_memory_gib" not in found["assumed"]


def test_both_programs_know_what_a_cpu_starts_with() -> None:
    assert engine_default(CPU) == CPU.engine_default
