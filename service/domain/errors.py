"""The error tree. A message says what is wrong, shows the value, and says what to do.

MemoryPolicyError
├── InvalidInputError        a value that a user gave; carries its path, the value and the remedy
│   ├── UnknownNameError     a name outside a closed list; carries the known names
│   └── UnsupportedModelError  a model architecture that cannot be read yet
├── LeakageError             a measured quantity on its way to becoming an input
└── ArtefactError            a file of ours that is damaged, foreign or out of date
"""

from collections.abc import Iterable


class MemoryPolicyError(Exception):
    """Root of every error that this project raises on purpose."""


class InvalidInputError(MemoryPolicyError):
    """A user's value cannot be used. `path` is relative to the object that was read, e.g. `prompt_tokens`."""

    def __init__(self, *, path: str, value: object, remedy: str) -> None:
        self.path = path
        self.value = value
        self.remedy = remedy
        super().__init__(f"{path}: {shorten(value)} cannot be used; {remedy}")


class UnknownNameError(InvalidInputError):
    """A name that is not in a closed list. of: how many there are, where only those that resemble it are listed."""

    def __init__(self, *, path: str, value: object, known: Iterable[str], of: int | None = None) -> None:
        self.known = tuple(known)
        which = "known" if of is None else f"of {of} known names, those that resemble it most"
        super().__init__(path=path, value=value, remedy=f"{which}: {', '.join(self.known)}")


class UnsupportedModelError(InvalidInputError):
    """A config.json whose architecture is outside what this version can read."""


class LeakageError(MemoryPolicyError):
    """A quantity that exists only after launch was about to become an input."""


class ArtefactError(MemoryPolicyError):
    """A file that another program of this project wrote does not verify."""


def shorten(value: object, *, limit: int = 60) -> str:
    """repr of a user's value, cut so that a hostile value cannot flood a message or a log."""
    # Integers of thousands of digits refuse to print; their size says enough.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__} that is too large to print"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
