import re

import pytest

from service.domain.catalogue import CATALOGUE, CatalogueEntry, model_by_name
from service.domain.errors import UnknownNameError
from service.domain.model_config import parse_config

# Parameter counts as their publishers state them (the safetensors metadata of each repository on the Hugging Face
# hub; a tied head counted once), and KV bytes per token = 4 · layers · KV heads · head_dim by hand.
PUBLISHED: dict[str, tuple[int, int]] = {
    "Qwen/Qwen3-0.6B": (596_049_920, 114_688),
    "Qwen/Qwen3-1.7B": (1_720_574_976, 114_688),
    "Qwen/Qwen3-4B": (4_022_468_096, 147_456),
    "Qwen/Qwen3-8B": (8_190_735_360, 147_456),
    "Qwen/Qwen3-14B": (14_768_307_200, 163_840),
    "Qwen/Qwen3-32B": (32_762_123_264, 262_144),
    "Qwen/Qwen2.5-0.5B": (494_032_768, 12_288),
    "Qwen/Qwen2.5-1.5B": (1_543_714_304, 28_672),
    "Qwen/Qwen2.5-7B-Instruct": (7_615_616_512, 57_344),
    "Qwen/Qwen2.5-14B": (14_770_033_664, 196_608),
    "Qwen/Qwen2.5-32B": (32_763_876_352, 262_144),
    "Qwen/Qwen2.5-72B": (72_706_203_648, 327_680),
    "meta-llama/Llama-2-7b-hf": (6_738_415_616, 524_288),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, 32_768),
    "meta-llama/Llama-3.1-8B-Instruct": (8_030_261_248, 131_072),
    "meta-llama/Llama-3.1-70B-Instruct": (70_553_706_496, 327_680),
    "codellama/CodeLlama-34b-Instruct-hf": (33_743_970_304, 196_608),
    "mistralai/Mistral-7B-Instruct-v0.3": (7_248_023_552, 131_072),
    "01-ai/Yi-34B": (34_388_917_248, 245_760),
    "HuggingFaceTB/SmolLM-1.7B": (1_711_376_384, 196_608),
    "allenai/OLMo-2-7B": (7_298_617_344, 524_288),
    "allenai/OLMo-2-32B": (32_234_279_936, 262_144),
    "microsoft/Phi-3.5-mini-instruct": (3_821_079_552, 393_216),
}


def test_there_are_at_least_16_models_of_at_least_4_families() -> None:
    assert len(CATALOGUE) >= 16
    assert len({entry.config["model_type"] for entry in CATALOGUE}) >= 4


def test_no_model_is_listed_twice() -> None:
    assert len({entry.name.casefold() for entry in CATALOGUE}) == len(CATALOGUE)


def test_every_model_has_a_published_size_to_be_checked_against() -> None:
    assert {entry.name for entry in CATALOGUE} == set(PUBLISHED)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_each_model_parses_to_its_published_size(entry: CatalogueEntry) -> None:
    model = parse_config(entry.config, name=entry.name)
    parameters, kv_bytes_per_token = PUBLISHED[entry.name]
    assert model.parameters == parameters
    assert model.kv_bytes_per_token == kv_bytes_per_token
    assert model.weight_gb == pytest.approx(parameters * 2 / 1e9)
    assert model.max_model_len == entry.config["max_position_embeddings"]
    # Every entry says whether its embeddings are tied, so nothing about it is assumed.
    assert model.assumed == ()


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "weight_gb"),
    [
        ("Qwen/Qwen3-0.6B", 1024, 28, 1.192),
        ("Qwen/Qwen3-1.7B", 2048, 28, 3.441),
        ("Qwen/Qwen3-4B", 2560, 36, 8.045),
        ("Qwen/Qwen3-8B", 4096, 36, 16.381),
    ],
)
def test_the_models_of_the_reference_have_its_numbers(name: str, hidden: int, layers: int, weight_gb: float) -> None:
    model = model_by_name(name)
    assert (model.name, model.hidden_size, model.num_layers) == (name, hidden, layers)
    assert model.weight_gb == pytest.approx(weight_gb, abs=0.0005)
    # vLLM derives 40,960 from a Qwen3 config when nothing is set.
    assert model.max_model_len == 40_960


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_each_entry_names_a_repository_at_one_revision_and_its_licence(entry: CatalogueEntry) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.source.repository)
    assert re.fullmatch(r"[0-9a-f]{40}", entry.source.revision)
    assert entry.source.licence in ("Apache-2.0", "MIT")
    assert entry.source_path
    assert not entry.source_path.startswith("/")


@pytest.mark.parametrize("spelling", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "QWEN/QWEN3-8B", " Qwen/Qwen3-8B\n"])
def test_a_model_is_found_whatever_the_case(spelling: str) -> None:
    assert model_by_name(spelling).name == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", ["Qwen/Qwen9-1T", "", "Qwen3-8B", "qwen/qwen3-8b " + "x" * 10_000])
def test_an_unknown_model_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        model_by_name(name)
    assert caught.value.path == "model.name"
    assert caught.value.known == tuple(entry.name for entry in CATALOGUE)
    assert "Qwen/Qwen3-8B" in str(caught.value)
