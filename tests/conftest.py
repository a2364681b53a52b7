"""For every test: what the service remembers goes to a folder of this run, also from processes that tests start."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MEMORYPOLICY_DATABASE")]:
            patch.delenv(name)
        patch.setenv("MEMORYPOLICY_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        # A loaded machine may take longer for a commit than a service should wait.
        patch.setenv("MEMORYPOLICY_AUDIT_DEADLINE_MS", "30000")
        yield
