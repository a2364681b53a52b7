"""What looks like a secret: found before anything is logged, stored or sent back."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from service.engine_options import INTEGERS, LISTS, OPTIONAL_TEXTS, SIZES, TEXTS

_WORDS = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# A name that ends so holds a secret; `max-num-batched-tokens` and `tokenizer` do not.
_LAST_WORDS = frozenset(
    {"token", "secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "authorization"}
)
_KEYS_OF = frozenset({"api", "access", "private", "secret", "auth", "encryption", "signing"})
_VALUES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bxox[abprs]-[\w-]{10,}|\bAKIA[A-Z0-9]{12,}|\bAIza[\w-]{30,}|\beyJ[\w-]{16,}"
    r"|\bmpt_[\w-]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\bbearer\s+[\w.~+/-]{12,})|://[^/\s:@]+:[^/\s@]+@"
)
_JSON_NAME = re.compile(r"[\"']([A-Za-z0-9_.-]{1,80})[\"']\s*:")
# `$(HF_TOKEN)` and `${HF_TOKEN}` name a secret and do not hold it.
_REFERENCE = re.compile(r"\$(\([A-Za-z_][A-Za-z0-9_.-]*\)|\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
REMOVED = "[removed]"
_OPTIONS = (*OPTIONAL_TEXTS, *LISTS, *TEXTS, *SIZES, *INTEGERS)


def names_secret(name: str) -> bool:
    """Whether a field of that name would hold a secret: hf_token, --api-key, x.password."""
    return _names_secret(name[:200])


# The same names come with every request.
@lru_cache(maxsize=4096)
def _names_secret(name: str) -> bool:
    words = _WORDS.findall(_CAMEL.sub("_", name).lower())
    if not words:
        return False
    return words[-1] in _LAST_WORDS or (words[-1] in ("key", "keys") and bool(_KEYS_OF & set(words[-2:-1])))


def resembles_secret(text: str) -> bool:
    """Whether something in the text looks like a secret."""
    return bool(_VALUES.search(text))


def holds_secret(text: str) -> bool:
    """Whether the text itself looks like a secret, or is JSON with a field that would hold one."""
    return resembles_secret(text) or any(names_secret(name) for name in _JSON_NAME.findall(text))


def arguments_hold_secret(words: Iterable[str]) -> bool:
    """Whether a command line gives a secret: by the name of an option, or by what a value looks like."""
    pending = False
    for word in words:
        name, equals, value = word.partition("=")
        if pending and not word.startswith("--") and not _REFERENCE.fullmatch(word):
            return True
        is_option = word.startswith("-")
        secret = is_option and _takes_secret(name)
        if (secret and equals and not _REFERENCE.fullmatch(value)) or holds_secret(word):
            return True
        pending = (secret and not equals) or (pending and not is_option)
    return False


def _takes_secret(name: str) -> bool:
    """Of an option, which vLLM also knows by a prefix: --api-k is --api-key, --max-num-batched-token takes no token."""
    option = name.lstrip("-").replace("_", "-")
    meant = [known for known in _OPTIONS if known.startswith(option)]
    return any(names_secret(known) for known in meant) if meant else names_secret(name)


def without_secrets(value: Any) -> Any:
    """A parsed JSON value in which what looks like a secret is replaced; for digests and messages."""
    if isinstance(value, Mapping):
        # An environment variable of a container: its name is a value.
        if names_secret(str(value.get("name", ""))) and "value" in value:
            return {**value, "value": REMOVED}
        return {
            key: REMOVED if names_secret(str(key)) and isinstance(member, str) else without_secrets(member)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(member) for member in value]
    if isinstance(value, str) and holds_secret(value):
        return REMOVED
    return value
