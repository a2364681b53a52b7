"""How a quantised module is stored, and which modules are stored so."""

from dataclasses import dataclass

from service.domain.config_section import Section
from service.domain.module_pattern import ModuleNames
from service.domain.weight_module import Module

# What methods quantise by themselves.
QUANTISED_PARTS = ("attention", "MLP", "experts", "shared experts", "recurrent layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """bits a weight, and scale_bits for each block of rows x cols of them; 0 rows or cols is the whole extent."""

    name: str
    bits: int
    scale_bits: int = 0
    block_rows: int = 1
    block_cols: int = 0

    def bytes_of(self, module: Module) -> int:
        """Weights and scales of all copies."""
        down = -(-module.rows // (self.block_rows or module.rows))
        across = -(-module.cols // (self.block_cols or module.cols))
        bits = module.rows * module.cols * self.bits + down * across * self.scale_bits
        return module.copies * -(-bits // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Modules of these parts (None: of any) that are named (None: all of them), and their format, None for 16 bits.

    named false: all but those that are named. source: where in the config it stands, if it must match something.
    """

    format: Format | None
    names: ModuleNames | None = None
    named: bool = True
    parts: tuple[str, ...] | None = QUANTISED_PARTS
    source: str | None = None

    def holds(self, module: Module) -> bool:
        """Whether it decides about this module."""
        return (self.parts is None or module.part in self.parts) and (
            self.names is None or self.names.holds(module.name) is self.named
        )


def known_bits(section: Section, key: str) -> int:
    """The width of a weight; UnsupportedModelError for one that no format has."""
    bits = section.size(key)
    if bits not in (2, 3, 4, 5, 6, 8, 16):
        raise section.refusal(key, "known widths are 2, 3, 4, 5, 6, 8 and 16 bits", value=bits)
    return bits
