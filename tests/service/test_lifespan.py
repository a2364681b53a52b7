"""What an application does between its server's start and its end."""

import asyncio
import gc
from pathlib import Path

from service.app import create_app
from service.settings import Settings


def test_what_was_loaded_is_left_alone_by_the_collector_while_it_serves(bundle_dir: Path, tmp_path: Path) -> None:
    app = create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path))

    async def live() -> int:
        async with app.router.lifespan_context(app):
            return gc.get_freeze_count()

    # An application is tens of thousands of objects.
    assert asyncio.run(live()) > 10_000
    assert gc.get_freeze_count() == 0
