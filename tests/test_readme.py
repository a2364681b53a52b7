from collections.abc import Iterator

import pytest

from tests.transcripts import README, Transcript, normal, run, service, transcripts

TRANSCRIPTS = transcripts(README.read_text())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with service() as port:
        yield port


def test_the_readme_shows_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 5


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.command[:40])
def test_the_readme_shows_what_the_command_prints(transcript: Transcript, port: int) -> None:
    assert normal(run(transcript, port=port)) == normal(transcript.output)
