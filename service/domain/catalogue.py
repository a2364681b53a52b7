"""The built-in models: dimensions as numbers, each with the public file that they were read from."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from service.domain.errors import UnknownNameError
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A public repository at one revision; licence is the repository's."""

    repository: str
    revision: str
    licence: str


AIC = Source(
    repository="ai-dynamo/aiconfigurator", revision="095f58a51c4ca8e61b66ec108d86f223f8d559ce", licence="Apache-2.0"
)
OME = Source(repository="sgl-project/ome", revision="17b77edad23bae262e0c9adb7f12039397a5d33d", licence="Apache-2.0")
SIM = Source(
    repository="inference-sim/inference-sim", revision="f90a1e3a6787da17c2cd463dab6fb2660b1b1760", licence="Apache-2.0"
)
MLC = Source(repository="mlc-ai/mlc-llm", revision="79d603f085f50500e9509fa01785ffa7ecfaaa93", licence="Apache-2.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model by its Hugging Face id. config holds the keys of its config.json that size it."""

    name: str
    config: dict[str, Any]
    source: Source
    source_path: str


def _entry(
    name: str,
    model_type: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    intermediate: int,
    vocab: int,
    tied: bool,
    context: int,
    source: Source,
    source_path: str,
) -> CatalogueEntry:
    config = {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
    }
    return CatalogueEntry(name=name, config=config, source=source, source_path=source_path)


# name, family, hidden, layers, heads, KV heads, head_dim (None: hidden ÷ heads), FFN, vocabulary, tied, context, source
# fmt: off
CATALOGUE: tuple[CatalogueEntry, ...] = (
    _entry("Qwen/Qwen3-0.6B", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, True, 40960,
           AIC, "aic-core/src/aiconfigurator_core/model_configs/Qwen--Qwen3-0.6B_config.json"),
    _entry("Qwen/Qwen3-1.7B", "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, True, 40960,
           AIC, "aic-core/src/aiconfigurator_core/model_configs/Qwen--Qwen3-1.7B_config.json"),
    _entry("Qwen/Qwen3-4B", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, True, 40960,
           OME, "pkg/hfutil/modelconfig/testdata/qwen3_4b.json"),
    _entry("Qwen/Qwen3-8B", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, False, 40960,
           AIC, "aic-core/src/aiconfigurator_core/model_configs/Qwen--Qwen3-8B_config.json"),
    _entry("Qwen/Qwen3-14B", "qwen3", 5120, 40, 40, 8, 128, 17408, 151936, False, 40960,
           SIM, "model_configs/qwen3-14b/config.json"),
    _entry("Qwen/Qwen3-32B", "qwen3", 5120, 64, 64, 8, 128, 25600, 151936, False, 40960,
           AIC, "aic-core/src/aiconfigurator_core/model_configs/Qwen--Qwen3-32B_config.json"),
    _entry("Qwen/Qwen2.5-0.5B", "qwen2", 896, 24, 14, 2, None, 4864, 151936, True, 32768,
           OME, "pkg/hfutil/modelconfig/testdata/qwen2.5_0.5b.json"),
    _entry("Qwen/Qwen2.5-1.5B", "qwen2", 1536, 28, 12, 2, None, 8960, 151936, True, 131072,
           OME, "pkg/hfutil/modelconfig/testdata/qwen2.5_1.5b.json"),
    _entry("Qwen/Qwen2.5-7B-Instruct", "qwen2", 3584, 28, 28, 4, None, 18944, 152064, False, 32768,
           SIM, "model_configs/qwen2.5-7b-instruct/config.json"),
    _entry("Qwen/Qwen2.5-14B", "qwen2", 5120, 48, 40, 8, None, 13824, 152064, False, 131072,
           OME, "pkg/hfutil/modelconfig/testdata/qwen2.5_14b.json"),
    _entry("Qwen/Qwen2.5-32B", "qwen2", 5120, 64, 40, 8, None, 27648, 152064, False, 131072,
           OME, "pkg/hfutil/modelconfig/testdata/qwen2.5_32b.json"),
    _entry("Qwen/Qwen2.5-72B", "qwen2", 8192, 80, 64, 8, None, 29568, 152064, False, 131072,
           OME, "pkg/hfutil/modelconfig/testdata/qwen2.5_72b.json"),
    _entry("meta-llama/Llama-2-7b-hf", "llama", 4096, 32, 32, 32, None, 11008, 32000, False, 4096,
           SIM, "model_configs/llama-2-7b-hf/config.json"),
    _entry("meta-llama/Llama-3.2-1B", "llama", 2048, 16, 32, 8, 64, 8192, 128256, True, 131072,
           OME, "pkg/hfutil/modelconfig/testdata/llama3_2_1b.json"),
    _entry("meta-llama/Llama-3.1-8B-Instruct", "llama", 4096, 32, 32, 8, None, 14336, 128256, False, 131072,
           SIM, "model_configs/llama-3.1-8b-instruct/config.json"),
    _entry("meta-llama/Llama-3.1-70B-Instruct", "llama", 8192, 80, 64, 8, None, 28672, 128256, False, 131072,
           SIM, "model_configs/llama-3.1-70b-instruct/config.json"),
    _entry("codellama/CodeLlama-34b-Instruct-hf", "llama", 8192, 48, 64, 8, None, 22016, 32000, False, 16384,
           SIM, "model_configs/codellama-34b-instruct-hf/config.json"),
    _entry("mistralai/Mistral-7B-Instruct-v0.3", "mistral", 4096, 32, 32, 8, None, 14336, 32768, False, 32768,
           MLC, "python/mlc_llm/model/model_preset.py:mistral_7b_v03"),
    _entry("01-ai/Yi-34B", "llama", 7168, 60, 56, 8, None, 20480, 64000, False, 4096,
           SIM, "model_configs/yi-34b/config.json"),
    _entry("HuggingFaceTB/SmolLM-1.7B", "llama", 2048, 24, 32, 32, None, 8192, 49152, True, 2048,
           OME, "pkg/hfutil/modelconfig/testdata/smollm_1.7b.json"),
    _entry("allenai/OLMo-2-7B", "olmo2", 4096, 32, 32, 32, None, 11008, 100352, False, 4096,
           MLC, "python/mlc_llm/model/model_preset.py:olmo2_7b"),
    _entry("allenai/OLMo-2-32B", "olmo2", 5120, 64, 40, 8, None, 27648, 100352, False, 4096,
           MLC, "python/mlc_llm/model/model_preset.py:olmo2_32b"),
    # longrope: the engine starts with the original 4,096 positions, not with the 131,072 that the config names
    _entry("microsoft/Phi-3.5-mini-instruct", "phi3", 3072, 32, 32, 32, None, 8192, 32064, False, 4096,
           MLC, "python/mlc_llm/model/model_preset.py:phi-3_5"),
)
# fmt: on

_BY_NAME = {entry.name.casefold(): entry for entry in CATALOGUE}


def model_by_name(name: str) -> ModelArch:
    """The built-in model of that Hugging Face id, ignoring case; UnknownNameError lists the known ones."""
    key = name.strip().casefold()
    if key not in _BY_NAME:
        raise UnknownNameError(path="model.name", value=name, known=(entry.name for entry in CATALOGUE))
    return _parsed(key)


@cache
def _parsed(key: str) -> ModelArch:
    return parse_config(_BY_NAME[key].config, name=_BY_NAME[key].name)
