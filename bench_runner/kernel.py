"""How the simulator's inner functions are compiled, and where the compiled code is kept."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

_FOLDER = Path(__file__).parent


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled and cached on disk, without reference counting, which would be most of the run time here.

    The state of a simulation is tuples of arrays, and numba would count references to every array of a tuple at every
    call. A function that allocates an array needs the counting: it is an allocating_kernel.
    """
    compiled: Callable[P, R] = numba.njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload] # numba does not declare it
    return compiled


def allocating_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled and cached on disk, for functions that make arrays."""
    compiled: Callable[P, R] = numba.njit(cache=True)(function)
    return compiled


def _cache_folder() -> Path | None:
    """A folder named after the sources: numba looks at a function's own file only and would keep a stale callee."""
    cache = _FOLDER / "__pycache__"
    if not os.access(cache if cache.exists() else _FOLDER, os.W_OK):
        return None
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_FOLDER.glob("*.py"))))
    return cache / f"kernels-{sources.hexdigest()[:16]}"


# Has to be set before the first function is compiled, which is when the modules that hold kernels are imported.
if (_cache := _cache_folder()) is not None:
    numba.config.CACHE_DIR = str(_cache)  # type: ignore[attr-defined] # settings of numba are set at run time
