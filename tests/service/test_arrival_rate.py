"""Requests per second become clients: Little's law at the fixed point."""

import pytest

from service.api.arrival_rate import Settled, clients_at, loads


def test_where_every_client_finishes_as_many_it_is_little_s_law_itself() -> None:
    # Every client finishes one request in 2 s: 12.5 a second are 25 in flight.
    clients = loads(1, 512)
    settled = clients_at(12.5, clients, [count / 2 for count in clients])
    assert (settled.clients, settled.sustainable_per_s) == (25, None)
    assert settled.latency_ms == pytest.approx(2000.0)


def test_between_two_loads_it_is_the_straight_line() -> None:
    # 16 clients finish 8 a second, 32 finish 12: 10 a second are half way, 24 clients, each for 2.4 s.
    settled = clients_at(10.0, [1, 16, 32, 64], [1.0, 8.0, 12.0, 12.5])
    assert (settled.clients, settled.sustainable_per_s) == (24, None)
    assert settled.latency_ms == pytest.approx(2400.0)


def test_a_rate_that_one_client_more_than_serves_is_one_client() -> None:
    assert clients_at(0.1, [1, 2, 4], [2.0, 4.0, 8.0]) == Settled(1, 500.0, None)


def test_what_no_number_of_clients_finishes_is_said_with_what_they_do_finish() -> None:
    # At best 5 a second, by 4 clients. 8 of them finish 4, so that one takes 2 s.
    settled = clients_at(6.0, [1, 2, 4, 8], [2.0, 4.0, 5.0, 4.0])
    assert settled == Settled(8, 2000.0, 5.0)


def test_a_rate_that_is_just_sustained_is_not_called_too_high() -> None:
    settled = clients_at(5.0, [1, 2, 4, 8], [2.0, 4.0, 5.0, 4.0])
    assert settled == Settled(4, 800.0, None)


def test_of_two_numbers_of_clients_that_finish_as_many_it_is_the_lesser() -> None:
    # Between 2 and 4 clients 4.5 a second are reached from below, between 4 and 8 left again.
    assert clients_at(4.5, [1, 2, 4, 8], [2.0, 4.0, 5.0, 4.0]).clients == 3


def test_loads_are_whole_ascending_and_reach_both_ends() -> None:
    found = loads(1, 512)
    assert (found[0], found[-1]) == (1, 512)
    assert found == sorted(set(found))
    assert len(found) <= 64
    assert loads(7, 7) == [7]
