"""vLLM 0.28's own scheduler on the virtual clock, without a model. The only module that imports vllm.

It stands where bench_runner.scheduler stands: the same slots, the same Step, so that what the fast simulator schedules
can be compared with what the engine would, step by step. Runs in the engine's environment only.
"""

import itertools
import json
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from bench_runner.kv_cache import BLOCK
from bench_runner.scheduler import Limits, Requests, Step

# Any dense decoder will do: the scheduler asks for its context and nothing else.
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 1_000_000,
    "torch_dtype": "bfloat16",
}
_HASH = "sha256"
# More content numbers than any simulation uses.
_CONTENTS = 2**32


class ReferenceScheduler:
    """One engine's scheduler, KV cache manager and block hashing."""

    def __init__(self, *, requests: Requests, limits: Limits, blocks: int, caching: bool, max_model_len: int) -> None:
        self._slots = requests
        self._config = vllm_config(limits, blocks=blocks, caching=caching, max_model_len=max_model_len)
        hash_function = get_hash_fn_by_name(_HASH)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK, hash_function) if caching else None
        scheduler = AsyncScheduler if limits.asynchronous else Scheduler
        self._scheduler = scheduler(
            vllm_config=self._config,
            kv_cache_config=_kv_cache(blocks),
            structured_output_manager=StructuredOutputManager(self._config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=False,
        )
        self._serial = itertools.count(1)
        self._outputs: deque[Any] = deque()

    def add_request(self, slot: int) -> None:
        """A new request of the slot's lengths and contents."""
        serial, output = next(self._serial), int(self._slots.output[slot])
        tokens = [self._token(slot, serial, position) for position in range(int(self._slots.prompt[slot]))]
        self._scheduler.add_request(
            Request(
                request_id=f"{slot}-{serial}",
                prompt_token_ids=tokens,
                sampling_params=SamplingParams(max_tokens=output, min_tokens=output, ignore_eos=True, temperature=0.0),
                pooling_params=None,
                arrival_time=float(serial),
                block_hasher=self._hasher,
            )
        )

    def schedule(self, step: Step) -> int:
        """Fills `step` and returns its tokens."""
        output = self._scheduler.schedule()
        step.size[0] = len(output.num_scheduled_tokens)
        samples = []
        for row, (name, tokens) in enumerate(output.num_scheduled_tokens.items()):
            request = self._scheduler.requests[name]
            step.slot[row] = int(name.partition("-")[0])
            step.tokens[row] = tokens
            step.context[row] = request.num_computed_tokens - tokens
            step.samples[row] = not request.is_prefill_chunk
            samples.append(not request.is_prefill_chunk)
        if output.total_num_scheduled_tokens:
            self._outputs.append((output, samples))
        return int(output.total_num_scheduled_tokens)

    def update(self, emitted: NDArray[np.int64], finished: NDArray[np.bool_]) -> int:
        """Takes the oldest step's tokens: fills emitted and finished, returns how many."""
        output, samples = self._outputs.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [[self._next_token(name)] if takes else [] for name, takes in zip(names, samples, strict=True)]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        count = 0
        for engine_outputs in self._scheduler.update_from_output(output, result).values():
            for one in engine_outputs.outputs:
                if one.new_token_ids:
                    emitted[count] = int(one.request_id.partition("-")[0])
                    finished[count] = one.finish_reason is not None
                    count += 1
        return count

    def _token(self, slot: int, serial: int, position: int) -> int:
        """A token id that is equal for two requests where their blocks have equal contents, and only there."""
        block, offset = divmod(position, BLOCK)
        content = int(self._slots.contents[slot, block])
        own = serial if block >= self._slots.own_from[slot] else 0
        return (own * _CONTENTS + content) * BLOCK + offset

    def _next_token(self, name: str) -> int:
        slot, _, serial = name.partition("-")
        return self._token(int(slot), int(serial), self._scheduler.requests[name].num_tokens)


def vllm_config(limits: Limits, *, blocks: int, caching: bool, max_model_len: int) -> VllmConfig:
    """The engine's configuration, with GPU behaviour where the CPU platform has its own."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG))
        model = ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=max_model_len, seed=0
        )
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_model_len=max_model_len,
                is_encoder_decoder=False,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                enable_chunked_prefill=True,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caching, prefix_caching_hash_algo=_HASH),
        )
    # The CPU platform forces synchronous scheduling; on a GPU the engine decides.
    config.scheduler_config.async_scheduling = limits.asynchronous
    config.cache_config.num_gpu_blocks = blocks
    if config.cache_config.block_size != BLOCK:
        raise RuntimeError(f"the engine changed the block size to {config.cache_config.block_size}")
    return config


def _kv_cache(blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
