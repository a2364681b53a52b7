"""A layer profile: what each layer of a model takes on one GPU, by the sizes of a step.

A folder in the form of LLMServingSim's `profiler/perf`: meta.yaml (model, GPU, data type), dense.csv (layer, tokens),
per_sequence.csv (layer, sequences) and attention.csv (prefill_chunk, kv_prefill, n_decode, kv_decode), in microseconds.
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from service.domain.errors import ArtefactError, InvalidInputError

# How often a pass through the model has each layer: once, or once or twice in every decoder layer.
ONCE = ("embedding", "final_layernorm")
PER_LAYER: Mapping[str, int] = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
PER_SEQUENCE = ("lm_head", "sampler")
ATTENTION_SIZES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")

# One attention time by its four sizes, in microseconds.
Attention = Mapping[tuple[int, int, int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Times of one layer each. layer_us[name] and sequence_us[name]: {size: microseconds}."""

    name: str
    model: str
    gpu: str
    dtype: str
    tensor_parallel: tuple[int, ...]
    engine_version: str
    layer_us: Mapping[str, Mapping[int, float]]
    sequence_us: Mapping[str, Mapping[int, float]]
    attention_us: Attention

    def check_fits(self, *, model: str, gpu: str, dtype: str, tensor_parallel: int) -> None:
        """ArtefactError if a run of that model on that GPU is something else than what was profiled."""
        for what, of_run, of_profile in (
            ("model", model, self.model),
            ("GPU", gpu, self.gpu),
            ("data type", dtype, self.dtype),
        ):
            if of_run != of_profile:
                raise ArtefactError(
                    f"the run is of {what} {of_run!r}, the profile {self.name} of {of_profile!r}; "
                    "give the profile of that run's model, GPU and data type"
                )
        if tensor_parallel not in self.tensor_parallel or tensor_parallel != 1:
            raise ArtefactError(
                f"the run is on {tensor_parallel} GPUs, the profile {self.name} on {self.tensor_parallel}; only runs "
                "on one GPU can be compared: communication between GPUs is not simulated"
            )


def read_layer_profile(folder: Path) -> LayerProfile:
    """The profile in a folder or in its tp1. ArtefactError or InvalidInputError names file, line, field and value."""
    meta = _meta(folder / "meta.yaml")
    tables = folder / "tp1" if (folder / "tp1").is_dir() else folder
    try:
        degrees = tuple(int(degree) for degree in meta["tp_degrees"])  # type: ignore[attr-defined] # checked by int()
        profile = LayerProfile(
            name=folder.name,
            model=str(meta["model"]),
            gpu=str(meta["hardware"]),
            dtype=str(meta["variant"]),
            tensor_parallel=degrees,
            engine_version=str(meta["vllm_version"]),
            layer_us=_by_layer(tables / "dense.csv", size="tokens", needed=(*ONCE, *PER_LAYER)),
            sequence_us=_by_layer(tables / "per_sequence.csv", size="sequences", needed=PER_SEQUENCE),
            attention_us=_attention(tables / "attention.csv"),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise ArtefactError(f"{folder / 'meta.yaml'} lacks {error}; give the folder of a layer profile") from error
    return profile


def _meta(path: Path) -> Mapping[str, object]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); give the folder of a layer profile") from error
    if not isinstance(content, dict):
        raise ArtefactError(f"{path} holds no mapping; give the folder of a layer profile")
    return content


def _by_layer(path: Path, *, size: str, needed: tuple[str, ...]) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, float]] = defaultdict(dict)
    for line, row in _rows(path, ("layer", size, "time_us")):
        times[row["layer"]][_whole(path, line, row, size, least=1)] = _time(path, line, row)
    absent = [name for name in needed if name not in times]
    if absent:
        raise ArtefactError(f"{path} has no times of {', '.join(absent)}; profile the whole model")
    unknown = [name for name in times if name not in needed]
    if unknown:
        raise ArtefactError(
            f"{path} has times of {', '.join(unknown)}, and it is not known how often a model has them; "
            f"known: {', '.join(needed)}"
        )
    return dict(times)


def _attention(path: Path) -> dict[tuple[int, int, int, int], float]:
    times = {}
    for line, row in _rows(path, (*ATTENTION_SIZES, "time_us")):
        chunk, past, decodes, context = (_whole(path, line, row, name, least=0) for name in ATTENTION_SIZES)
        times[chunk, past, decodes, context] = _time(path, line, row)
    if not any(decodes and not chunk for chunk, _, decodes, _ in times):
        raise ArtefactError(f"{path} has no row of decodes alone; profile steps without prompts")
    if not any(chunk and not decodes for chunk, _, decodes, _ in times):
        raise ArtefactError(f"{path} has no row of a prompt alone; profile steps without decodes")
    return times


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        rows = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); give the folder of a layer profile") from error
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise ArtefactError(f"{path}:1: no column {', '.join(missing)}; it needs {', '.join(columns)}")
    return rows


def _whole(path: Path, line: int, row: Mapping[str, str], name: str, *, least: int) -> int:
    remedy = f"a whole number of at least {least} is needed; correct or remove the line"
    return int(_read(path, line, row, name, int, lambda value: value >= least, remedy))


def _time(path: Path, line: int, row: Mapping[str, str]) -> float:
    remedy = "a time above 0 in microseconds is needed; correct or remove the line"
    return _read(path, line, row, "time_us", float, lambda value: 0 < value < math.inf, remedy)


def _read(
    path: Path,
    line: int,
    row: Mapping[str, str],
    name: str,
    parse: Callable[[str], float],
    fits: Callable[[float], bool],
    remedy: str,
) -> float:
    text = row.get(name)
    try:
        value = parse(text or "")
        if fits(value):
            return value
    except ValueError:
        pass
    raise InvalidInputError(path=f"{path}:{line}: {name}", value=text, remedy=remedy)
