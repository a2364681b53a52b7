"""What vLLM 0.28 refuses to start with, and what it makes of the memory it gets, against service.domain.capacity."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench_runner.reference_scheduler import vllm_config
from bench_runner.scheduler import Limits
from service.domain.architecture import CacheKind, CacheLayers, Kind
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Demand, memory_rule, too_few_batched_tokens
from service.domain.gpu import GPUS, Gpu, gpu_by_name
from service.domain.kv_layout import layout_of
from service.domain.memory import GIB, KV_BLOCK_TOKENS, OVERHEAD_GIB
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch, Scenario, Workload
from service.exclusion import engine_start
from tests.engine.conftest import SEED
from tests.engine.real_server import MODEL, ROOT

CASES = 300
WEIGHT_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model's caches, the context that the engine reserves, a token budget, and memory around what that takes."""

    caches: tuple[CacheLayers, ...]
    context: int
    budget: int
    blocks_more: float

    @property
    def demand(self) -> Demand:
        model = _model(self.caches)
        return Demand(
            weight_bytes=WEIGHT_BYTES,
            layout=layout_of(model),
            context_tokens=self.context,
            request_tokens=self.context,
            shared_tokens=0,
            rule=memory_rule("0.28.0"),
        )

    @property
    def memory_gib(self) -> float:
        """A little more or less than one sequence takes, and never within rounding of it."""
        full = self.demand.layout.blocks_to_start(self.context, batched_tokens=self.budget, prefix_caching=True)
        return OVERHEAD_GIB + (WEIGHT_BYTES + (full + self.blocks_more) * self.demand.layout.block_bytes) / GIB


# Whatever else it is: only its caches are looked at.
SMALL = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "vocab_size": 150_000,
    "max_position_embeddings": 1_000_000,
    "tie_word_embeddings": False,
}


def _model(caches: tuple[CacheLayers, ...]) -> ModelArch:
    small = parse_config(SMALL)
    assert small.architecture is not None
    kind: Kind = "sliding" if any(cache.window for cache in caches) else "mla"
    read = replace(small.architecture, kind=kind, caches=caches)
    return replace(small, kv_bytes_per_token=read.kv_bytes_per_token, architecture=read)


def _cases() -> list[Case]:
    draw = random.Random(SEED)
    cases = []
    for _ in range(CASES):
        page = draw.choice((64, 128))
        kinds: list[CacheKind] = draw.choices(("full", "sliding", "chunked"), k=draw.randint(1, 3))
        if draw.random() < 0.1:
            kinds = ["latent"]
        caches = {}
        for kind in kinds:
            window = draw.choice((32, 100, 128, 1000)) if kind in ("sliding", "chunked") else None
            caches[kind, window] = CacheLayers(
                kind=kind,
                layers=draw.randint(1, 12),
                kv_heads=1 if kind == "latent" else draw.choice((1, 2, 3, 4)),
                values=2 * page,
                window=window,
            )
        cases.append(
            Case(
                caches=tuple(caches.values()),
                context=draw.randint(1, 5000),
                budget=draw.choice((16, 64, 500, 2048)),
                blocks_more=draw.choice((-1.5, -0.5, 0.5, 7.5, 1000.5)),
            )
        )
    return cases


def _specs(caches: tuple[CacheLayers, ...]) -> dict[str, Any]:
    """The layers as the engine describes them, interleaved as models interleave them."""
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    specs: dict[str, Any] = {}
    for layer in range(max(cache.layers for cache in caches)):
        for number, cache in enumerate(caches):
            if layer >= cache.layers:
                continue
            common: dict[str, Any] = {
                "block_size": KV_BLOCK_TOKENS,
                "num_kv_heads": cache.kv_heads,
                "head_size": cache.values // 2,
                "dtype": torch.bfloat16,
                # A backend that can read pages with a gap between them; others know only pages that divide each other.
                "indexes_kv_by_block_stride": True,
            }
            name = f"layer.{layer}.{number}"
            if cache.kind == "sliding":
                specs[name] = SlidingWindowSpec(**common, sliding_window=cache.window)
            elif cache.kind == "chunked":
                specs[name] = ChunkedLocalAttentionSpec(**common, attention_chunk_size=cache.window)
            elif cache.kind == "latent":
                specs[name] = MLAAttentionSpec(**{**common, "head_size": cache.values})
            else:
                specs[name] = FullAttentionSpec(**common)
    return specs


def _config(case: Case) -> Any:
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=case.budget, asynchronous=True)
    config = vllm_config(limits, blocks=1, caching=True, max_model_len=case.context)
    config.cache_config.num_gpu_blocks_override = None
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    return config


def _engines_tokens(case: Case, kv_cache_bytes: int) -> int | None:
    """The KV cache's size in tokens as the engine logs it; None where it refuses to start."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs

    config = _config(case)
    try:
        [cache] = get_kv_cache_configs(config, [_specs(case.caches)], [kv_cache_bytes])
    except ValueError:
        return None
    return int(get_kv_cache_capacity(config, cache)[0])


def test_the_engine_starts_with_what_is_called_enough_and_counts_the_same_tokens() -> None:
    started = 0
    for case in _cases():
        candidate = Candidate(
            max_num_seqs=8,
            max_num_batched_tokens=case.budget,
            gpu_memory_utilization=1.0,
            enable_prefix_caching=True,
        )
        ours = case.demand.capacity(candidate, memory_gib=case.memory_gib)
        theirs = _engines_tokens(case, round(ours.kv_cache_gib * GIB))
        assert ours.full_length_request_fits is (theirs is not None), case
        if theirs is not None:
            assert theirs == pytest.approx(ours.kv_cache_tokens, abs=1), case
            started += 1
    # Both sides of the border were seen.
    assert CASES / 5 < started < CASES * 4 / 5


def test_the_engine_refuses_the_token_budgets_that_are_called_too_few() -> None:
    from vllm.config import SchedulerConfig

    draw = random.Random(SEED)
    refused = 0
    for _ in range(CASES):
        seqs, tokens, context = (draw.choice((1, 15, 16, 64, 100)) for _ in range(3))
        chunked = draw.random() < 0.5
        candidate = Candidate(
            max_num_seqs=seqs, max_num_batched_tokens=tokens, gpu_memory_utilization=0.9, enable_prefix_caching=True
        )
        ours = too_few_batched_tokens(candidate, context_tokens=context, chunked_prefill=chunked)
        try:
            SchedulerConfig(
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                max_model_len=context,
                enable_chunked_prefill=chunked,
                is_encoder_decoder=False,
            )
            theirs = False
        except ValueError:
            theirs = True
        assert ours is theirs, (candidate, context, chunked)
        refused += theirs
    assert CASES / 5 < refused < CASES * 4 / 5


class Device:
    """A platform with one GPU, as far as the engine asks for its defaults."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def get_device_total_memory(self) -> int:
        return int(self._gpu.memory_gib * GIB)

    def get_device_name(self) -> str:
        return self._gpu.name.replace("-", " ")

    def is_tpu(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        return False


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_engine_defaults_of_a_gpu_are_the_engines_own(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    monkeypatch.setattr(arg_utils, "current_platform", Device(gpu))
    tokens, seqs = arg_utils.EngineArgs.get_batch_defaults(world_size=1)
    server = UsageContext.OPENAI_API_SERVER
    ours = gpu.engine_default
    assert (ours.max_num_batched_tokens, ours.max_num_seqs) == (tokens[server], seqs[server])
    assert ours.gpu_memory_utilization == arg_utils.EngineArgs.gpu_memory_utilization


@pytest.mark.parametrize("gpu", ["B200", "H100", "A10"])
@pytest.mark.parametrize("seqs", [None, 2, 512])
@pytest.mark.parametrize("tokens", [None, 300, 8192])
@pytest.mark.parametrize("context", [700, 4096, 131_072])
@pytest.mark.parametrize("chunked", [True, False])
def test_what_is_left_open_is_filled_in_as_the_engine_does(
    gpu: str, seqs: int | None, tokens: int | None, context: int, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    device = gpu_by_name(gpu)
    monkeypatch.setattr(arg_utils, "current_platform", Device(device))
    # A folder, because a name would be looked up elsewhere.
    engine: Any = arg_utils.EngineArgs(
        model=str(ROOT / MODEL), max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_chunked_prefill=chunked
    )
    engine._set_default_max_num_seqs_and_batched_tokens_args(
        UsageContext.OPENAI_API_SERVER,
        SimpleNamespace(max_model_len=context, is_multimodal_model=False),
        SimpleNamespace(use_batched_dp_moe=False),
    )
    fixed = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    model = ModelArch(weight_gb=1.0, num_layers=1, hidden_size=64, kv_bytes_per_token=256, max_model_len=context)
    ours = engine_start(
        device,
        {name: value for name, value in fixed.items() if value is not None},
        Scenario(
            model=model,
            workload=Workload(prompt_tokens=512, max_new_tokens=64, shared_prefix_ratio=0.0, concurrency=1),
        ),
        chunked_prefill=chunked,
    )
    assert (ours.max_num_seqs, ours.max_num_batched_tokens) == (engine.max_num_seqs, engine.max_num_batched_tokens)


def test_no_candidate_is_one_that_the_engine_refuses_by_its_token_budget() -> None:
    assert not any(too_few_batched_tokens(one, context_tokens=10**6, chunked_prefill=True) for one in CANDIDATES)
