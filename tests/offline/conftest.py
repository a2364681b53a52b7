"""Synthetic cells for every test of the offline side."""

from pathlib import Path

import pytest

from offline.arithmetic import pin_arithmetic
from offline.dataset import CellFiles, Development, load_development
from offline.pipeline import Run
from offline.settings import Settings, TrainingSettings
from tests.offline.synthetic import ROOT, CellWriter


@pytest.fixture(scope="session", autouse=True)
def pinned_arithmetic() -> None:
    """As the command line does, before a test computes anything with torch."""
    pin_arithmetic()


@pytest.fixture
def cell_writer(tmp_path: Path) -> CellWriter:
    """Writes cells into this test's folder."""
    return CellWriter(folder=tmp_path)


@pytest.fixture(scope="session")
def synthetic_files(tmp_path_factory: pytest.TempPathFactory) -> CellFiles:
    """One complete synthetic sweep, for tests that only read it."""
    return CellWriter(folder=tmp_path_factory.mktemp("cells")).write()


@pytest.fixture(scope="session")
def synthetic_data(synthetic_files: CellFiles) -> Development:
    """The arrays of synthetic_files."""
    return load_development(synthetic_files)


@pytest.fixture
def quick_run(synthetic_files: CellFiles, tmp_path: Path) -> Run:
    """A run whose training is only long enough to go through every step."""
    grid = TrainingSettings(epochs=2, batch_lists=(16,), learning_rates=(0.001, 0.003), weight_decays=(0.01,))
    return Run(
        files=synthetic_files,
        work=tmp_path / "work",
        bundle=tmp_path / "bundle",
        registrations=tmp_path / "registrations",
        registration="first",
        root=ROOT,
        settings=Settings(training=grid),
    )
