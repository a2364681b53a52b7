"""A dense decoder's Hugging Face config.json -> the numbers that the ranker and the memory rules need.

Reads llama-like decoders (a gated MLP, full attention, one embedding). Everything else is refused with the reason:
a wrong size costs more than no answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.errors import UnsupportedModelError
from service.domain.scenario import MAX_HIDDEN_SIZE, MAX_LAYERS, MAX_TOKENS, ModelArch, check_float, check_int

# The engine loads 16-bit weights and a 16-bit KV cache for every dtype that an unquantised config.json may name.
BYTES_PER_ELEMENT = 2
MAX_VOCAB = 10_000_000
MAX_INTERMEDIATE = 10_000_000

# Per family: whether q, k and v carry a bias although the config has no key for it, and what its norms hold.
_FAMILIES = {
    "llama": ("attention_bias", "none"),
    "mistral": ("never", "none"),
    "qwen2": ("qkv", "none"),
    "qwen3": ("attention_bias", "head"),
    "phi3": ("never", "none"),
    "olmo2": ("attention_bias", "projection"),
}

# Keys whose presence (not null, not false, not zero) means an architecture that the formulas below do not describe.
_FOREIGN_KEYS = {
    "text_config": "dimensions nested in text_config",
    "llm_config": "dimensions nested in llm_config",
    "thinker_config": "dimensions nested in thinker_config",
    "quantization_config": "quantised weights",
    "compression_config": "quantised weights",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "moe_intermediate_size": "a mixture of experts",
    "kv_lora_rank": "multi-head latent attention",
    "ssm_cfg": "state-space layers",
    "mamba_d_state": "state-space layers",
    "linear_num_key_heads": "linear-attention layers",
    "full_attention_interval": "linear-attention layers",
    "cross_attention_layers": "cross-attention layers",
    "vision_config": "an image encoder",
    "audio_config": "an audio encoder",
}

_OLD_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDims:
    """The dimensions of a llama-like decoder, as read."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    norms: str

    @property
    def parameters(self) -> int:
        """Weights of embedding, layers, final norm and, unless tied, the output head."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (q + 2 * kv) + q * self.hidden_size
        attention += (q + 2 * kv if self.qkv_bias else 0) + (self.hidden_size if self.output_bias else 0)
        attention += {"none": 0, "head": 2 * self.head_dim, "projection": q + kv}[self.norms]
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value, every layer, 16 bits: 2 · layers · KV heads · head_dim · 2 bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_PER_ELEMENT


def parse_config(config: Mapping[str, Any], *, name: str | None = None) -> ModelArch:
    """A dense decoder's config.json as ModelArch. UnsupportedModelError or InvalidInputError names key and remedy."""
    family = _family(config)
    dims, assumed = _read_dims(config, family)
    return ModelArch(
        weight_gb=dims.parameters * BYTES_PER_ELEMENT / 1e9,
        num_layers=dims.num_layers,
        hidden_size=dims.hidden_size,
        kv_bytes_per_token=dims.kv_bytes_per_token,
        name=name,
        max_model_len=_context(config),
        parameters=dims.parameters,
        assumed=assumed,
    )


def _family(config: Mapping[str, Any]) -> str:
    for key, meaning in _FOREIGN_KEYS.items():
        # An empty or zero value (`"num_experts": 0`) switches the feature off, so it is no reason to refuse.
        if config.get(key):
            raise UnsupportedModelError(
                path=key, value=config[key], remedy=f"{meaning} cannot be sized yet; give the four numbers instead"
            )
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        old = next((key for key in _OLD_KEYS if key in config), None)
        hint = f"; {old} is an old spelling of {_OLD_KEYS[old]}" if old else ""
        raise UnsupportedModelError(
            path="model_type",
            value=family,
            remedy=f"read are {', '.join(_FAMILIES)}{hint}; give the four numbers instead",
        )
    return family


def _read_dims(config: Mapping[str, Any], family: str) -> tuple[DenseDims, tuple[tuple[str, str | bool], ...]]:
    bias, norms = _FAMILIES[family]
    hidden = _dimension(config, "hidden_size", high=MAX_HIDDEN_SIZE)
    heads = _dimension(config, "num_attention_heads", high=100_000)
    kv_heads = heads
    if config.get("num_key_value_heads") is not None:
        kv_heads = _dimension(config, "num_key_value_heads", high=heads)
    if heads % kv_heads:
        raise UnsupportedModelError(
            path="num_key_value_heads", value=kv_heads, remedy=f"it must divide num_attention_heads = {heads}"
        )
    attention_bias = _flag(config, "attention_bias", default=False)
    assumed = () if "tie_word_embeddings" in config else (("model.config.tie_word_embeddings", False),)
    dims = DenseDims(
        hidden_size=hidden,
        num_layers=_dimension(config, "num_hidden_layers", high=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, hidden, heads),
        intermediate_size=_dimension(config, "intermediate_size", high=MAX_INTERMEDIATE),
        vocab_size=_dimension(config, "vocab_size", high=MAX_VOCAB),
        # Each family's own class defaults to untied and config.json leaves defaults out.
        tied=_flag(config, "tie_word_embeddings", default=False),
        qkv_bias=bias == "qkv" or (bias == "attention_bias" and attention_bias),
        output_bias=bias == "attention_bias" and attention_bias,
        norms=norms,
    )
    if _flag(config, "mlp_bias", default=False):
        raise UnsupportedModelError(path="mlp_bias", value=True, remedy="a biased MLP cannot be sized yet")
    return dims, assumed


def _dimension(config: Mapping[str, Any], key: str, *, high: int) -> int:
    if config.get(key) is None:
        old = next((old for old, new in _OLD_KEYS.items() if new == key and old in config), None)
        hint = f"rename {old}" if old else "add it"
        raise UnsupportedModelError(path=key, value=None, remedy=f"the config must name this dimension; {hint}")
    return check_int(key, config[key], high=high)


def _flag(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise UnsupportedModelError(path=key, value=value, remedy="give true or false")
    return value


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    """The declared head_dim wins (it need not be hidden ÷ heads); only a missing or null one is derived."""
    if config.get("head_dim") is not None:
        return check_int("head_dim", config["head_dim"], high=100_000)
    if hidden % heads:
        raise UnsupportedModelError(
            path="head_dim",
            value=None,
            remedy=f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, so declare head_dim",
        )
    return hidden // heads


def _scaled_context(config: Mapping[str, Any], positions: int) -> int:
    """The context that vLLM 0.28 derives from the positions and the rope scaling (_get_and_verify_max_len)."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = (rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, Mapping) else None
    if kind in ("default", "llama3", "su"):
        return positions
    original = "original_max_position_embeddings"
    if kind == "longrope":
        # Longer prompts would cost shorter ones quality, so the engine starts with the original context.
        return _dimension(config, original, high=MAX_TOKENS * 10) if config.get(original) else positions
    if kind in ("linear", "dynamic", "yarn"):
        base = _dimension(rope, original, high=MAX_TOKENS * 10) if kind == "yarn" else positions
        return int(base * check_float("rope_scaling.factor", rope.get("factor"), low=1.0, high=10_000.0))
    raise UnsupportedModelError(
        path="rope_scaling", value=rope, remedy="this scaling cannot be read yet; give the four numbers instead"
    )


def _context(config: Mapping[str, Any]) -> int:
    context = _scaled_context(config, _dimension(config, "max_position_embeddings", high=MAX_TOKENS * 10))
    window = config.get("sliding_window")
    # Qwen configs carry a window that use_sliding_window switches off; elsewhere a window is in force.
    in_force = window is not None and config.get("use_sliding_window") is not False
    if in_force and check_int("sliding_window", window, high=MAX_TOKENS * 10) < context:
        raise UnsupportedModelError(
            path="sliding_window",
            value=window,
            remedy=f"a window below the {context}-token context cannot be sized yet; give the four numbers instead",
        )
    return context
