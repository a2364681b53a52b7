"""OPERATIONS.md is what `make operations` writes, but for the numbers of its fault table."""

import re

from tests.memory.operations import DOCUMENT, TEMPLATE, settings_table

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_its_text_and_its_settings_are_those_of_this_release() -> None:
    parts = re.split(r"\{\w+\}", TEMPLATE.read_text(encoding="utf-8").replace("{settings}", settings_table()))
    position = 0
    for part in parts:
        assert part in TEXT[position:], f"run 'make operations' and commit OPERATIONS.md: {part[:60]!r}"
        position = TEXT.index(part, position) + len(part)


def test_its_fault_table_loses_and_doubles_nothing() -> None:
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if " connections | " in line]
    assert len(rows) == 8
    for fault, _, acknowledged, failed, lost, doubled in rows:
        assert int(acknowledged.replace(",", "")) > 0, fault
        assert (failed in ("—", "0"), lost, doubled) == (True, "0", "0"), fault
