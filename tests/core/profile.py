"""How Hypothesis runs here: the same examples every time, no database, no clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

STEADY = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

WALK_STEPS = 100_000
"""How many steps the seeded walk of each machine takes beside Hypothesis (issue 2: at least this many in CI)."""

# Which examples come also depends on what else the process has imported, so there are enough of them for any company.
STATEFUL = settings(STEADY, max_examples=250, stateful_step_count=50)
