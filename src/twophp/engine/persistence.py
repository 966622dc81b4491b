"""The outcome of what has run is not given up (A-108): writing it is tried again, however long that takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, TypeAlias, TypeVar

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.intent import Intent
from twophp.kernel.intents import PolicyOf
from twophp.observability.conditions import Conditions

AWAY: Final = (StoreUnavailable, CommitUnknown, StorePoisoned)  # It may be back at the next try.
CLOSED: Final = "store_closed"  # It will not be back.
FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 1.0
SHORT_PATIENCE_S: Final = 0.5

Patience: TypeAlias = Literal["endless", "usual", "short"]
"""How long a caller waits for an outcome that is known and cannot be made durable yet."""
Late: TypeAlias = Callable[[StoreError, Patience], None]
"""Gives the callers of this patience the error that keeps the outcome from becoming durable."""

T = TypeVar("T")


class Persistence:
    """Tries again until the store answers. ``usual`` patience is that of a repeat (A-33)."""

    def __init__(self, conditions: Conditions, policy_of: PolicyOf, replay_wait_ms: int | None) -> None:
        self._conditions = conditions
        self._policy_of = policy_of
        self._replay_wait_ms = replay_wait_ms

    async def go_on(
        self, error: StoreError, intent: Intent, late: Late, attempt: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Try ``attempt`` again until it succeeds, and return its result; ``error`` is how the first try ended.

        A caller that waits for the answer gets the error when its patience is over; the tries go on. Only a store that
        was closed for good ends them: then the process ends, and recovery finds the intent (A-34).
        """
        seconds = asyncio.get_running_loop().time
        began, pause_s, usual_s = seconds(), FIRST_PAUSE_S, self._usual_s(intent)
        while error.code != CLOSED:
            self._conditions.known(logging.WARNING, "settling will be tried again", error=error, intent=intent)
            waited_s = seconds() - began
            if waited_s >= SHORT_PATIENCE_S:
                late(error, "short")
            if waited_s >= usual_s:
                late(error, "usual")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                return await attempt()
            except AWAY as still:
                error = still
        raise error

    def _usual_s(self, intent: Intent) -> float:
        wait_ms = self._replay_wait_ms
        return (self._policy_of(intent).processing_timeout_ms if wait_ms is None else wait_ms) / 1_000
