"""A Hugging Face config.json -> the numbers that the ranker and the memory rules need.

It is read key by key, for the families in family_table.FAMILIES. What is missing is refused by name: a wrong size costs
more than no answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.domain.architecture import Architecture, Kind
from service.domain.config_section import NESTED, OLD_KEYS, Notes, Section
from service.domain.decoder import Decoder, read_decoder
from service.domain.errors import UnsupportedModelError
from service.domain.family_table import FAMILIES
from service.domain.image_tower import tower_modules
from service.domain.model_family import Family
from service.domain.quantisation import Quantisation, read_quantisation, warn_of_unmatched, weight_bytes
from service.domain.scenario import ModelArch

# Keys whose presence (not null, not false, not zero) means layers that a family without them does not have.
_FOREIGN_KEYS = {
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
    "num_kv_shared_layers": "layers that share a cache",
}
_DBRX_PARTS = ("attn_config", "ffn_config")
_MOST_LEVELS = 3
_SHOWN_FAMILIES = "llama, mistral, qwen2, qwen3, qwen3_moe, phi3, olmo2, mixtral, deepseek_v3, gemma3, gpt_oss"


def parse_config(config: Mapping[str, Any], *, name: str | None = None) -> ModelArch:
    """A config.json as ModelArch. UnsupportedModelError or InvalidInputError names key and remedy."""
    read = read_architecture(config)
    return ModelArch(
        weight_gb=read.weight_bytes / 1e9,
        num_layers=read.num_layers,
        hidden_size=read.hidden_size,
        kv_bytes_per_token=read.kv_bytes_per_token,
        name=name,
        max_model_len=read.max_context,
        parameters=read.parameters,
        assumed=read.assumed,
        architecture=read,
    )


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Everything that a config.json says about memory."""
    notes = Notes()
    outer = Section(values=config, notes=notes)
    section, family, family_name = _decoder_section(outer)
    _refuse_foreign(section, family)
    decoder = read_decoder(section, family, tied=_tied(outer, section, family))
    modules = (*decoder.modules, *tower_modules(outer, hidden=decoder.hidden_size))
    quantisation = read_quantisation(outer, section)
    warn_of_unmatched(modules, quantisation, notes)
    by_format = weight_bytes(modules, quantisation)
    parameters = sum(numbers for numbers, _ in by_format.values())
    if not decoder.caches:
        raise section.refusal(
            "model_type", "without an attention layer there is no KV cache to plan", value=family_name
        )
    traits = _traits(decoder)
    return Architecture(
        kind=traits[0],
        traits=traits,
        family=family_name,
        num_layers=decoder.num_layers,
        hidden_size=decoder.hidden_size,
        parameters=parameters,
        active_parameters=sum(module.used_elements for module in modules if module.part != "image encoder"),
        weight_bytes=sum(size for _, size in by_format.values()),
        quantisation=_quantisation_name(quantisation),
        caches=decoder.caches,
        state_bytes=decoder.state_bytes,
        max_context=decoder.context,
        warnings=tuple(dict.fromkeys(notes.warnings)),
        assumed=tuple(notes.assumed.items()),
        modules=modules,
        weights=by_format,
    )


def _decoder_section(outer: Section) -> tuple[Section, Family, str]:
    """The object with the dimensions, and its family: its own, else that of the object around it."""
    section, name = outer, outer.text("model_type")
    for _ in range(_MOST_LEVELS):
        inner = next((part for key in NESTED if (part := section.part(key)) is not None), None)
        if inner is None:
            break
        section, name = inner, inner.text("model_type") or name
    family = FAMILIES.get(name or "")
    if name is None or family is None:
        old = next((key for key in OLD_KEYS if key in section.values), None)
        hint = f"; {old} is an old spelling of {OLD_KEYS[old]}" if old else ""
        raise section.refusal(
            "model_type",
            f"read are {len(FAMILIES)} families such as {_SHOWN_FAMILIES}{hint}; give the four numbers instead",
            value=name,
        )
    if name == "dbrx":
        section = _with_parts(section, _DBRX_PARTS)
    return section.known_as(family.spellings, family.defaults), family, name


def _with_parts(section: Section, keys: tuple[str, ...]) -> Section:
    """The object with single dimensions that stand one level deeper."""
    values, moved = dict(section.values), {}
    for key in keys:
        part = section.part(key)
        if part is not None:
            values.update(part.values)
            moved.update({name: f"{key}.{name}" for name in part.values})
    return replace(section, values=values, moved=moved)


def _refuse_foreign(section: Section, family: Family) -> None:
    if family.builder != "grouped":
        return
    known = set()
    if family.experts is not None:
        known = {"num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size"}
    for key, meaning in _FOREIGN_KEYS.items():
        # An empty or zero value (`"num_experts": 0`) switches the feature off, so it is no reason to refuse.
        if key not in known and section.values.get(key):
            raise UnsupportedModelError(
                path=section.path_of(key),
                value=section.values[key],
                remedy=f"{meaning} cannot be sized for this family; give the four numbers instead",
            )


def _tied(outer: Section, section: Section, family: Family) -> bool:
    """Each family's class has a default and config.json leaves defaults out; a composite's own word counts first."""
    key = "tie_word_embeddings"
    for place in (outer, section):
        if place.values.get(key) is not None:
            return place.flag(key)
    if key not in outer.values and key not in section.values:
        section.assume(key, family.tied)
    return family.tied


def _traits(decoder: Decoder) -> tuple[Kind, ...]:
    """What sets it apart from a dense decoder with full attention, most telling first."""
    found: list[Kind] = []
    if decoder.recurrent_layers:
        found.append("hybrid")
    if any(cache.kind == "latent" for cache in decoder.caches):
        found.append("mla")
    if any(module.part == "experts" for module in decoder.modules):
        found.append("moe")
    if any(cache.window is not None for cache in decoder.caches):
        found.append("sliding")
    return tuple(found) or ("dense",)


def _quantisation_name(quantisation: Quantisation | None) -> str | None:
    if quantisation is None:
        return None
    formats = dict.fromkeys(rule.format.name for rule in quantisation.rules if rule.format)
    kinds = "/".join(formats)
    return quantisation.method if not formats or kinds == quantisation.method else f"{quantisation.method} ({kinds})"
