"""The calibration split: whole families and regions of the announced space that no ranker or estimator trains on.

Every training file holds lists of both kinds; which is which follows from what a list announces. Groups of the split
are judged apart, because a rule that is safe on average need not be where it was never trained.
"""

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.robust.lists import Bools, Lists

CALIBRATION_FAMILIES = ("Mistral", "Phi")
# The same blocks that bench_runner.announced cuts the space into: block 0 of 8 is for tests, this one for calibration.
BLOCKS, CALIBRATION_BLOCK = 8, 1
BLOCK_LOG2 = 1.5
FAMILY, REGION = "families", "regions"
GROUPS = (FAMILY, REGION)


def block_of(prompt_tokens: int, max_new_tokens: int, concurrency: int) -> int:
    """Which of the 8 kinds of blocks a workload falls into."""
    values = (prompt_tokens, max_new_tokens, concurrency)
    block = ",".join(str(int(math.log2(value) // BLOCK_LOG2)) for value in values)
    return hashlib.sha256(f"block {block}".encode()).digest()[0] % BLOCKS


def group_of(lists: Lists) -> NDArray[np.str_]:
    """[lists] the calibration group of each, "" for what is trained on. A held-out family goes before a region."""
    columns = lists.columns
    names = ("prompt_tokens", "max_new_tokens", "concurrency")
    rows: Any = zip(*(columns[name] for name in names), strict=True)
    region = np.array([block_of(int(p), int(n), int(c)) == CALIBRATION_BLOCK for p, n, c in rows], dtype=np.bool_)
    family = columns["family"].astype(np.str_)
    return np.where(np.isin(family, CALIBRATION_FAMILIES), FAMILY, np.where(region, REGION, ""))


def trained(lists: Lists) -> Bools:
    """[lists] whether rankers and estimators may train on each."""
    return np.asarray(group_of(lists) == "", dtype=np.bool_)
