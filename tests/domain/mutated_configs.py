"""Config.json files with a few faults each: keys gone, renamed, of other types, out of bounds, nested too deeply."""

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.domain.reduced_configs import ALL, Config

_QWEN3: Config = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936,
    "tie_word_embeddings": True, "max_position_embeddings": 40960, "sliding_window": None,
    "use_sliding_window": False, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                  "original_max_position_embeddings": 32768},
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}  # fmt: skip
_GPT2: Config = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 4, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
_MOST_LAYERS = 6
_LISTS_OF_LAYERS = ("layer_types", "compress_ratios")


def _deep() -> Any:
    value: Any = []
    for _ in range(60):
        value = [value] if len(value) % 2 else {"text_config": value, "a": 1}
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 128, 4096, 10**6, 10**12, -(10**400), 10**400, 0.5, -2.0, 4096.0, 1e308,
    float("nan"), float("inf"), "", "4096", "linear", "full_attention", "re:(a+)+$", "x" * 5000, [], [1], [None], [-1],
    ["full_attention"], [10**400] * 3, {}, {"a": {}}, {"quant_method": "fp8"}, {"factor": "8"}, _deep(),
)  # fmt: skip
NAMES = (
    "",
    "num_layers",
    "hidden",
    "n_layer",
    "model_type",
    "text_config",
    "num_experts",
    "kv_lora_rank",
    "é\udc80",
    "a.b",
)


def bases() -> list[Config]:
    """One of each kind, with few layers so that ten thousand are read in seconds."""
    return [_QWEN3, _GPT2, *(_short(deepcopy(config)) for config in ALL.values())]


def _short(config: Config) -> Config:
    target = config.get("text_config", config)
    if target["num_hidden_layers"] > _MOST_LAYERS:
        target["num_hidden_layers"] = _MOST_LAYERS
    for key in _LISTS_OF_LAYERS:
        if key in target:
            target[key] = target[key][:_MOST_LAYERS]
    if "hybrid_override_pattern" in target:
        target["hybrid_override_pattern"] = target["hybrid_override_pattern"][:_MOST_LAYERS]
    if "linear_attn_config" in target:
        target["linear_attn_config"]["full_attn_layers"] = [4]
    return config


def mutated(count: int, *, seed: int) -> Iterator[Config]:
    """Each with one to four faults, anywhere in it."""
    draw = random.Random(seed)
    originals = bases()
    for _ in range(count):
        config = deepcopy(draw.choice(originals))
        for _ in range(draw.randint(1, 4)):
            _spoil(config, draw)
        yield config


def _spoil(config: Config, draw: random.Random) -> None:
    objects = [config]
    for value in objects:
        objects.extend(member for member in value.values() if isinstance(member, dict) and len(objects) < 50)
    target = draw.choice(objects)
    if not target:
        target[draw.choice(NAMES)] = draw.choice(VALUES)
        return
    key = draw.choice(list(target))
    fault = draw.randrange(5)
    if fault == 0:
        del target[key]
    elif fault == 1:
        target[draw.choice(NAMES)] = target.pop(key)
    elif fault == 2:
        target[key] = deepcopy(config)
    elif fault == 3 and isinstance(target[key], list) and target[key]:
        target[key] = [*target[key][:-1], draw.choice(VALUES)]
    else:
        target[key] = deepcopy(draw.choice(VALUES))
