"""Requests per second become clients: Little's law at the fixed point."""

import pytest

from service.api.arrival_rate import Settled, clients_at, loads


def test_a_latency_that_does_not_depend_on_the_load_is_little_s_law_itself() -> None:
    # 12.5 requests a second that take 2 s each are 25 in flight.
    clients = loads(1, 512)
    settled = clients_at(12.5, clients, [2000.0] * len(clients))
    assert (settled.clients, settled.sustainable_per_s) == (25, None)
    assert settled.latency_ms == pytest.approx(2000.0)


def test_where_every_client_adds_to_the_latency_the_fixed_point_is_found_between_the_loads() -> None:
    # W = 1 s + 50 ms · L and 10 a second: L = 10 + 0.5 · L, so L = 20 and W = 2 s.
    clients = [1, 16, 32, 64]
    settled = clients_at(10.0, clients, [1000.0 + 50.0 * count for count in clients])
    assert (settled.clients, settled.sustainable_per_s) == (20, None)
    assert settled.latency_ms == pytest.approx(2000.0)


def test_a_rate_that_one_client_more_than_serves_is_one_client() -> None:
    assert clients_at(0.1, [1, 2, 4], [500.0, 500.0, 500.0]) == Settled(1, 500.0, None)


def test_what_no_number_of_clients_finishes_is_said_with_what_they_do_finish() -> None:
    # At best 4 clients in 0.8 s: 5 a second. More of them take longer still.
    settled = clients_at(6.0, [1, 2, 4, 8], [500.0, 500.0, 800.0, 2000.0])
    assert settled.clients == 8
    assert settled.sustainable_per_s == pytest.approx(5.0)


def test_a_rate_that_is_just_sustained_is_not_called_too_high() -> None:
    settled = clients_at(5.0, [1, 2, 4, 8], [500.0, 500.0, 800.0, 2000.0])
    assert (settled.clients, settled.sustainable_per_s) == (4, None)
    assert settled.latency_ms == pytest.approx(800.0)


def test_loads_are_whole_ascending_and_reach_both_ends() -> None:
    found = loads(1, 512)
    assert (found[0], found[-1]) == (1, 512)
    assert found == sorted(set(found))
    assert len(found) <= 64
    assert loads(7, 7) == [7]
