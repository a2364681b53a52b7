"""What the drill asks of the service, asked of the service that is here."""

import json

from service.domain.candidate import CANDIDATES, Candidate
from service.settings import Settings
from tests.requalify.scenarios import recommended, scenarios


def test_every_scenario_is_answered_by_the_service_s_own_bundle() -> None:
    answers = recommended(scenarios(20))
    assert len(answers.chosen) == 20
    found = [Candidate(**arguments) for arguments in answers.chosen if arguments is not None]
    # A drill in which nothing is recommended compares nothing.
    assert found
    assert set(found) <= set(CANDIDATES)
    manifest = json.loads((Settings().bundle_dir / "manifest.json").read_text())
    assert answers.bundle == manifest["version"]
