"""Whether this process is on its way out: it still answers what it is asked, and tells everyone to go elsewhere."""

from dataclasses import dataclass


@dataclass(slots=True)
class Drain:
    """Set once, by whoever handles the signal; read by every request."""

    begun: bool = False
