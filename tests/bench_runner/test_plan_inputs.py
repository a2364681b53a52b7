import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner.gpu_hours import GpuHours
from bench_runner.plan import CPU, Plan, engine_default_plan, load_plan, reference_plan, save_plan
from bench_runner.plan_inputs import candidate_of, device_of, engine_default, read_candidates, read_model
from bench_runner.plan_request import PlanRequest, left_out
from service.domain.candidate import CANDIDATES
from service.domain.errors import InvalidInputError, MemoryPolicyError
from service.domain.gpu import B200, GPUS
from service.domain.slo import Slo

# hidden 64, 2 layers, 4 heads of 16, 2 KV heads, MLP 128, 100,000 words, tied, 2,048 positions
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100_000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model folder."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def write(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def workload(**changes: object) -> dict[str, object]:
    return {"name": "mail", "prompt_tokens": 300, "max_new_tokens": 100, "shared_prefix_ratio": 0.5, **changes}


def requested(base: Plan | None = None, **wishes: object) -> Plan:
    return PlanRequest(base=base or reference_plan(), **wishes).plan()  # type: ignore[arg-type] # wishes of any field


def test_asking_for_nothing_gives_the_plan_itself_under_its_known_hash() -> None:
    assert requested() == reference_plan()
    assert reference_plan().sha256.startswith("76631579d710")
    assert requested(engine_default_plan()) == engine_default_plan()


def test_names_of_the_plan_restrict_it_in_its_order_and_keep_its_name() -> None:
    part = requested(workloads=["longgen", "chat"], configs=["s32-b2048-g0.45-p1"], concurrencies=[64, 4])
    assert [named.name for named in part.workloads] == ["chat", "longgen"]
    assert part.concurrencies == (4, 64)
    assert part.name == "reference"
    same = reference_plan().restricted(models=[], workloads=["longgen", "chat"], config_ids=["s32-b2048-g0.45-p1"])
    assert replace(part, concurrencies=same.concurrencies) == same


@pytest.mark.parametrize("candidate", [*CANDIDATES, *(gpu.engine_default for gpu in GPUS)])
def test_a_config_id_is_read_back_as_its_candidate(candidate: object) -> None:
    assert candidate_of(candidate.config_id) == candidate  # type: ignore[attr-defined] # of Candidate


@pytest.mark.parametrize(
    ("config_id", "says"),
    [
        ("s64", "s64-b4096-g0.90-p1"),
        ("s064-b4096-g0.90-p1", "write that"),
        ("s64-b4096-g0.90-p2", "s<max_num_seqs>"),
        ("s64-b4096-g1.10-p1", "from 0.01 to 1"),
        ("s0-b4096-g0.90-p1", "from 1 to"),
        ("s64-b32-g0.90-p1", "below max_num_seqs"),
        ('{"max_num_seqs": 64}', "max_num_batched_tokens: None cannot be used; it is missing"),
        ("{64}", "no JSON"),
        ("[]", "empty list"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(config_id: str, says: str) -> None:
    with pytest.raises(MemoryPolicyError, match=says):
        read_candidates(config_id, B200)


def test_configurations_come_as_json_too_and_a_third_decimal_is_refused(tmp_path: Path) -> None:
    args = CANDIDATES[3].engine_args()
    assert read_candidates(json.dumps(args), B200) == [CANDIDATES[3]]
    both = write(tmp_path / "configs.json", [args, CANDIDATES[0].engine_args()])
    assert requested(configs=[both]).candidates == (CANDIDATES[0], CANDIDATES[3])
    with pytest.raises(InvalidInputError, match=r"gpu_memory_utilization: 0\.455 cannot be used; give two decimals"):
        read_candidates(json.dumps({**args, "gpu_memory_utilization": 0.455}), B200)


def test_the_engines_default_is_the_one_of_the_device() -> None:
    ids = {name: requested(gpu=name, configs=["engine-default"]).candidates[0].config_id for name in ("H100", "A10")}
    assert ids == {"H100": "s1024-b8192-g0.92-p1", "A10": "s256-b2048-g0.92-p1"}
    assert engine_default(device_of("cpu", 4.0)).config_id == "s128-b2048-g0.92-p1"
    with_default = requested(configs=["s64-b4096-g0.90-p1"], engine_default=True)
    assert [c.config_id for c in with_default.candidates] == ["s64-b4096-g0.90-p1", "s1024-b16384-g0.92-p1"]
    assert requested(engine_default=True).candidates == (*CANDIDATES, B200.engine_default)
    assert [c.config_id for c in requested(engine_default_plan(), gpu="A10").candidates] == ["s256-b2048-g0.92-p1"]


def test_a_gpu_has_its_memory_and_another_or_a_cpu_is_given_it() -> None:
    assert (requested(gpu="H100").gpu, requested(gpu="H100").memory_gib) == ("NVIDIA-H100-80GB-HBM3", 79.0)
    own = requested(gpu="NVIDIA GeForce RTX 3090", memory_gib=23.5, engine_default=True)
    assert (own.gpu, own.memory_gib) == ("NVIDIA GeForce RTX 3090", 23.5)
    assert own.candidates[-1].config_id == "s256-b2048-g0.92-p1"
    on_cpu = requested(gpu="CPU", memory_gib=2.0)
    assert (on_cpu.gpu, on_cpu.memory_gib, on_cpu.name) == (CPU, 2.0, "own")


@pytest.mark.parametrize(
    ("gpu", "memory_gib", "says"),
    [
        ("B2000", None, "known: B200.*--memory-gib"),
        ("CPU", None, "KV cache"),
        ("CPU", float("nan"), "finite number"),
        ("B200", -1.0, "finite number"),
        ("a|b", 3.0, "nvidia-smi"),
    ],
)
def test_a_device_that_cannot_be_is_refused(gpu: str, memory_gib: float | None, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        device_of(gpu, memory_gib)


def test_a_model_is_a_catalogue_name_in_any_case_or_a_folder_or_a_config_by_its_hub_id(tiny: Path) -> None:
    assert read_model("qwen/qwen3-14b").name == "Qwen/Qwen3-14B"
    assert read_model(str(tiny)).name == str(tiny)
    assert read_model(str(tiny / "config.json")).name == str(tiny)
    elsewhere = tiny / "other.json"
    elsewhere.write_text(json.dumps(TINY))
    own = read_model(f"acme/tiny={elsewhere}")
    # 2 layers · 2 KV heads · 16 · key and value · 2 bytes
    assert (own.name, own.kv_bytes_per_token, own.max_model_len) == ("acme/tiny", 256, 2048)
    with pytest.raises(InvalidInputError, match="HUB_ID=FILE"):
        read_model(str(elsewhere))
    plan = requested(models=["acme/tiny=" + str(elsewhere), "Qwen/Qwen3-4B", "qwen/qwen3-4b"], workloads=["chat"])
    assert [model.name for model in plan.models] == ["Qwen/Qwen3-4B", "acme/tiny"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**TINY, "num_experts": 8}, "mixture of experts"),
        ({**TINY, "hidden_size": None}, "hidden_size"),
        ([1], "no JSON object"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_its_file(tiny: Path, config: object, says: str) -> None:
    write(tiny / "config.json", config)
    with pytest.raises(MemoryPolicyError, match=rf"config\.json.*{says}"):
        read_model(str(tiny))


@pytest.mark.parametrize("model", ["nobody/nothing", "a b=x.json", "./nowhere"])
def test_an_unknown_model_is_refused(model: str) -> None:
    with pytest.raises(MemoryPolicyError):
        read_model(model)


def test_workloads_come_from_a_file_with_their_concurrencies(tmp_path: Path) -> None:
    file = write(tmp_path / "w.json", [workload(concurrency=[2, 8]), workload(name="other")])
    plan = requested(workloads=[file, "chat"])
    assert [named.name for named in plan.workloads] == ["chat", "mail", "other"]
    assert plan.concurrencies == (2, 8)
    assert requested(workloads=[file], concurrencies=[3]).concurrencies == (3,)
    assert requested(workloads=[write(tmp_path / "x.json", workload())]).concurrencies == (4, 16, 64, 256)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (workload(prompt_tokens=0), r"w\.json: prompt_tokens: 0"),
        (workload(shared_prefix_ratio=1.5), "shared_prefix_ratio: 1.5"),
        (workload(concurrency=[0]), "concurrency: 0"),
        (workload(concurrency=True), "concurrency: True"),
        (workload(name="a|b"), "name: 'a|b'"),
        (workload(kv_cache_usage=0.3), "'kv_cache_usage' cannot be used; known: name"),
        ({"name": "mail"}, "prompt_tokens: None cannot be used; it is missing"),
        ([], "empty list"),
        ([3], "give an object with name"),
        ([workload(concurrency=2), workload(name="b", concurrency=3)], "runs every workload at the same ones"),
        ([workload(), workload(prompt_tokens=7)], "'mail' cannot be used; two different ones"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(MemoryPolicyError, match=says):
        requested(workloads=[write(tmp_path / "w.json", content)])


def test_an_slo_comes_from_a_file_and_an_unknown_limit_is_refused(tmp_path: Path) -> None:
    plan = requested(slo=Path(write(tmp_path / "slo.json", {"max_p95_ttft_ms": 500})))
    assert plan.slo == Slo(max_p95_ttft_ms=500)
    assert plan.name == "own"
    with pytest.raises(InvalidInputError, match="'ttft' cannot be used; known: max_p95_ttft_ms"):
        requested(slo=Path(write(tmp_path / "slo.json", {"ttft": 500})))
    with pytest.raises(InvalidInputError, match=r"slo\.json: max_error_rate: 2"):
        requested(slo=Path(write(tmp_path / "slo.json", {"max_error_rate": 2})))


def test_a_scenario_beyond_the_models_context_is_left_out_among_others_and_refused_alone(tiny: Path) -> None:
    plan = requested(models=[str(tiny), "Qwen/Qwen3-8B"], workloads=["chat", "rag"], configs=[CANDIDATES[0].config_id])
    # 6,000 + 128 tokens do not go into 2,048: one of four scenarios at four concurrencies.
    assert len(list(plan.cells())) == 3 * 4
    assert left_out(plan) == [f"{tiny}|rag is left out: 6128 tokens exceed the model's context of 2048"]
    with pytest.raises(InvalidInputError, match="= 6128 exceeds the 2048-token context"):
        requested(models=[str(tiny)], workloads=["rag"])


def test_an_own_plan_survives_its_file(tmp_path: Path, tiny: Path) -> None:
    file = write(tmp_path / "w.json", workload(concurrency=2))
    plan = requested(name="mine", gpu="CPU", memory_gib=1.0, models=[str(tiny)], workloads=[file], window_s=3.0)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(str(tmp_path / "plan.json")) == plan
    assert plan.name == "mine"


def test_gpu_hours_are_start_ups_and_cells() -> None:
    # 4 models · 15 configurations · 120 s + 1,440 cells · (4 + 15 + 2) s = 37,440 s
    estimate = GpuHours.of(reference_plan())
    assert estimate.hours == pytest.approx(10.4)
    assert "60 servers × 120 s" in str(estimate)
    assert str(estimate).endswith("= 10.4 GPU hours")
    # 4 · 30 s + 96 · 21 s
    assert GpuHours.of(engine_default_plan(), start_up_s=30.0).hours == pytest.approx(2136 / 3600)
    assert str(GpuHours.of(requested(gpu="CPU", memory_gib=1.0))).endswith("machine hours")
