"""Image encoders that sit beside a decoder: their weights, where the class is known and its dimensions are given."""

from collections.abc import Iterator

from service.domain.config_section import Section
from service.domain.weight_module import Module, matrix, vector

_BESIDES = ("vision_config", "visual", "audio_config", "encoder_config", "speech_config", "talker_config")


def tower_modules(outer: Section, *, hidden: int) -> list[Module]:
    """The image encoder's modules, none where its class is not known; what is not counted becomes a warning."""
    modules: list[Module] = []
    for key in _BESIDES:
        if not isinstance(outer.values.get(key), dict) or not outer.values[key]:
            continue
        part = outer.part(key)
        found = None if part is None else _tower(part, outer, hidden)
        if found is None:
            outer.notes.warnings.append(f"the weights of {outer.path_of(key)} are not counted; add them to weight_gb")
        else:
            modules += found
    return modules


_COMMON = ("depth", "patch_size", "temporal_patch_size", "spatial_merge_size", "in_channels")
_NEEDED = {
    "qwen2_vl": (*_COMMON, "embed_dim", "mlp_ratio"),
    "qwen2_5_vl": (*_COMMON, "hidden_size", "intermediate_size"),
    "qwen3": (*_COMMON, "hidden_size", "intermediate_size", "num_position_embeddings"),
    "gemma3": ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size"),
}


def _tower(part: Section, outer: Section, hidden: int) -> list[Module] | None:
    family = outer.text("model_type") or ""
    kind = "qwen3" if family.startswith(("qwen3_vl", "qwen3_5")) else family
    part = part.known_as({"in_channels": ("in_chans",)}, {})
    if kind not in _NEEDED or any(part.raw(key) is None for key in _NEEDED[kind]):
        return None
    build = {"qwen2_vl": _qwen2, "qwen2_5_vl": _qwen2_5, "qwen3": _qwen3, "gemma3": _siglip}[kind]
    return list(build(part, hidden))


def _patches(part: Section, width: int) -> Module:
    pixels = part.size("temporal_patch_size") * part.size("patch_size") ** 2 * part.size("in_channels")
    return Module("image encoder", "visual.patch_embed.proj", width, pixels)


def _attention(name: str, width: int) -> Iterator[Module]:
    yield from matrix("image encoder", f"{name}.attn.qkv", 3 * width, width, bias=True)
    yield from matrix("image encoder", f"{name}.attn.proj", width, width, bias=True)


def _merger(name: str, merged: int, hidden: int) -> Iterator[Module]:
    yield from matrix("image encoder", f"{name}.linear_fc1", merged, merged, bias=True)
    yield from matrix("image encoder", f"{name}.linear_fc2", hidden, merged, bias=True)


def _qwen3(part: Section, hidden: int) -> Iterator[Module]:
    """modeling_qwen3_vl.py: learned positions, plain MLPs, one merger and one more for each deep layer."""
    width, depth, inner = part.size("hidden_size"), part.size("depth"), part.size("intermediate_size")
    merged = width * part.size("spatial_merge_size") ** 2
    yield _patches(part, width)
    yield vector("image encoder", "visual.patch_embed.bias", width)
    yield vector("image encoder", "visual.pos_embed", part.size("num_position_embeddings") * width)
    for i in range(_bounded(part, depth)):
        name = f"visual.blocks.{i}"
        yield from _attention(name, width)
        yield from matrix("image encoder", f"{name}.mlp.linear_fc1", inner, width, bias=True)
        yield from matrix("image encoder", f"{name}.mlp.linear_fc2", width, inner, bias=True)
        yield vector("image encoder", f"{name}.norms", 4 * width)
    yield from _merger("visual.merger", merged, hidden)
    yield vector("image encoder", "visual.merger.norm", 2 * width)
    for i in range(len(part.layer_numbers("deepstack_visual_indexes", layers=depth))):
        yield from _merger(f"visual.deepstack_merger_list.{i}", merged, hidden)
        yield vector("image encoder", f"visual.deepstack_merger_list.{i}.norm", 2 * merged)


def _qwen2_5(part: Section, hidden: int) -> Iterator[Module]:
    """modeling_qwen2_5_vl.py: gated MLPs and norms without a bias."""
    width, depth, inner = part.size("hidden_size"), part.size("depth"), part.size("intermediate_size")
    yield _patches(part, width)
    for i in range(_bounded(part, depth)):
        name = f"visual.blocks.{i}"
        yield from _attention(name, width)
        for proj in ("gate_proj", "up_proj"):
            yield from matrix("image encoder", f"{name}.mlp.{proj}", inner, width, bias=True)
        yield from matrix("image encoder", f"{name}.mlp.down_proj", width, inner, bias=True)
        yield vector("image encoder", f"{name}.norms", 2 * width)
    yield from _merger("visual.merger", width * part.size("spatial_merge_size") ** 2, hidden)
    yield vector("image encoder", "visual.merger.ln_q", width)


def _qwen2(part: Section, hidden: int) -> Iterator[Module]:
    """modeling_qwen2_vl.py: embed_dim is the width, and hidden_size the decoder's."""
    width, depth = part.size("embed_dim"), part.size("depth")
    inner = width * part.size("mlp_ratio")
    yield _patches(part, width)
    for i in range(_bounded(part, depth)):
        name = f"visual.blocks.{i}"
        yield from _attention(name, width)
        yield from matrix("image encoder", f"{name}.mlp.fc1", inner, width, bias=True)
        yield from matrix("image encoder", f"{name}.mlp.fc2", width, inner, bias=True)
        yield vector("image encoder", f"{name}.norms", 4 * width)
    yield from _merger("visual.merger", width * part.size("spatial_merge_size") ** 2, hidden)
    yield vector("image encoder", "visual.merger.ln_q", 2 * width)


def _siglip(part: Section, hidden: int) -> Iterator[Module]:
    """modeling_siglip.py without its head, and Gemma 3's projector: three colours, one position for each patch."""
    width, inner, patch = part.size("hidden_size"), part.size("intermediate_size"), part.size("patch_size")
    positions = (part.size("image_size") // patch) ** 2
    yield from matrix("image encoder", "vision_tower.embeddings.patch", width, 3 * patch**2, bias=True)
    yield vector("image encoder", "vision_tower.embeddings.position", positions * width)
    for i in range(_bounded(part, part.size("num_hidden_layers"))):
        name = f"vision_tower.layers.{i}"
        yield from _attention(name, width)
        yield from matrix("image encoder", f"{name}.mlp.fc1", inner, width, bias=True)
        yield from matrix("image encoder", f"{name}.mlp.fc2", width, inner, bias=True)
        yield vector("image encoder", f"{name}.norms", 4 * width)
    yield vector("image encoder", "vision_tower.norms", 3 * width)
    yield Module("image encoder", "multi_modal_projector", hidden, width)


def _bounded(part: Section, depth: int) -> int:
    if depth > 1000:
        raise part.refusal("depth", "give a whole number from 1 to 1000", value=depth)
    return depth
