"""A goal of a benchmark and what was reached, as a line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """at_most: lower is better. flagged: the program itself says that this measurement is not to be used."""

    name: str
    value: float
    target: float
    at_most: bool = False
    flagged: bool = False

    def line(self) -> str:
        """`BAR <name> <value> <op> <target> ok|short`, with `flagged` behind it where that is why it is ok."""
        reached = self.value <= self.target if self.at_most else self.value >= self.target
        op = "<=" if self.at_most else ">="
        verdict = "ok" if reached else "ok flagged" if self.flagged else "short"
        return f"BAR {self.name} {self.value:.4g} {op} {self.target:.4g} {verdict}"
