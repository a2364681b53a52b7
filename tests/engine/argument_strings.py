"""Strings that users write into extra_args: by hand for each thing vLLM's parser does, and drawn at random."""

import random
import shlex

HAND_WRITTEN: tuple[str, ...] = (
    # Nothing.
    "",
    "   ",
    "\n\t",
    # Each of the four, in its plain forms.
    "--max-num-seqs 64",
    "--max-num-seqs=64",
    "--max-num-batched-tokens 4096",
    "--max-num-batched-tokens=4k",
    "--max-num-batched-tokens 4K",
    "--max-num-batched-tokens 2.5k",
    "--gpu-memory-utilization 0.8",
    "--gpu-memory-utilization=.85",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    # Underscores, also mixed.
    "--max_num_seqs 128",
    "--max_num-seqs=128",
    "--no_enable_prefix_caching",
    "--gpu_memory_utilization=0.45",
    # Prefixes that name one option, and some that do not.
    "--max-num-s 32",
    "--max-num-b=2048",
    "--gpu-mem 0.85",
    "--gpu 0.85",
    "--enable-prefix",
    "--no-enable-pref",
    "--max-num 3",
    "--enable-p",
    "--max_num_b 2048 --gpu_m .85",
    # Short forms.
    "-tp 1",
    "-tp=1",
    "-tp1",
    "-tp 2",
    "-pp 1 -dp 1",
    "-q fp8",
    "-O3",
    "-O 2",
    "-O=1",
    "-O",
    "-cc '{\"level\": 3}'",
    "-ep",
    "-n 1 -r 0",
    "-t 1",
    # Several, and duplicates: the last wins.
    "--max-num-seqs 32 --max-num-seqs 512",
    "--max-num-seqs=32 --max_num_seqs=128 --max-num-s 512",
    "--enable-prefix-caching --no-enable-prefix-caching",
    "--no-enable-prefix-caching --enable-prefix-caching",
    "--max-num-seqs 512 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.85 --enable-prefix-caching",
    # Quotes and escapes.
    "--max-num-seqs '64'",
    '--max-num-seqs="64"',
    "--max-num-seqs \\\n 64",
    "--chat-template 'a file with spaces.jinja'",
    '--chat-template="it\'s here"',
    "--served-model-name 'a b' c",
    "--max-num-seqs ' 64 '",
    "'--max-num-seqs=64'",
    '"--max-num-seqs" 64',
    "--max-num-seqs '64",
    'it"s',
    "--chat-template '--max-num-seqs=4'",
    "--chat-template=--max-num-seqs=4",
    # JSON and dotted values.
    "--limit-mm-per-prompt '{\"image\": 2}'",
    "--compilation-config.level 3",
    "--compilation-config.pass_config.fuse_norm_quant true --max-num-seqs 64",
    "--compilation_config.cudagraph_capture_sizes+ 1,2,4",
    "--hf-overrides.max_position_embeddings=4k",
    "--hf-overrides '{\"rope_theta\": 1000000}' --hf-overrides.x.y 1",
    "--hf-overrides.a",
    "--max-num-seqs.x 3",
    "--hf-overrides.a -0.5",
    "--watermark -0.5",
    "--kv-transfer-config.kv_connector X --no-enable-prefix-caching",
    # Values that look like options, and numbers.
    "--seed -1",
    "--seed=-1",
    "--max-model-len auto",
    "--max-model-len -1",
    "--max-model-len 8k --max-num-seqs 32",
    "--max-num-seqs 1_000",
    "--max-num-seqs 0x40",
    "--max-num-seqs 64.0",
    "--max-num-seqs",
    "--max-num-seqs=",
    "--gpu-memory-utilization nan",
    "--gpu-memory-utilization 1e-1",
    "--enable-prefix-caching=true",
    "--enable-prefix-caching true",
    # Files, help, the end of options, words on their own.
    "--config engine.yaml",
    "--config=engine.yaml",
    "--conf engine.yaml --max-num-seqs 3",
    "--max-num-seqs 3 --config",
    "--help",
    "--help=all",
    "-- --max-num-seqs 3",
    "Qwen/Qwen3-8B",
    "--max-num-seqs 64 extra",
    "sh -c 'vllm serve'",
    "$EXTRA_ARGS",
    "--max-num-seqs $(SEQS)",
    # Unknown ones, and what vLLM dropped or never had.
    "--unknown-flag 3",
    "--unknown_flag=3 --max-num-seqs 64",
    "--num-scheduler-steps 8",
    "-z",
    "--enable-chunked-prefil",
    "--no-enable-chunked-prefill",
    "--no-max-num-seqs",
    # Lists and options that may stand alone.
    "--served-model-name a b c --max-num-seqs 64",
    "--cudagraph-capture-sizes 1 2 4 --gpu-memory-utilization 0.45",
    "--middleware a.b --middleware c.d",
    "--hf-token --max-num-seqs 64",
    "--trust-remote-code --dtype bfloat16 --enforce-eager",
    "--dtype nonsense --max-num-seqs 64",
    "--kv-cache-dtype fp8",
    "--performance-mode throughput",
    '--speculative-config \'{"method": "ngram"}\'',
    "=",
    "-",
    "--",
    "--=3",
    "--max-num-seqs=64=3",
)

_PIECES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("max-num-seqs", ("32", "128", "512", "64", "x", "1_0")),
    ("max-num-batched-tokens", ("2048", "8192", "2k", "8K", "1.5k", "1.5K", "many")),
    ("gpu-memory-utilization", ("0.45", "0.85", ".9", "0.8500", "85%")),
    ("max-model-len", ("4096", "8k", "auto", "-1")),
    ("seed", ("7", "-1")),
    ("cohere-format", ("cmd3", "with space", "it's", "-x", "")),
    ("served-model-name", ("m", "a/b")),
    ("tensor-parallel-size", ("1", "2")),
    ("compilation-config.level", ("3", "x")),
    ("hf-overrides.a_b.c", ("1", "2k", "true", "text")),
    ("hf-overrides", ('{"a": 1}',)),
    ("stream-interval", ("2",)),
    ("unheard-of", ("1",)),
)
_SWITCHES = ("enable-prefix-caching", "enforce-eager", "enable-chunked-prefill", "enable-lora", "trust-remote-code")
_SHORTS = ("-tp 1", "-pp=1", "-O2", "-O 3", "-ep", "-q awq", "-cc '{}'", "-dp1")


def generated(seed: int, count: int) -> list[str]:
    """Command lines of up to six arguments, most of them valid."""
    draw = random.Random(seed)
    return [" ".join(_argument(draw) for _ in range(draw.randint(1, 6))) for _ in range(count)]


def _argument(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.15:
        return draw.choice(_SHORTS)
    if kind < 0.4:
        return f"--{draw.choice(('', '', 'no-'))}{_spelled(draw, draw.choice(_SWITCHES))}"
    name, values = draw.choice(_PIECES if draw.random() < 0.3 else _PIECES[:3])
    # The first value is a good one; half of the time another is tried.
    value = shlex.quote(values[0] if draw.random() < 0.5 else draw.choice(values))
    return f"--{_spelled(draw, name)}{draw.choice((' ', '=', '  '))}{value}"


def _spelled(draw: random.Random, name: str) -> str:
    """With underscores or cut short now and then."""
    if draw.random() < 0.3:
        name = name.replace("-", "_")
    if "." not in name and draw.random() < 0.25:
        name = name[: draw.randint(max(4, len(name) - 8), len(name))]
    return name
