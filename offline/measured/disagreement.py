"""How far two sources of cells, such as a simulator and a server, differ on the cells that both have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline.sweep_cells import SweepCells, read_sweep
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError

METRICS = ("output_throughput_tps", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms")
_NAMED = 5


def disagreement(measured_file: Path, simulated_file: Path) -> dict[str, Any]:
    """Relative errors (second − first) ÷ first per metric, SLO verdicts, and what the second's choices cost.

    ArtefactError if both are of one evidence class, share no cell, or mean different workloads by one name.
    """
    measured, simulated = read_sweep(measured_file), read_sweep(simulated_file)
    classes = measured.provenance.evidence, simulated.provenance.evidence
    if classes[0] == classes[1]:
        raise ArtefactError(
            f"{measured_file} and {simulated_file} both hold {classes[0]} cells; give one file of each evidence class"
        )
    pairs = _pairs(measured, simulated, simulated_file)
    both_ran = [(a, b) for a, b in pairs if a.status == b.status == "ok"]
    return {
        "compared": {"evidence": classes[0], "gpu": measured.provenance.gpu, "cells": _count(measured)},
        "with": {"evidence": classes[1], "gpu": simulated.provenance.gpu, "cells": _count(simulated)},
        "shared": len(pairs),
        "failed_in_one_only": [a.key.cell_id for a, b in pairs if a.status != b.status],
        "slo_verdicts_alike": sum(a.slo_met == b.slo_met for a, b in pairs),
        "relative_error": {metric: _errors(both_ran, metric) for metric in METRICS},
        "choices": _choices(pairs),
        "largest": _largest(both_ran),
    }


def _count(sweep: SweepCells) -> int:
    return sum(map(len, sweep.lists.values()))


def _pairs(measured: SweepCells, simulated: SweepCells, path: Path) -> list[tuple[CellResult, CellResult]]:
    other = {cell.key.cell_id: cell for cells in simulated.lists.values() for cell in cells}
    mine = [cell for cells in measured.lists.values() for cell in cells]
    pairs = [(cell, other[cell.key.cell_id]) for cell in mine if cell.key.cell_id in other]
    if not pairs:
        raise ArtefactError(f"{path}: no cell in common with the measured ones; simulate the plan that was measured")
    for ours, theirs in pairs:
        if ours.workload != theirs.workload:
            raise ArtefactError(
                f"{path}: {ours.key.cell_id} is {theirs.workload} there and {ours.workload} in the measured cells; "
                "simulate the plan that was measured"
            )
    return pairs


def _error(pair: tuple[CellResult, CellResult], metric: str) -> float | None:
    ours, theirs = getattr(pair[0], metric), getattr(pair[1], metric)
    return None if not ours or theirs is None else float(theirs / ours - 1)


def _errors(pairs: Sequence[tuple[CellResult, CellResult]], metric: str) -> dict[str, Any]:
    found = [error for pair in pairs if (error := _error(pair, metric)) is not None]
    if not found:
        return {"n": 0, "median": None, "p5": None, "p95": None, "mean_absolute": None}
    low, middle, high = (float(value) for value in np.quantile(found, [0.05, 0.5, 0.95]))
    return {
        "n": len(found),
        "median": middle,
        "p5": low,
        "p95": high,
        "mean_absolute": float(np.mean(np.abs(found))),
    }


def _choices(pairs: Sequence[tuple[CellResult, CellResult]]) -> dict[str, Any]:
    """Per scenario with at least two shared cells, whether both sources choose alike and what it costs if not.

    loss: goodput of the other source's choice below that of the own one, as a share; both as measured.
    """
    lists: dict[str, list[tuple[CellResult, CellResult]]] = {}
    for pair in pairs:
        lists.setdefault(pair[0].key.scenario_id, []).append(pair)
    losses = []
    alike = 0
    for found in lists.values():
        ours = max((a for a, _ in found), key=_worth)
        theirs = max(found, key=lambda pair: _worth(pair[1]))[0]
        if len(found) < 2 or _worth(ours) <= 0:
            continue
        alike += ours is theirs
        losses.append(1 - _worth(theirs) / _worth(ours))
    return {
        "scenarios": len(losses),
        "alike": alike,
        "mean_loss": float(np.mean(losses)) if losses else None,
        "largest_loss": float(max(losses)) if losses else None,
    }


def _worth(cell: CellResult) -> float:
    return cell.output_throughput_tps if cell.slo_met else 0.0


def _largest(pairs: Sequence[tuple[CellResult, CellResult]]) -> list[dict[str, Any]]:
    """The cells whose throughput differs most."""
    errors = [(pair, error) for pair in pairs if (error := _error(pair, METRICS[0])) is not None]
    errors.sort(key=lambda found: -abs(found[1]))
    return [{"cell_id": pair[0].key.cell_id, "relative_error": error} for pair, error in errors[:_NAMED]]
