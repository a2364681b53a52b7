"""The end of a listening socket: whoever is in stays in, and nobody else comes."""

import socket

import pytest

from service.server.listener import ignore_newcomers, is_readable, listen


def test_newcomers_are_ignored_and_whoever_is_in_goes_on() -> None:
    with listen("127.0.0.1", 0, unread_timeout_s=10) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            assert is_readable([listener.fileno()])
            assert ignore_newcomers(listener)
            with socket.socket() as late:
                late.settimeout(0.5)
                # Neither refused nor accepted.
                with pytest.raises(TimeoutError):
                    late.connect(address)
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"question")
                assert accepted.recv(8) == b"question"
                accepted.sendall(b"answer")
                assert early.recv(6) == b"answer"
                assert not is_readable([listener.fileno()])
                listener.close()
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address)
                accepted.sendall(b"more")
                assert early.recv(4) == b"more"


def test_a_socket_that_takes_no_filter_is_left_as_it_is() -> None:
    with listen("127.0.0.1", 0, unread_timeout_s=10) as listener:
        listener.close()
        assert not ignore_newcomers(listener)
