"""Cards with their pictures into bundles: `python -m offline card` writes that of every bundle."""

from pathlib import Path

from offline.artefacts import write_atomically
from offline.export import CARD_FILE, PLOT_SUFFIX, seal
from offline.robust.card import render_card
from offline.robust.pictures import draw_pictures
from offline.robust.report import read_report
from offline.robust.variants import VARIANTS
from service.domain.manifest import MANIFEST_FILE, Manifest


def bundles_in(folder: Path) -> tuple[Path, ...]:
    """The bundles of the variants that lie in a folder."""
    named = (folder / variant.bundle for variant in VARIANTS.values())
    return tuple(one for one in named if (one / MANIFEST_FILE).exists())


def write_card(folder: Path) -> Manifest:
    """Draws the pictures and writes the card of a bundle, and seals it again. Pictures of an earlier card go."""
    report = read_report(folder)
    pictures = draw_pictures(report)
    for path in sorted(folder.glob(f"*{PLOT_SUFFIX}")):
        if path.name not in pictures:
            path.unlink()
    for name, content in pictures.items():
        write_atomically(folder / name, content)
    write_atomically(folder / CARD_FILE, render_card(report, tuple(pictures)).encode())
    return seal(folder, report.manifest)
