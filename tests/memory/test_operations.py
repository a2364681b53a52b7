"""OPERATIONS.md is what `make operations` writes, but for the numbers of its fault table."""

import re

from tests.memory.operations import DOCUMENT, TEMPLATE, measured, settings_table
from tests.memory.rehearsal import Rehearsal, comparable, without_outputs
from tests.transcripts import transcripts

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_its_text_and_its_settings_are_those_of_this_release() -> None:
    template = TEMPLATE.read_text(encoding="utf-8").replace("{settings}", settings_table())
    parts = re.split(r"\{(?:faults|machine)\}", without_outputs(template))
    text = without_outputs(TEXT)
    position = 0
    for part in parts:
        assert part in text[position:], f"run 'make operations-text' and commit OPERATIONS.md: {part[:60]!r}"
        position = text.index(part, position) + len(part)


def test_its_transcripts_show_what_the_commands_print() -> None:
    shown = transcripts(TEXT)
    assert len(shown) >= 10
    with Rehearsal() as rehearsal:
        for transcript in shown:
            printed = comparable(rehearsal.run(transcript.command))
            assert printed == comparable(transcript.output), f"run 'make operations-text': {transcript.command}"


def test_a_policy_that_is_rolled_back_answers_again() -> None:
    """Read off the transcript, which the test above compares with what happens."""
    answers = [
        transcript.output.splitlines()[-1]
        for transcript in transcripts(TEXT)
        if "answered_by\n" in f"{transcript.command}\n"
    ]
    first, second, third = answers
    assert first == third != second


def test_what_was_measured_is_kept_where_only_the_text_is_written_anew() -> None:
    faults, machine = measured(TEXT)
    assert faults in TEXT
    assert faults.startswith("| fault | load |")
    assert f"Measured with {machine}.\n" in TEXT


def test_its_fault_table_loses_and_doubles_nothing() -> None:
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if " connections | " in line]
    assert len(rows) == 8
    for fault, _, acknowledged, failed, lost, doubled in rows:
        assert int(acknowledged.replace(",", "")) > 0, fault
        assert (failed in ("—", "0"), lost, doubled) == (True, "0", "0"), fault
