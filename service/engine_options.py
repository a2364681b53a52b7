"""The options of `vllm serve` 0.28.0 by what follows each of them: what its parser must know to read a command line.

Read from the parser itself (vllm.entrypoints.openai.cli_args, Apache-2.0); `make test-engine` compares every entry.
"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Nothing follows; --no-NAME turns it off.
SWITCHES = _names(
    """
trust-request-chat-template return-tokens-as-token-ids enable-auto-tool-choice exclude-tools-when-tool-choice-none
enable-prompt-tokens-details enable-per-request-metrics enable-server-load-tracking enable-force-include-usage
enable-tokenizer-info-endpoint enable-log-outputs enable-log-deltas cohere-is-reasoning-model log-error-stack
tokens-only disable-uvicorn-access-log allow-credentials enable-ssl-refresh enable-request-id-headers
disable-fastapi-docs enable-offline-docs enable-flash-late-interaction trust-remote-code
allow-deprecated-quantization enforce-eager enable-return-routed-experts return-sampling-mask use-fp64-gumbel
disable-sliding-window disable-cascade-attn skip-tokenizer-init enable-prompt-embeds enable-sleep-mode
enable-cumem-allocator use-tqdm-on-load enable-mamba-cache-stochastic-rounding numa-bind data-parallel-hybrid-lb
data-parallel-external-lb enable-expert-parallel enable-ep-weight-filter enable-dbo enable-elastic-ep
disable-nccl-for-dp-synchronization enable-eplb ray-workers-use-nsight disable-custom-all-reduce
enable-fault-tolerance enable-prefix-caching kv-sharing-fast-prefill use-replayssm language-model-only
enable-mm-embeds mm-encoder-only interleave-mm-strings skip-mm-profiling mm-device-do-normalize enable-lora
enable-tower-connector-lora fully-sharded-loras specialize-active-lora enable-mixed-moe-lora-format
enable-moe-shared-loras kv-cache-metrics cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics
enable-logging-iteration-details jit-monitor-verbose enable-chunked-prefill disable-chunked-mm-input
scheduler-reserve-full-isl disable-hybrid-kv-cache-manager async-scheduling enable-flashinfer-autotune
enable-bf16x3-router-gemm fail-on-environ-validation enable-log-requests
"""
)
# Nothing follows.
FLAGS = _names(
    """
headless grpc data-parallel-multi-port-external-lb disable-log-stats aggregate-engine-logging
"""
)
# A whole number.
INTEGERS = _names(
    """
api-server-count port data-parallel-supervisor-port dp-supervisor-probe-failure-threshold ssl-cert-reqs
h11-max-incomplete-event-size h11-max-header-count seed max-logprobs renderer-num-workers
safetensors-prefetch-num-threads mamba-cache-philox-rounds pipeline-parallel-size master-port nnodes node-rank
tensor-parallel-size decode-context-parallel-size dcp-kv-cache-interleave-size cp-kv-cache-interleave-size
prefill-context-parallel-size data-parallel-size data-parallel-rank data-parallel-start-rank
data-parallel-size-local data-parallel-rpc-port ubatch-size dbo-decode-token-threshold dbo-prefill-token-threshold
block-size replayssm-buffer-len offload-group-size offload-num-in-group offload-prefetch-step
mm-shm-cache-max-object-size-mb max-loras max-lora-rank max-num-seqs long-prefill-token-threshold
prefill-schedule-interval stream-interval max-cudagraph-capture-size spec-tokens shutdown-timeout
"""
)
# A whole number, perhaps with a unit: 8k is 8,000 and 8K is 8,192.
SIZES = _names(
    """
safetensors-prefetch-block-size max-num-batched-tokens
"""
)
# The same, or -1 or `auto`.
AUTOMATIC_SIZES = _names(
    """
max-model-len
"""
)
# A number.
FLOATS = _names(
    """
dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s gpu-memory-utilization cpu-offload-gb
mm-processor-cache-gb mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb kv-cache-metrics-sample watermark
"""
)
# One word, whatever it says.
TEXTS = _names(
    """
config chat-template chat-template-content-format default-chat-template-kwargs response-role tool-call-parser
tool-parser-plugin tool-server log-config-file max-log-len cohere-format fingerprint-mode fingerprint-value host uds
uvicorn-log-level disable-access-log-for-endpoints allowed-origins allowed-methods allowed-headers ssl-keyfile
ssl-certfile ssl-ca-certs ssl-ciphers root-path model runner convert tokenizer tokenizer-mode dtype hf-config-path
allowed-local-media-path revision code-revision tokenizer-revision quantization quantization-config logprobs-mode
config-format hf-overrides model-class-overrides pooler-config generation-config override-generation-config
model-impl io-processor-plugin load-format download-dir safetensors-load-strategy model-loader-extra-config
pt-load-map-location attention-backend mamba-backend mamba-ssu-algorithm reasoning-parser reasoning-parser-plugin
distributed-executor-backend master-addr distributed-timeout-seconds cpu-distributed-timeout-seconds device-ids
dcp-comm-backend data-parallel-address data-parallel-backend all2all-backend eplb-config expert-placement-strategy
max-parallel-loading-workers worker-cls worker-extension-cls fault-tolerance-config kv-cache-memory-bytes
kv-cache-dtype num-gpu-blocks-override prefix-caching-hash-algo mamba-cache-dtype mamba-ssm-cache-dtype
mamba-block-size prefix-match-unit mamba-cache-mode kv-offloading-size kv-offloading-backend offload-backend
limit-mm-per-prompt media-io-kwargs mm-processor-kwargs mm-processor-cache-type mm-hasher-algorithm
mm-encoder-tp-mode mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
mm-encoder-fp8-scale-save-path video-pruning-rate video-pruning-method mm-tensor-ipc mm-processor-device lora-dtype
max-cpu-loras default-mm-loras show-hidden-metrics-for-version otlp-traces-endpoint jit-monitor-mode
max-num-scheduled-tokens scheduling-policy scheduler-cls ir-op-priority moe-backend linear-backend
speculative-config spec-method spec-model diffusion-config kv-transfer-config kv-events-config ec-transfer-config
ec-manager-config compilation-config attention-config reasoning-config kernel-config additional-config
structured-outputs-config profiler-config optimization-level performance-mode weight-transfer-config
gdn-prefill-backend kda-prefill-backend
"""
)
# One word or none.
OPTIONAL_TEXTS = _names(
    """
hf-token
"""
)
# One word or more.
LISTS = _names(
    """
lora-modules api-key allowed-media-domains served-model-name logits-processors ignore-patterns numa-bind-nodes
numa-bind-cpus kv-cache-dtype-skip-layers cpu-offload-params offload-params lora-target-modules
collect-detailed-traces cudagraph-capture-sizes
"""
)
# One word; each occurrence adds one.
APPENDED = _names(
    """
middleware
"""
)
SHORT_FORMS = {
    "-asc": "api-server-count",
    "-q": "quantization",
    "-pp": "pipeline-parallel-size",
    "-n": "nnodes",
    "-r": "node-rank",
    "-tp": "tensor-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-ep": "enable-expert-parallel",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
}
