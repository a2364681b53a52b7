"""Lists on disk: a chunk file per portion while a set is being simulated, one Parquet file when it is complete."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench_runner.files import read_json, write_atomically
from bench_runner.list_run import configurations
from bench_runner.list_sets import ListSet, definition_sha256
from service.domain.errors import ArtefactError

LISTS_SCHEMA_VERSION = 1
CHUNK_LISTS = 100
CONFIGURATIONS = 16
EVIDENCE = "simulated"


def _per_configuration(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind, CONFIGURATIONS)


SCHEMA = pa.schema(
    [
        ("scenario", pa.int32()),
        ("draw", pa.int16()),
        ("stratum", pa.string()),
        ("model", pa.string()),
        ("family", pa.string()),
        ("weight_gb", pa.float64()),
        ("num_layers", pa.int32()),
        ("hidden_size", pa.int32()),
        ("kv_bytes_per_token", pa.int64()),
        ("max_model_len", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("max_new_tokens", pa.int64()),
        ("shared_prefix_ratio", pa.float64()),
        ("concurrency", pa.int64()),
        ("kind", pa.string()),
        ("true_prompt_tokens", pa.float32()),
        ("true_output_cap", pa.int64()),
        ("true_prefix_ratio", pa.float32()),
        ("true_clients", pa.int64()),
        ("think_ms", pa.float32()),
        ("window_s", pa.float32()),
        ("runs", pa.int16()),
        ("throughput_tps", _per_configuration(pa.float32())),
        ("ttft_p95_ms", _per_configuration(pa.float32())),
        ("tpot_p95_ms", _per_configuration(pa.float32())),
        ("status", _per_configuration(pa.int8())),
    ]
)
ARRAYS = ("throughput_tps", "ttft_p95_ms", "tpot_p95_ms", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListsFolder:
    """Where the chunks and the finished file of one set lie. It belongs to one definition and refuses another."""

    root: Path
    list_set: ListSet

    @property
    def merged(self) -> Path:
        """The finished file."""
        return self.root / f"{self.list_set.name}.parquet"

    def chunk(self, number: int) -> Path:
        """The file of a portion."""
        return self.root / self.list_set.name / f"chunk-{number:05d}.parquet"

    def prepare(self) -> None:
        """Makes the folder; ArtefactError if chunks of another definition lie in it."""
        stamp = self.root / self.list_set.name / "definition.json"
        content = b'{"definition_sha256": "%s"}\n' % definition_sha256().encode()
        if stamp.exists() and read_json(stamp).get("definition_sha256") != definition_sha256():
            raise ArtefactError(f"{stamp.parent} holds lists of another definition; give another folder")
        if not stamp.exists():
            write_atomically(stamp, content)

    def finished(self) -> bool:
        """Whether the finished file is there; ArtefactError if it is of another definition."""
        if not self.merged.exists():
            return False
        found = (pq.read_schema(self.merged).metadata or {}).get(b"definition_sha256", b"").decode()
        if found != definition_sha256():
            raise ArtefactError(f"{self.merged} is of definition {found}, this is {definition_sha256()}; move it away")
        return True

    def portions(self) -> list[list[tuple[int, int]]]:
        """(scenario, draw) of each chunk."""
        items = self.list_set.items()
        return [items[start : start + CHUNK_LISTS] for start in range(0, len(items), CHUNK_LISTS)]

    def missing(self) -> list[int]:
        """Chunks that are not on disk yet."""
        return [number for number in range(len(self.portions())) if not self.chunk(number).exists()]

    def write_chunk(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """A whole chunk or none of it, on disk when this returns."""
        write_atomically(self.chunk(number), to_parquet(pa.Table.from_pylist(list(rows), schema=SCHEMA)))

    def merge(self) -> int:
        """Writes the finished file from all chunks, returns its lists; ArtefactError if one is missing or foreign."""
        tables = [pq.read_table(self.chunk(number)) for number in range(len(self.portions()))]
        table = pa.concat_tables(tables).cast(SCHEMA).replace_schema_metadata(self.metadata())
        found = list(zip(table["scenario"].to_pylist(), table["draw"].to_pylist(), strict=True))
        if found != self.list_set.items():
            raise ArtefactError(f"{self.merged.stem}: its chunks are not the set's lists; delete the folder, run again")
        write_atomically(self.merged, to_parquet(table))
        return len(found)

    def metadata(self) -> dict[str, str]:
        """What a reader verifies."""
        return {
            "schema_version": str(LISTS_SCHEMA_VERSION),
            "set": self.list_set.name,
            "evidence": EVIDENCE,
            "definition_sha256": definition_sha256(),
            "config_ids": ",".join(candidate.config_id for candidate in configurations(self.list_set.gpu)),
            "draws": str(self.list_set.draws),
            "gpu": self.list_set.gpu,
        }


def to_parquet(table: pa.Table) -> bytes:
    """Equal tables, equal bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def read_columns(path: Path) -> dict[str, Any]:
    """Columns of a lists file as arrays, [lists] or [lists, 16]; ArtefactError if it cannot be read."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtefactError(f"{path} cannot be read as lists: {error}; simulate its set first") from error
    width = CONFIGURATIONS
    return {
        name: (
            np.asarray(table[name].combine_chunks().flatten()).reshape(-1, width)
            if name in ARRAYS
            else np.asarray(table[name].to_numpy(zero_copy_only=False))
        )
        for name in table.column_names
    }
