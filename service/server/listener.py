"""The socket that connections come in by, and how it is closed without turning anybody away who is already in."""

import ctypes
import os
import select
import socket
import struct
from collections.abc import Iterable

# Linux's number; Python does not name it.
SO_ATTACH_FILTER = 26
# A classic BPF program over the TCP header: byte 13 holds the flags, bit 1 is SYN; 0 drops the packet, -1 keeps it.
# Each instruction: code, jump if true, jump if false, operand.
DROP_SYN = (
    (0x30, 0, 0, 13),
    (0x45, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def listen(host: str, port: int, *, unread_timeout_s: float) -> socket.socket:
    """A client that takes nothing of its answer for so long is cut off. OSError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(
            f"cannot listen on {host}:{port} ({cause}); free the port, or choose another with --port "
            "or MEMORYPOLICY_PORT"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Whoever is accepted inherits it. Without it a full window is probed for ever.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_timeout_s * 1000))
    return listener


def ignore_newcomers(listener: socket.socket) -> bool:
    """No connection begins any more, while those that the kernel knows go on; False where that cannot be had.

    Closing alone would reset whoever is connected and not yet accepted. Whoever knocks now hears nothing, knocks again
    a second later, and is refused once the socket is closed: no request was sent, so none is lost.
    """
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in DROP_SYN)
    buffer = ctypes.create_string_buffer(program, len(program))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(DROP_SYN), ctypes.addressof(buffer))
        )
    except OSError:
        return False
    return True


def is_readable(sockets: Iterable[int]) -> bool:
    """Whether a file descriptor has something to read: of a listener, a connection that nobody has accepted."""
    poll = select.poll()
    for descriptor in sockets:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
