"""How the server ends: it says so first, goes on for a while, lets nobody new in, and answers whoever is in."""

import asyncio
import logging
import math
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import cast
from weakref import WeakSet

import uvicorn

from service.api.drain import Drain
from service.server.listener import ignore_newcomers, is_readable
from service.server.protocol import ServiceProtocol

logger = logging.getLogger(__name__)

# Time for a connection that has begun to be accepted: a round trip, and a turn of the event loop.
SETTLE_S = 0.2
MOST_SETTLE_S = 3.0
# A worker that is told to stop cannot know whether its siblings are: it waits so long for its parent to say so.
PARENT_PATIENCE_S = 2.0
LOOK_S = 0.02


class DrainingServer(uvicorn.Server):
    """One process that serves. The first signal drains it, a second one ends it at once.

    stopped: of a worker, the end of a pipe that its parent closes once it lets nobody new in, or dies. A worker may be
    told any number of times; its parent ends it at once by killing it.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain: Drain,
        newcomers: "WeakSet[ServiceProtocol]",
        drain_s: float,
        grace_s: float,
        stopped: Connection | None = None,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._drain, self._drain_s, self._grace_s = drain, drain_s, grace_s
        self._newcomers = newcomers
        self._stopped, self._on_started = stopped, on_started
        self._stop_at_s = math.inf
        self._why = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells whoever waits for it."""
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal. It is not raised again at the end: being told to end is no failure."""
        if not self._drain.begun:
            self._begin(signal.Signals(sig).name)
        elif self._stopped is None:
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; True ends the serving."""
        if self._why:
            logger.info("draining: %s", self._why)
            self._why = ""
        if self._stopped is not None and not self._drain.begun and counter % 10 == 0 and self._stopped.poll():
            self._begin("the parent is gone")
        return await super().on_tick(counter) or time.monotonic() >= self._stop_at_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Everyone who is in is answered, within the grace; then the application makes durable what waits."""
        listeners = sockets or []
        await self._let_nobody_in(listeners)
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        finished = await self._until(self._is_quiet, most_s=self._grace_s)
        if not finished and not self.force_exit:
            logger.warning("%d requests did not end in time and are cut off", len(self.server_state.tasks))
        # What is left gets no more time; where nothing is left this takes none.
        self.config.timeout_graceful_shutdown = 1 if finished else 0
        await super().shutdown(sockets)

    def _begin(self, why: str) -> None:
        # A handler of signals may stand in the middle of a log line, and must not wait for its end: it is said later.
        self._why = why
        self._drain.begun = True
        self._stop_at_s = time.monotonic() + self._drain_s

    async def _let_nobody_in(self, listeners: list[socket.socket]) -> None:
        if self._stopped is None:
            for listener in listeners:
                ignore_newcomers(listener)
        else:
            # A filter of ours would stop the siblings too.
            await self._until(self._stopped.poll, most_s=PARENT_PATIENCE_S)
        begun_s = time.monotonic()
        descriptors = [listener.fileno() for listener in listeners]
        await self._until(
            lambda: time.monotonic() - begun_s >= SETTLE_S and not is_readable(descriptors), most_s=MOST_SETTLE_S
        )

    def _is_quiet(self) -> bool:
        for connection in list(self.server_state.connections):
            cast(ServiceProtocol, connection).retire()
        shaking_hands = any(newcomer.is_expected for newcomer in self._newcomers)
        return not (self.server_state.connections or self.server_state.tasks or shaking_hands)

    async def _until(self, done: Callable[[], bool], *, most_s: float) -> bool:
        """Whether it was done in time; a second signal ends the waiting."""
        end_s = time.monotonic() + most_s
        while not done():
            if self.force_exit or time.monotonic() >= end_s:
                return False
            await asyncio.sleep(LOOK_S)
            # Answers go on, so their Date does.
            await super().on_tick(0)
        return True
