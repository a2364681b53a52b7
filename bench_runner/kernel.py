"""How the simulator's inner functions are compiled."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled and cached on disk, without reference counting, which would be most of the run time here.

    The state of a simulation is tuples of arrays, and numba would count references to every array of a tuple at every
    call. A function that allocates an array needs the counting: compile it with numba.njit itself.
    """
    compiled: Callable[P, R] = numba.njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload] # numba does not declare it
    return compiled
