"""The models whose lists are simulated: dimensions, family and step times of each."""

from dataclasses import dataclass
from typing import Any

from bench_runner.step_time import DENSE_TABLES_PATHS, STEP_TABLES_PATH, StepTable, StepTables, load_step_tables
from service.domain.catalogue import model_by_name
from service.domain.errors import ArtefactError
from service.domain.gpu import B200
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch

FURTHER_TABLES_PATH = STEP_TABLES_PATH.with_name("further_b200_sxm.json")
# GPUs whose lists can be simulated, with the system that their step times are of.
SYSTEMS = {B200.name: "b200_sxm", "NVIDIA-H200": "h200_sxm", "NVIDIA-H100-80GB-HBM3": "h100_sxm"}

FAMILIES: dict[str, tuple[str, ...]] = {
    "Qwen3": ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
    "Qwen2.5": ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B-Instruct", "Qwen2.5-14B", "Qwen2.5-32B"),
    "Mistral": ("Mistral-7B-Instruct-v0.3",),
    "Yi": ("Yi-34B",),
    "SmolLM": ("SmolLM-1.7B",),
    "Phi": ("Phi-3.5-mini-instruct",),
    "InternLM": ("internlm2_5-7b",),
    "Baichuan": ("Baichuan2-7B-Chat",),
    "Llama": ("Llama-2-7b-hf", "Llama-3.2-1B", "Llama-3.1-8B-Instruct", "CodeLlama-34b-Instruct-hf"),
    "OLMo": ("OLMo-2-7B", "OLMo-2-32B"),
}
# Whole families that no ranker trains on: test set T3.
HELD_OUT_FAMILIES = ("Llama", "OLMo")

_FURTHER_SHAPE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
# Fused projections of a Llama's shapes, so a Llama's step times. InternLM without its dynamic context extension.
# Sources: mlc-ai/mlc-llm model_preset.py:internlm2_5_7b; sgl-project/ome testdata/baichuan2_7b.json; both Apache-2.0.
FURTHER_CONFIGS: dict[str, dict[str, Any]] = {
    "internlm/internlm2_5-7b": {
        **_FURTHER_SHAPE,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 92544,
        "max_position_embeddings": 32768,
    },
    "baichuan-inc/Baichuan2-7B-Chat": {
        **_FURTHER_SHAPE,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 125696,
        "max_position_embeddings": 4096,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model with its family and its step times on one GPU."""

    name: str
    family: str
    model: ModelArch
    table: StepTable

    @property
    def context(self) -> int:
        """Tokens that one request may have, which is also what start-up makes room for."""
        return int(self.model.max_model_len or 0)


def architectures(gpu: str = B200.name) -> tuple[Architecture, ...]:
    """All that have step times on the GPU of that name, family by family."""
    tables = step_tables(gpu)
    times = {name: table for part in tables for name, table in part.by_model.items()}
    by_short = {name.rpartition("/")[2]: name for name in times}
    found = []
    for family, names in FAMILIES.items():
        for short in names:
            if short not in by_short:
                continue
            name = by_short[short]
            config = FURTHER_CONFIGS.get(name)
            model = parse_config(config, name=name) if config else model_by_name(name)
            found.append(Architecture(name=name, family=family, model=model, table=times[name]))
    return tuple(found)


def step_tables(gpu: str = B200.name) -> tuple[StepTables, ...]:
    """The files that hold their step times: two for the B200, one for any other. ArtefactError for an unknown GPU."""
    system = SYSTEMS.get(gpu)
    if system is None:
        raise ArtefactError(f"no step times for the GPU {gpu!r}; there are {', '.join(SYSTEMS)}")
    wide = load_step_tables(DENSE_TABLES_PATHS[system], system=system)
    return (wide, load_step_tables(FURTHER_TABLES_PATH, system=system)) if gpu == B200.name else (wide,)
