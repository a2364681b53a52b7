"""A fresh seed for every run, printed at its head, so that a failure can be seen again."""

import secrets

SEED = secrets.randbelow(2**31)
CELLS = 60
VIRTUAL_MS = 1500.0


def again() -> str:
    """The command that draws the same cells."""
    return f"python -m bench_runner.equivalence --cells {CELLS} --virtual-ms {VIRTUAL_MS:g} --seed {SEED}"


def pytest_report_header() -> str:
    return f"equivalence: {again()}"
