"""`python -m service serve`: one process that listens and answers, or several behind one socket."""

import functools
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, cast
from weakref import WeakSet

import uvicorn

from service import logs
from service.domain.errors import MemoryPolicyError
from service.server.draining import DrainingServer
from service.server.listener import listen
from service.server.protocol import ServiceProtocol
from service.settings import Settings

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable
    from multiprocessing.connection import Connection

# The thread that commits gives the interpreter away at each row and waits this long to have it back from a busy event
# loop; Python's own 5 ms makes a transaction of twenty rows last a tenth of a second.
SWITCH_INTERVAL_S = 0.001
# Pools of clients keep an idle connection for a minute or so. Whoever closes last never meets a request on its way.
KEEP_ALIVE_S = 75


def serve(settings: Settings) -> None:
    """Returns once a signal has ended it in good order. SystemExit(1) if a second one cut requests off."""
    check_tls(settings)
    logs.configure(log_format=settings.log_format, level=settings.log_level)
    # Bound before anything is loaded: a busy port is the likeliest fault and must not cost a second to report.
    listener = listen(settings.host, settings.port, unread_timeout_s=settings.body_timeout_s)
    scheme = "https" if settings.tls_cert_file else "http"
    address = f"{scheme}://{settings.host}:{listener.getsockname()[1]}"
    if settings.workers > 1:
        from service.server.workers import Workers

        Workers(settings, listener, on_started=lambda: announce(address)).run()
    else:
        serve_here(settings, listener, on_started=lambda: announce(address))


def announce(address: str) -> None:
    """The one line that a person at a terminal waits for."""
    print(f"serving on {address} (documentation at /docs)", flush=True)


def serve_here(
    settings: Settings,
    listener: "socket.socket",
    *,
    stopped: "Connection | None" = None,
    on_started: "Callable[[], None]",
) -> None:
    """Serves in this process; see DrainingServer for `stopped`."""
    # Until the server has handlers of its own, a signal just ends the process.
    signal.signal(signal.SIGTERM, _exit_cleanly)
    signal.signal(signal.SIGINT, _exit_cleanly)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Again, because a worker is a process of its own.
    logs.configure(log_format=settings.log_format, level=settings.log_level)
    from service.app import create_app

    app = create_app(settings)
    newcomers: WeakSet[ServiceProtocol] = WeakSet()
    protocol = functools.partial(ServiceProtocol, head_timeout_s=settings.body_timeout_s, newcomers=newcomers)
    config = uvicorn.Config(
        app,
        log_config=None,
        loop="uvloop",
        # uvicorn calls it, whatever it is; only the annotation asks for a class.
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        access_log=False,
        server_header=False,
        # An address is where a connection comes from, not what a header says.
        proxy_headers=False,
        log_level=settings.log_level,
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
    )
    server = DrainingServer(
        config,
        drain=app.state.drain,
        newcomers=newcomers,
        drain_s=settings.drain_s,
        grace_s=settings.shutdown_grace_s,
        stopped=stopped,
        on_started=on_started,
    )
    server.run(sockets=[listener])
    if server.force_exit:
        raise SystemExit(1)


def check_tls(settings: Settings) -> None:
    """MemoryPolicyError unless there are both files or none: half of TLS would be none."""
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise MemoryPolicyError("TLS needs MEMORYPOLICY_TLS_CERT_FILE and MEMORYPOLICY_TLS_KEY_FILE; one is missing")
    for path in (settings.tls_cert_file, settings.tls_key_file):
        if path is not None:
            path.open("rb").close()


def _exit_cleanly(signum: int, frame: object) -> NoReturn:
    raise SystemExit(0)
