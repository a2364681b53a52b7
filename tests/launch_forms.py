"""What each form of an answer becomes on its way to vLLM: the words of its command line, as the target writes them."""

import shlex
from typing import Any

import yaml

Words = list[str]


def command_words(text: str) -> Words:
    """Behind `vllm serve`, the model included."""
    vllm, serve, *words = shlex.split(text)
    assert (vllm, serve) == ("vllm", "serve")
    return words


def file_words(text: str) -> Words:
    """What `vllm serve --config FILE` makes of a file of single values; what is false is passed over."""
    words = []
    for name, value in yaml.safe_load(text).items():
        if value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def chart_words(values: dict[str, Any]) -> Words:
    """As production-stack's chart has them (helm/templates/deployment-vllm-multi.yaml), in its order.

    What Helm reads as a number is a double, which is written with an exponent from a million on.
    """
    config = dict(values["vllmConfig"])
    words = ["--enable-prefix-caching" if config.pop("enablePrefixCaching", False) else "--no-enable-prefix-caching"]
    for key, option in (("maxNumSeqs", "--max-num-seqs"), ("gpuMemoryUtilization", "--gpu_memory_utilization")):
        if key in config:
            words += [option, f"{float(config.pop(key)):g}"]
    words += config.pop("extraArgs", [])
    assert config == {}, f"the chart has no place for {list(config)}"
    return words


def predictor_words(service: dict[str, Any]) -> Words:
    """Behind those of KServe's runtime."""
    words: Words = service["spec"]["predictor"]["model"]["args"]
    return words
