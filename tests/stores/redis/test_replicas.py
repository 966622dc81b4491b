"""The tests of replicas on PostgreSQL, with replicas on Redis."""

from __future__ import annotations

from tests.stores.postgres.test_replicas import (
    pytestmark,
    test_a_replica_that_stood_still_longer_than_its_lease_is_fenced,
    test_of_many_confirms_at_four_replicas_one_runs,
    test_phase_two_may_come_to_another_replica,
    test_what_a_killed_replica_executed_another_one_recovers,
)

__all__ = [
    "pytestmark",
    "test_a_replica_that_stood_still_longer_than_its_lease_is_fenced",
    "test_of_many_confirms_at_four_replicas_one_runs",
    "test_phase_two_may_come_to_another_replica",
    "test_what_a_killed_replica_executed_another_one_recovers",
]
