"""`python -m service inspect`: what config.json files say about memory, one by one or a folder against an index."""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.commands.memory import add_json_flag
from service.domain.errors import InvalidInputError, MemoryPolicyError
from service.settings import Settings

PARAMETERS, KV_BYTES, NOTE = "params_from_config", "kv_bytes_per_token_bf16_incl_sliding_unsaturated", "note"
_COLUMNS = ("file", PARAMETERS, KV_BYTES, NOTE)
_NOT_EXACT = "not exact"
CLOSE_PERCENT = 1.0


def add_parser(commands: Any) -> None:
    """Adds the command `inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="read config.json files",
        description="Weights and KV cache of a config.json, with the formulas used; or of a folder of them.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="NAME", help="a model of the catalogue or of MEMORYPOLICY_MODELS_DIR")
    which.add_argument(
        "--config", metavar="PATH", type=Path, help="a config.json, or the folder that holds one or an adapter"
    )
    which.add_argument("--config-dir", metavar="DIR", type=Path, help="a folder of config files, each named *.json")
    parser.add_argument(
        "--index", metavar="FILE", type=Path,
        help=f"with --config-dir: a CSV with the columns {', '.join(_COLUMNS)} to compare with",
    )  # fmt: skip
    parser.add_argument(
        "--at-tokens", metavar="N,N", type=_lengths, help="lengths at which the KV cache is wanted, such as 4096,131072"
    )
    add_json_flag(parser)
    parser.set_defaults(run=_inspect)


def _lengths(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write whole numbers from 1, separated by commas")
    return found


def _inspect(arguments: argparse.Namespace) -> None:
    if arguments.config_dir is not None:
        _inspect_folder(arguments)
        return
    if arguments.index is not None:
        raise InvalidInputError(path="--index", value=str(arguments.index), remedy="it goes with --config-dir")
    from service.api.inspection import inspection_json
    from service.api.model_folder import inspected, with_models_dir

    models = with_models_dir(Settings().models_dir)
    if arguments.model is not None:
        read = models.model(arguments.model, path="--model").architecture
        if read is None:
            remedy = "it is four numbers in the operator's folder, of which nothing more is known; give its --config"
            raise InvalidInputError(path="--model", value=arguments.model, remedy=remedy)
    else:
        try:
            read = inspected(arguments.config, models).architecture
        except InvalidInputError as error:
            raise MemoryPolicyError(f"{arguments.config}: {error}") from error
        if read is None:
            raise ValueError("a config and a model with an adapter have an architecture")
    content = inspection_json(read, at_tokens=arguments.at_tokens)
    if arguments.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        _print_inspection(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file of a folder. off_percent and kv against the index, None where it has no such number."""

    file: str
    refused: str | None = None
    kind: str | None = None
    parameters: int | None = None
    off_percent: float | None = None
    weight_gb: float | None = None
    kv_bytes_per_token: int | None = None
    kv: str | None = None
    warnings: int = 0


def _inspect_folder(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.config_dir
    index = _read_index(arguments.index) if arguments.index else {}
    files = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.is_file())
    rows = list(_rows(files, index))
    if arguments.json:
        print(
            json.dumps(
                {"files": [asdict(row) for row in rows], "summary": _summary(rows, compared=bool(index))}, indent=2
            )
        )
        return
    _print_rows(rows)
    print(_summary(rows, compared=bool(index)))


def _read_index(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise MemoryPolicyError(f"{path}: no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
            return {row["file"]: row for row in reader}
    except (csv.Error, UnicodeDecodeError) as error:
        raise MemoryPolicyError(f"{path}: not a CSV file in UTF-8: {error}") from error


def _rows(files: list[Path], index: Mapping[str, Mapping[str, str]]) -> Iterator[Row]:
    from service.api.model_folder import read_config_file
    from service.domain.model_config import read_architecture

    for path in files:
        try:
            read = read_architecture(read_config_file(path))
        except (InvalidInputError, MemoryPolicyError, OSError) as error:
            yield Row(file=path.name, refused=str(error).removeprefix(f"{path}: "))
            continue
        expected = index.get(path.name, {})
        parameters = _number(expected, PARAMETERS)
        yield Row(
            file=path.name,
            kind=read.kind,
            parameters=read.parameters,
            off_percent=None if parameters is None else 100 * (read.parameters / parameters - 1),
            weight_gb=read.weight_bytes / 1e9,
            kv_bytes_per_token=read.kv_bytes_per_token,
            kv=_kv_verdict(read.kv_bytes_per_token, expected),
            warnings=len(read.warnings),
        )


def _number(expected: Mapping[str, str], column: str) -> int | None:
    text = expected.get(column) or ""
    return int(text) if text.isascii() and text.isdecimal() and int(text) else None


def _kv_verdict(found: int, expected: Mapping[str, str]) -> str | None:
    number = _number(expected, KV_BYTES)
    if number is None:
        return None
    if _NOT_EXACT in (expected.get(NOTE) or "").casefold():
        return f"index not exact ({number:,})"
    return "equal" if found == number else f"differs ({number:,})"


def _summary(rows: list[Row], *, compared: bool) -> str:
    read = [row for row in rows if row.refused is None]
    counts = f"{len(rows)} files: {len(read)} read, {len(rows) - len(read)} refused"
    if not compared:
        return counts
    sized = [row for row in read if row.off_percent is not None]
    close = sum(1 for row in sized if abs(row.off_percent or 0.0) <= CLOSE_PERCENT)
    exact = [row for row in read if row.kv and not row.kv.startswith("index")]
    equal = sum(1 for row in exact if row.kv == "equal")
    loose = sum(1 for row in read if row.kv and row.kv.startswith("index"))
    return (
        f"{counts}; parameters within {CLOSE_PERCENT:g} % of the index in {close} of {len(sized)}; "
        f"KV bytes equal in {equal} of {len(exact)}, {loose} where the index is not exact"
    )


def _print_rows(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, justify in (
        ("file", "left"), ("kind", "left"), ("parameters", "right"), ("off %", "right"), ("weight GB", "right"),
        ("KV B/token", "right"), ("KV and index", "left"), ("warnings", "right"),
    ):  # fmt: skip
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        if row.refused is not None:
            table.add_row(row.file, "refused")
            continue
        table.add_row(
            row.file,
            row.kind,
            f"{row.parameters:,}",
            "" if row.off_percent is None else f"{row.off_percent:+.3f}",
            f"{row.weight_gb:,.3f}",
            f"{row.kv_bytes_per_token:,}",
            row.kv,
            str(row.warnings or ""),
        )
    # As wide as it needs to be: this is read by programs and in files, too.
    console = Console(highlight=False, width=200, soft_wrap=True)
    console.print(table)
    for row in rows:
        if row.refused is not None:
            print(f"refused {row.file}: {row.refused}")


def _print_inspection(content: dict[str, Any]) -> None:
    kinds = ", ".join(content["traits"])
    print(f"{kinds} ({content['family']}), {content['num_layers']} layers, hidden size {content['hidden_size']:,}")
    active = content["active_parameters"]
    share = "" if active == content["parameters"] else f", {active:,} for a token"
    print(f"parameters: {content['parameters']:,}{share}")
    print(f"weights: {content['weight_gb']:.3f} GB in {content['quantisation'] or '16 bits'}")
    print(f"KV cache: {content['kv_bytes_per_token']:,} bytes per token with every layer full")
    for tokens, gib in content["kv_gib_at"].items():
        print(f"  at {int(tokens):,} tokens: {gib:.3f} GiB")
    if content["state_bytes_per_sequence"]:
        print(f"state: {content['state_bytes_per_sequence']:,} bytes per sequence")
    print(f"context: {content['max_context']:,} tokens")
    for path, value in content["assumed"].items():
        print(f"assumed: {path} = {value}")
    for warning in content["warnings"]:
        print(f"warning: {warning}")
    print("formulas:")
    for name, formula in content["formulas"].items():
        print(f"  {name}: {formula}")
