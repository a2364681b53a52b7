"""What a config.json says about memory, as the API and the command line answer it."""

from collections.abc import Sequence
from typing import Any

from service.domain.architecture import Architecture
from service.domain.config_formula import formulas
from service.domain.memory import GIB

# Where nothing is asked for: a short and a long request, as far as the context reaches.
DEFAULT_TOKENS = (4096, 32768)


def inspection_json(read: Architecture, *, at_tokens: Sequence[int] | None) -> dict[str, Any]:
    """The members of InspectAnswer. at_tokens: lengths of a sequence whose cache is wanted."""
    tokens = at_tokens if at_tokens is not None else _default_tokens(read.max_context)
    return {
        "kind": read.kind,
        "traits": list(read.traits),
        "family": read.family,
        "parameters": read.parameters,
        "active_parameters": read.active_parameters,
        "weight_gb": read.weight_bytes / 1e9,
        "quantisation": read.quantisation,
        "num_layers": read.num_layers,
        "hidden_size": read.hidden_size,
        "kv_bytes_per_token": read.kv_bytes_per_token,
        "kv_gib_at": {str(count): read.kv_bytes_at(count) / GIB for count in tokens},
        "state_bytes_per_sequence": read.state_bytes,
        "max_context": read.max_context,
        # /v1/recommend has the config one level deeper.
        "assumed": {path.removeprefix("model."): value for path, value in read.assumed},
        "warnings": list(read.warnings),
        "formulas": formulas(read),
    }


def _default_tokens(context: int) -> list[int]:
    return [*(count for count in DEFAULT_TOKENS if count < context), context]
