"""The answers as they are documented; a test validates what the service sends against them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.expected_schemas import ExpectedPart
from service.api.reason_schemas import ExplanationPart, HoldsUntilPart, RangePart
from service.decision import Decision
from service.domain.architecture import Kind
from service.domain.cell import Evidence
from service.domain.manifest import Confidence


class Answer(BaseModel):
    """No member beyond the documented ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineArguments(Answer):
    """The four arguments by the names of vLLM's EngineArgs."""

    max_num_seqs: int = Field(description="Sequences in one step.")
    max_num_batched_tokens: int = Field(description="Token budget of one step.")
    gpu_memory_utilization: float = Field(description="Share of the device's memory that the engine may use.")
    enable_prefix_caching: bool = Field(description="Automatic prefix caching.")


class ArgumentsToSet(Answer):
    """The arguments to add: empty where the engine's default is best left alone, without those that are fixed."""

    max_num_seqs: int | None = Field(default=None, description="Absent: do not set it.")
    max_num_batched_tokens: int | None = Field(default=None, description="Absent: do not set it.")
    gpu_memory_utilization: float | None = Field(default=None, description="Absent: do not set it.")
    enable_prefix_caching: bool | None = Field(default=None, description="Absent: do not set it.")


class Feasibility(Answer):
    """Why a candidate cannot be chosen."""

    reason: Literal["kv_cache_too_small", "too_few_batched_tokens", "contradicts_fixed", "not_learnt"]
    arguments: list[str] = Field(description="Arguments that contradict `fixed`, or that vLLM would refuse.")
    needed_gib: float | None = Field(description="GiB for weights, one full-length request and overhead.")
    available_gib: float | None = Field(description="GiB that the candidate may use.")


class CapacityPart(Answer):
    """What a configuration leaves for the KV cache of this model on this device, and for how much that is enough."""

    kv_cache_gib: float = Field(
        description="gpu_memory_utilization of the device less weights and overhead, see `memory`; never below 0."
    )
    kv_cache_tokens: int = Field(
        description="As vLLM logs it (GPU KV cache size): sequences of the whole context, times its length."
    )
    requests_that_fit: int = Field(
        description="Requests of the workload whose KV cache has room at once, each at its end: by memory alone, "
        "max_num_seqs may be less. A prefix in common is counted once where prefix caching is on."
    )
    full_length_request_fits: bool = Field(
        description="Whether one request of the whole context fits (`memory.context_tokens`); else vLLM does not start."
    )


class DefaultCapacity(CapacityPart):
    """Of what the engine starts with when nothing is set."""

    engine_version: str = Field(description="The vLLM version that `engine_default` is read from.")
    needed_gib: float = Field(description="GiB for weights, one full-length request and overhead.")
    available_gib: float = Field(description="GiB that it may use.")


class MemoryPart(Answer):
    """The terms of the memory rule."""

    gpu_memory_gib: float = Field(description="What the engine can use of the device.")
    weights_gib: float = Field(description="Loaded weights.")
    overhead_gib: float = Field(
        description="Assumed for activations, runtime and, where they are inside, CUDA graphs; measured runs spread by "
        "about 1 GiB around it."
    )
    cuda_graphs_gib: float = Field(description="Assumed for CUDA graphs, from vLLM's own estimates in public logs.")
    cuda_graphs: Literal["inside", "outside"] = Field(
        description="Inside: charged to gpu_memory_utilization, as vLLM does since 0.21. Outside: they come on top."
    )
    context_tokens: int = Field(
        description="Tokens of the one request that vLLM wants room for: the model's context, or the workload's "
        "request where the context is unknown."
    )


class RankedRow(Answer):
    """One of the 15 candidates at its rank."""

    rank: int = Field(description="1 is best; candidates that cannot be chosen come last.")
    config_id: str
    score: float = Field(
        description="Orders the candidates and means nothing else; less the prices of the chances of being worse than "
        "the engine's default and than the first of /v1/configs (256 sequences, 8,192 tokens, 0.90 of the memory, "
        "prefix caching), unless `fixed` makes vLLM start with something else; the first price was calibrated, the "
        "second was given and is 0 in the shipped policies for exactly and roughly known workloads. Over a range the "
        "mean. Those within the noise of the best are ranked by memory, sequences and nearness to the engine's "
        "default; those that are not safe enough come behind."
    )
    p_not_worse_than_engine_default: float | None = Field(
        description="Calibrated chance that no limit of training is newly missed and goodput is at most 5 % below what "
        "the engine's default gives. Null outside of support, where the candidate cannot be chosen, of a policy that "
        "estimates none, and where `fixed` makes vLLM start with something else than its default."
    )
    p_not_worse_than_fixed: float | None = Field(
        description="The same chance against FIXED, which is the first of /v1/configs (256 sequences, 8,192 tokens, "
        "0.90 of the memory, prefix caching) and has nothing to do with `fixed`; 1 for that one itself. Null where the "
        "other chance is."
    )
    engine_args: EngineArguments
    cli_args: list[str] = Field(description="The same as arguments of `vllm serve`.")
    feasible: bool
    feasibility: Feasibility | None = Field(description="Null where the candidate can be chosen.")
    capacity: CapacityPart


class OutOfRangeEntry(Answer):
    """One input outside what the policy was trained for."""

    feature: str = Field(
        description="A feature, architecture, quantisation, `gpu`, `engine_version`, `slo.…` or `extra_args.…`; log2_… "
        "in log2 units."
    )
    value: float | str
    low: float | None = Field(description="Least trained value; null where a single value was trained.")
    high: float | None = Field(description="Greatest trained value; null where a single value was trained.")
    trained_for: float | str | None = Field(
        description="The single trained value; null where a range was, or nothing at all."
    )


class Support(Answer):
    """Whether the policy was trained for a question like this."""

    in_distribution: bool
    out_of_range: list[OutOfRangeEntry]


class RemedyPart(Answer):
    """What would make room, each by itself. Null or empty: it would not, or it is none to have."""

    max_model_len: int | None = Field(description="The longest context that starts, if the workload fits in it.")
    configurations: int = Field(
        description="Candidates that agree with `fixed` and start with a context of the workload's request."
    )
    weight_bits: Literal[8, 4] | None = Field(description="The most bits a weight with which one starts.")
    weight_bits_max_model_len: int | None = Field(description="The longest context that starts with such weights.")
    gpus: list[str] = Field(description="The smallest GPUs that are known and have room: by memory alone.")


class ShortfallPart(Answer):
    """Memory of the configuration that comes nearest to starting: of what is fixed with vLLM's defaults, where no
    candidate agrees with that."""

    config_id: str
    needed_gib: float = Field(description="GiB for weights, one full-length request and overhead.")
    available_gib: float = Field(description="GiB that it may use.")
    remedy: RemedyPart


class PolicyPart(Answer):
    """The policy that answered."""

    version: str
    sha256: str = Field(description="Of the bundle's manifest, which holds the sha256 of its other files.")
    feature_schema: str
    gpu: str
    confidence: Confidence = Field(description="How well the workloads were known that it was trained for.")
    engine_version: str
    evidence: Evidence = Field(description="Whether the runs it learnt from were measured or simulated.")


class RecommendAnswer(Answer):
    """All 15 configurations, best first, and one decision."""

    recommendation_id: str
    decision: Decision = Field(description="What to do with the flags: set them, leave the default, or neither works.")
    reason: str | None = Field(
        description="Why not `recommended`, an enumerated value; for `none_feasible` with the GiB needed and available."
    )
    summary: str = Field(description="One sentence for a person.")
    set: ArgumentsToSet | None = Field(description="{} means: set nothing. Null means: nothing would start.")
    command: str | None = Field(description="MODEL stands for a model without a name; ends with `extra_args`.")
    ranked: list[RankedRow] = Field(min_length=15, max_length=15)
    engine_default: EngineArguments = Field(description="What vLLM starts with here when none of the four is set.")
    engine_default_capacity: DefaultCapacity
    memory: MemoryPart
    expected: ExpectedPart | None = Field(
        description="Null outside of support, and of a policy that estimates no numbers. Of the middle of a range. "
        "Simulated runs were watched for 10.5 s at most: where answers take longer, none ends in them, such runs count "
        "as violating the SLO, and a warning says so."
    )
    shortfall: ShortfallPart | None = Field(description="Given for `none_feasible` where memory is lacking.")
    support: Support
    assumed: dict[str, str | float | bool] = Field(
        description="What the request left out and the service filled in, by path."
    )
    warnings: list[str]
    renders: dict[str, Any] = Field(
        description="By the names of `render`, a text or an object each; null where nothing would start."
    )
    range: RangePart | None = Field(description="Given where a number of the workload is a range.")
    holds_until: HoldsUntilPart | None = Field(
        description="Given with `explain`, unless nothing was learnt about the question or nothing starts; of a range "
        "only where its middle alone gets the same choice."
    )
    explanation: ExplanationPart | None = Field(description="Given with `explain`.")
    policy: PolicyPart


class InspectAnswer(Answer):
    """What a config.json says about memory."""

    kind: Kind = Field(description="The most telling of `traits`.")
    traits: list[Kind] = Field(description="All that sets it apart from a dense decoder with full attention.")
    family: str = Field(description="The model_type whose formulas were used.")
    parameters: int = Field(description="Loaded weights, tied embeddings once, all experts.")
    active_parameters: int = Field(description="Those that one token passes.")
    weight_gb: float = Field(description="Loaded weights in 1e9 bytes, in the format that they are stored in.")
    quantisation: str | None = Field(description="Method and formats of quantised weights; null for 16 bits.")
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int = Field(description="Every layer full, 16 bits.")
    kv_gib_at: dict[str, float] = Field(description="GiB of a sequence, by its tokens, windows taken into account.")
    state_bytes_per_sequence: int = Field(description="Of recurrent layers, whatever the length; 0 without such.")
    max_context: int = Field(description="What vLLM derives when no max_model_len is set.")
    assumed: dict[str, str | int | bool] = Field(description="What the family's class fills in, by path.")
    warnings: list[str] = Field(description="What was not counted, or not exactly.")
    formulas: dict[str, str] = Field(description="With the numbers in, by what they give.")


class ConfigEntry(Answer):
    """One candidate."""

    index: int = Field(description="Position in which it is scored; ties go to the lower one.")
    config_id: str
    engine_args: EngineArguments
    cli_args: list[str]


class EngineDefaultEntry(Answer):
    """What vLLM starts with on a GPU when nothing is set."""

    gpu: str
    engine_version: str
    engine_args: EngineArguments


class ConfigsAnswer(Answer):
    """The 15 candidates in their order, and the default they compete with."""

    configs: list[ConfigEntry]
    engine_default: EngineDefaultEntry = Field(description="On the GPU that requests without one are answered for.")


class ModelSupport(Answer):
    """Whether the loaded policy was trained for models like this; a workload may still lie outside."""

    in_distribution: bool
    out_of_range: list[str] = Field(description="What lies outside: a feature, architecture, quantisation or adapter.")


class ModelEntry(Answer):
    """A model of the catalogue."""

    id: str = Field(description="Hugging Face id or the operator's name; give it as model.name.")
    kind: Kind = Field(description="What sets it apart most; of a model by numbers only its size is known: dense.")
    family: str | None = Field(description="The model_type whose formulas were used; null for a model by numbers.")
    quantisation: str | None = Field(description="Method and formats of quantised weights; null for 16 bits.")
    parameters: int | None = Field(description="Null for a model by numbers.")
    active_parameters: int | None = Field(description="Those that one token passes.")
    weight_gb: float = Field(description="Loaded weights in 1e9 bytes, tied embeddings counted once.")
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int = Field(description="Every layer full, 16 bits.")
    max_context: int | None = Field(description="Tokens that the engine reserves for when nothing is set.")
    support: ModelSupport
    origin: Literal["built_in", "operator"]
    source: str = Field(description="The public file that the dimensions were read from, at its revision.")


class ModelsAnswer(Answer):
    """The models that match, in the catalogue's order."""

    total: int = Field(description="Matching models, listed here or not.")
    models: list[ModelEntry]


class OtherPolicy(Answer):
    """A policy beside the primary one."""

    sha256: str = Field(description="Of its bundle's manifest.")
    confidence: Confidence
    manifest: dict[str, Any]


class PolicyAnswer(Answer):
    """The policies: the primary one in full, which also stands for what none was trained for."""

    sha256: str = Field(description="Of the bundle's manifest.")
    manifest: dict[str, Any]
    evaluation: dict[str, Any] | None = Field(description="evaluation.json of the bundle, null if it has none.")
    others: list[OtherPolicy] = Field(description="Further policies, which answer for the GPU and confidence of each.")


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Answer):
    """The policy is loaded and verified, and there is room for records."""

    status: Literal["ready"]
    policy_sha256: str
    audit: Literal["database", "spool", "off"] = Field(description="Where records go now.")


class Version(Answer):
    """What is running."""

    service: str
    engine_version: str = Field(description="The vLLM version whose rules are built in.")
    policy: str = Field(description="Version of the loaded policy.")


class AdmissionPart(Answer):
    """Kubernetes creates the object in any case."""

    uid: str = Field(description="Of the request.")
    allowed: Literal[True]
    patch_type: Literal["JSONPatch"] | None = Field(default=None, alias="patchType")
    patch: str | None = Field(default=None, description="RFC 6902 in base64.")
    warnings: list[str] | None = Field(default=None, max_length=1)


class AdmissionAnswer(Answer):
    """An AdmissionReview with its response."""

    api_version: Literal["admission.k8s.io/v1"] = Field(alias="apiVersion")
    kind: Literal["AdmissionReview"]
    response: AdmissionPart


class ProblemDetail(Answer):
    """One place of the request."""

    path: str = Field(description="JSON path, `?name` for a query parameter.")
    message: str
    value: Any = Field(description="What stood there, cut; null where nothing did.")


class Problem(Answer):
    """RFC 9457 problem details; error, message, request_id, timestamp and details repeat it for gateway clients."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    error: str = Field(description="A stable code, such as measured_field.")
    message: str
    request_id: str
    timestamp: int = Field(description="Unix seconds.")
    details: list[ProblemDetail]


class BatchItem(Answer):
    """What became of one question of a batch."""

    index: int = Field(description="Its place in `items` of the request, from 0.")
    status: int = Field(description="What POST /v1/recommend would have answered this question with.")
    answer: RecommendAnswer | None = Field(description="Given where status is 200.")
    error: Problem | None = Field(description="Given otherwise; its paths start at the question, not at the batch.")


class BatchAnswer(Answer):
    """One entry for each question, in the order of the request."""

    answered: int
    refused: int
    items: list[BatchItem] = Field(min_length=1, max_length=256)
