"""What has run is not given up (A-108): its outcome is written if there is any way to, however long that takes."""

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
"""How long somebody waits for an outcome that is known and cannot be made durable yet."""
Late: TypeAlias = Callable[[StoreError, Patience], None]
"""Tells whoever is no more patient than this that it is not durable yet."""

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
        """What ``attempt`` brings in the end; ``error`` is how the first one ended.

        Whoever waits for the answer is told when the patience is over; the trying goes on. Only a store that was closed
        for good ends it: then the process ends, and recovery finds the intent (A-34).
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
