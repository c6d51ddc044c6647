"""The count of open connections over several processes."""

from __future__ import annotations

import os

from turbofno.service.connections import OpenConnections, shared_counts


def test_each_process_counts_its_own_and_knows_all() -> None:
    counts = shared_counts(3)
    first, third = (OpenConnections(os.dup(counts), own) for own in (0, 2))
    assert [first.opened(), third.opened(), first.opened()] == [1, 2, 3]
    first.closed()
    assert third.opened() == 3
    os.close(counts)


def test_the_connections_of_a_process_that_ended_count_no_more() -> None:
    counts = shared_counts(2)
    ended, other = (OpenConnections(os.dup(counts), own) for own in (0, 1))
    ended.opened()
    ended.opened()
    OpenConnections(os.dup(counts), 0)
    assert other.opened() == 1
    os.close(counts)


def test_one_process_needs_no_shared_memory() -> None:
    one, another = OpenConnections(), OpenConnections()
    assert [one.opened(), one.opened(), another.opened()] == [1, 2, 1]
