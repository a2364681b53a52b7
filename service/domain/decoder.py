"""A decoder's config section -> its modules, caches and state: the family decides the layers, this the rest."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from service.domain.architecture import CacheLayers
from service.domain.config_section import Section
from service.domain.context_length import context_length, positions
from service.domain.decoder_layer import Frame, Layer, grouped_layers, switch
from service.domain.hybrid_decoder import delta_layers, mamba_blocks, mamba_layers
from service.domain.latent_decoder import compressed_layers, kimi_linear_layers, latent_layers
from service.domain.model_family import Family
from service.domain.uneven_decoder import cross_attention_layers, gemma4_layers, searched_layers
from service.domain.weight_module import Module, matrix, norms, vector

_LAYERS: dict[str, Callable[[Frame], list[Layer]]] = {
    "grouped": grouped_layers,
    "latent": latent_layers,
    "delta": delta_layers,
    "kimi_linear": kimi_linear_layers,
    "mamba": mamba_layers,
    "searched": searched_layers,
    "compressed": compressed_layers,
    "crossing": cross_attention_layers,
    "gemma4": gemma4_layers,
}
# Extra layers that guess further tokens; the engine loads them only for speculative decoding.
_PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a decoder holds. state_bytes: per sequence, of all recurrent layers."""

    num_layers: int
    hidden_size: int
    context: int
    modules: tuple[Module, ...]
    caches: tuple[CacheLayers, ...]
    state_bytes: int
    recurrent_layers: int


def read_decoder(section: Section, family: Family, *, tied: bool) -> Decoder:
    """UnsupportedModelError or InvalidInputError names the key and the remedy."""
    frame = Frame(
        section=section,
        family=family,
        hidden=section.size("hidden_size"),
        layers=_num_layers(section, family),
        context=context_length(section, scaled=family.scaled_context),
    )
    layers = _LAYERS[family.builder](frame)
    recurrent = sum(1 for layer in layers if layer.state_bytes)
    _warn_of_prediction(section)
    return Decoder(
        num_layers=frame.layers,
        hidden_size=frame.hidden,
        context=frame.context,
        modules=(*_ends(frame, tied=tied), *(module for layer in layers for module in layer.modules)),
        caches=_merged(layers),
        state_bytes=sum(layer.state_bytes for layer in layers),
        recurrent_layers=recurrent,
    )


def _num_layers(section: Section, family: Family) -> int:
    if family.builder == "mamba" and section.raw("num_hidden_layers") is None:
        return len(mamba_blocks(section))
    return section.size("num_hidden_layers")


def _ends(frame: Frame, *, tied: bool) -> list[Module]:
    """Embedding, learned positions, the norm after the last layer, and the output head unless it is the embedding."""
    section, family, hidden = frame.section, frame.family, frame.hidden
    vocab = section.size("vocab_size")
    # Eight more rows than the vocabulary stand for images in Llama 3.2 Vision (modeling_mllama.py).
    rows = vocab + 8 if family.builder == "crossing" else vocab
    modules = [Module("embedding", "model.embed_tokens", rows, hidden)]
    if family.learned_positions:
        modules.append(Module("embedding", "model.positions", positions(section), hidden))
    modules += norms("model", ("norm",), hidden, bias=family.norm_bias)
    streams = section.optional("hc_mult") if family.builder == "compressed" else None
    if streams:
        modules.append(vector("norms", "model.hc_head", streams * streams * hidden + streams + 1))
    if not tied:
        modules += matrix("head", "lm_head", vocab, hidden, bias=switch(section, family.head_bias))
    return modules


def _merged(layers: list[Layer]) -> tuple[CacheLayers, ...]:
    """Layers that cache alike, together."""
    found: dict[CacheLayers, int] = {}
    for layer in layers:
        if layer.cache is not None:
            found[layer.cache] = found.get(layer.cache, 0) + 1
    return tuple(replace(cache, layers=count) for cache, count in found.items())


def _warn_of_prediction(section: Section) -> None:
    extra = next((key for key in _PREDICTION_KEYS if section.count(key)), None)
    if extra is not None:
        section.notes.warnings.append(
            f"the layers of {section.path_of(extra)} are not counted: vLLM loads them for speculative decoding only"
        )
