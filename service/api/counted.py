"""A number with its noun."""


def counted(number: int, noun: str) -> str:
    """1 client, 2 clients."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
