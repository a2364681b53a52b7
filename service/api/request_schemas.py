"""The body of POST /v1/recommend. Bounds are the domain's own; the domain checks them again where it is built."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from service.api.request_part import RequestPart
from service.api.workload_part import WorkloadPart
from service.domain.adapter import ENGINE_RANKS, MAX_LORAS
from service.domain.scenario import (
    MAX_HIDDEN_SIZE,
    MAX_KV_BYTES_PER_TOKEN,
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_WEIGHT_GB,
)

# Nobody plots more points of a line with one bend.
MOST_LENGTHS = 64
# Below is no device that a server runs on; above it is a number of bytes or of MiB.
MIN_GPU_MEMORY_GIB = 0.25
MAX_GPU_MEMORY_GIB = 2_048.0
NUMBER_KEYS = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")
MAX_CONTEXT = MAX_TOKENS * 10
MOST_TEXT = 16_384
Form = Literal["vllm", "yaml", "helm", "kserve", "ray", "metis"]
MODEL_FORMS = (
    "give exactly one of {'name': …}, {'config': {…}}, {'same_architecture_as': …} "
    "or {'weight_gb': …, 'num_layers': …, 'hidden_size': …, 'kv_bytes_per_token': …}"
)


class ModelByName(RequestPart):
    """A model of the catalogue; GET /v1/models lists it."""

    name: str = Field(min_length=1, max_length=200, description="Hugging Face id; case does not matter.")


class ModelLike(RequestPart):
    """A fine-tuned model: its own name, and the model of the catalogue that it has the architecture of."""

    same_architecture_as: str = Field(
        min_length=1, max_length=200, description="Id of a model of the catalogue; GET /v1/models lists it."
    )
    name: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[A-Za-z0-9._/~][A-Za-z0-9._/~@:+-]*$",
        description="Its own id or folder, as `vllm serve` is given it.",
    )


class ModelByConfig(RequestPart):
    """A model by its own description."""

    config: dict[str, Any] = Field(description="The content of the model's Hugging Face config.json; any keys.")


class ModelByNumbers(RequestPart):
    """A model by the four numbers that the ranker needs; the way for an architecture that cannot be read."""

    weight_gb: float = Field(
        ge=0.001, le=MAX_WEIGHT_GB, description="Loaded weights in 1e9 bytes, tied embeddings counted once."
    )
    num_layers: int = Field(ge=1, le=MAX_LAYERS, description="Decoder layers.")
    hidden_size: int = Field(ge=1, le=MAX_HIDDEN_SIZE, description="Width of the residual stream.")
    kv_bytes_per_token: int = Field(
        ge=1, le=MAX_KV_BYTES_PER_TOKEN, description="Bytes of key and value for one token over all layers."
    )


class AdapterByConfig(RequestPart):
    """LoRA adapters by the adapter_config.json of the largest."""

    config: dict[str, Any] = Field(description="The content of an adapter_config.json of PEFT; any keys.")
    max_loras: int = Field(default=1, ge=1, le=MAX_LORAS, description="Adapters in one batch, --max-loras.")


class AdapterByRank(RequestPart):
    """LoRA adapters by the rank of the largest."""

    rank: int = Field(ge=1, le=ENGINE_RANKS[-1], description="The largest of any layer.")
    max_loras: int = Field(default=1, ge=1, le=MAX_LORAS, description="Adapters in one batch, --max-loras.")
    target_modules: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Layers that they change. vLLM reserves room in every layer all the same.",
    )


class SloPart(RequestPart):
    """Limits that the deployment must meet. A limit that is left out is the one that the bundle was trained for."""

    max_p95_ttft_ms: float | None = Field(
        default=None, ge=0.001, le=1e9, description="95th percentile of the time to the first token, in milliseconds."
    )
    max_p95_tpot_ms: float | None = Field(
        default=None,
        ge=0.001,
        le=1e9,
        description="95th percentile of the time per further output token, in milliseconds.",
    )
    max_error_rate: float | None = Field(default=None, ge=0.0, le=1.0, description="Share of failed requests, 0 to 1.")


class FixedPart(RequestPart):
    """Engine arguments that are already set. Candidates that contradict one of them cannot be chosen."""

    max_num_seqs: int | None = Field(default=None, ge=1, le=1_000_000, description="Sequences in one step.")
    max_num_batched_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Token budget of one step."
    )
    gpu_memory_utilization: float | None = Field(
        default=None, ge=0.01, le=1.0, description="Share of the device's memory that the engine may use."
    )
    enable_prefix_caching: bool | None = Field(default=None, description="Automatic prefix caching.")
    enable_chunked_prefill: bool | None = Field(
        default=None, description="vLLM's default is on. Off: a prompt is computed in one step, whatever its length."
    )


def _model_form(value: object) -> str | None:
    """The tag of the one form whose keys are there; None if none is, or more than one."""
    if not isinstance(value, dict):
        return None
    forms = [form for form in ("same_architecture_as", "config") if form in value]
    if "name" in value and "same_architecture_as" not in value:
        forms.append("name")
    if any(key in value for key in NUMBER_KEYS):
        forms.append("numbers")
    return forms[0] if len(forms) == 1 else None


ModelPart = Annotated[
    Annotated[ModelByName, Tag("name")]
    | Annotated[ModelLike, Tag("same_architecture_as")]
    | Annotated[ModelByConfig, Tag("config")]
    | Annotated[ModelByNumbers, Tag("numbers")],
    Discriminator(_model_form, custom_error_type="model_form", custom_error_message=MODEL_FORMS),
]


def _adapter_form(value: object) -> str | None:
    if not isinstance(value, dict) or ("config" in value) == ("rank" in value):
        return None
    return "config" if "config" in value else "rank"


AdapterPart = Annotated[
    Annotated[AdapterByConfig, Tag("config")] | Annotated[AdapterByRank, Tag("rank")],
    Discriminator(
        _adapter_form,
        custom_error_type="adapter_form",
        custom_error_message="give either {'config': {…}} or {'rank': …}",
    ),
]


class RecommendRequest(RequestPart):
    """One question, asked before launch. Quantities that exist only after launch are refused by name."""

    model: ModelPart = Field(description="The model, in exactly one of four forms.")
    workload: WorkloadPart
    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Device by name or alias (B200). Left out: the service's default, listed under `assumed`.",
    )
    gpu_memory_gib: float | None = Field(
        default=None,
        ge=MIN_GPU_MEMORY_GIB,
        le=MAX_GPU_MEMORY_GIB,
        description="GiB that the engine can use of the device, where they are not those of the named one. With it a "
        "device that is in no list can be asked for: its defaults and what fits on it are answered, nothing is set.",
    )
    engine_version: str | None = Field(
        default=None,
        pattern=r"^v?[0-9]{1,4}(\.[0-9]{1,4}){1,3}([-+.]?[0-9A-Za-z]{1,20}){0,3}$",
        max_length=60,
        description="vLLM version, such as 0.28.0. Left out: the one that the bundle was trained for.",
    )
    slo: SloPart | None = Field(default=None, description="Left out: the limits that the bundle was trained for.")
    fixed: FixedPart | None = None
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CONTEXT,
        description="Context that the server will be limited to, in tokens; the command then carries it. Left out: "
        "what the engine derives from the model.",
    )
    extra_args: str | None = Field(
        default=None,
        max_length=MOST_TEXT,
        description="Further arguments of `vllm serve`, as one line. Those that are ranked count as `fixed`; the "
        "command ends with them.",
    )
    render: list[Form] | None = Field(
        default=None, max_length=20, description="Forms of the answer to give under `renders`."
    )
    adapter: AdapterPart | None = Field(default=None, description="LoRA adapters that are served on the model.")
    explain: bool | None = Field(
        default=None,
        description="true: the answer has `explanation` and `holds_until`, the reasons of its first choice.",
    )
    gpu_shared: bool | None = Field(
        default=None,
        description="Whether others use the same device. Left out: no; a small share of its memory is then offered "
        "only where it gains more than noise.",
    )


class InspectRequest(RequestPart):
    """A config.json to read, and the lengths at which its KV cache is wanted."""

    config: dict[str, Any] = Field(description="The content of the model's Hugging Face config.json; any keys.")
    at_tokens: list[Annotated[int, Field(ge=1, le=MAX_TOKENS * 10)]] | None = Field(
        default=None,
        max_length=MOST_LENGTHS,
        description="Tokens of a sequence. Left out: 4096, 32768 and the model's own context, as far as it reaches.",
    )


PART_BY_LOCATION: dict[tuple[str, ...], type[RequestPart]] = {
    (): RecommendRequest,
    ("model", "name"): ModelByName,
    ("model", "same_architecture_as"): ModelLike,
    ("model", "config"): ModelByConfig,
    ("model", "numbers"): ModelByNumbers,
    ("workload",): WorkloadPart,
    ("slo",): SloPart,
    ("fixed",): FixedPart,
    ("adapter", "config"): AdapterByConfig,
    ("adapter", "rank"): AdapterByRank,
}
