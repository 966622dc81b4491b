"""One intent that is being executed: what its handler gets, and which callers wait for its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeAlias

import msgspec

from twophp.core.errors import StoreError
from twophp.core.intent import Intent
from twophp.engine.current import RunningIntent
from twophp.engine.exchange import StoredRequest, StoredResponse
from twophp.engine.persistence import Patience


class Work(msgspec.Struct, frozen=True):
    """What a handler gets."""

    intent: Intent
    request: StoredRequest
    running: RunningIntent


class Settled(msgspec.Struct, gc=False):
    """The end of an intent: the answer to every caller that asks."""

    intent: Intent
    response: StoredResponse
    wording: Any = None  # The answer in an edge's own form, made once for all replays.


class Execution:
    """One intent being executed. Callers wait here for its outcome, and may leave at any time."""

    said: StoredResponse | None = None  # What the handler answered, whether or not it can be settled.
    raised: Exception | SystemExit | None = None  # What the handler raised, instead of an answer or after it.
    is_over = False  # The handler has returned, which it may do long after it has answered.
    is_settling = False  # Its answer is being settled beside it.
    task: asyncio.Task[None]
    beside: asyncio.Handle | None = None  # Settles its answer unless the handler returns at once.
    _settled: Settled | None = None
    _error: BaseException | None = None

    def __init__(self, intent: Intent, running: RunningIntent, context: Context) -> None:
        self.intent = intent
        self.running = running
        self.context = context  # The context variables it runs with.
        self._waiting: dict[asyncio.Future[Any], Patience] = {}

    def tell(self, outcome: asyncio.Future[Any], patience: Patience) -> None:
        """Add a caller that waits and has a future already. Only before the outcome is known."""
        self._waiting[outcome] = patience

    def outcome(self, patience: Patience = "endless") -> asyncio.Future[Settled]:
        """The outcome, once it is durable, or the error that has kept it from that for longer than ``patience``.

        Each caller gets its own future: to cancel it ends the wait and not the work (A-107).
        """
        outcome: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = patience
        if self._settled is not None or self._error is not None:
            self.ended(self._settled, self._error)
        return outcome

    def forget(self, outcome: asyncio.Future[Settled]) -> None:
        """Forget a future that no caller waits for: a handler may run long and be asked about often."""
        self._waiting.pop(outcome, None)

    def late(self, error: StoreError, patience: Patience) -> None:
        """The outcome is not durable yet: callers of this ``patience`` get the error."""
        for outcome in [waiting for waiting, its in self._waiting.items() if its == patience]:
            del self._waiting[outcome]
            if not outcome.done():
                outcome.set_exception(type(error)(error.message, code=error.code))

    def ended(self, settled: Settled | None, error: BaseException | None = None) -> None:
        """Resolve the futures of all callers that wait."""
        self._settled, self._error = settled, error
        for outcome in self._waiting:
            if outcome.done():
                continue
            if settled is not None:
                outcome.set_result(settled)
            elif error is not None:
                outcome.set_exception(error)


Answered: TypeAlias = Callable[[StoredResponse], None]
Handler: TypeAlias = Callable[[Work, Answered], Awaitable[None]]
"""Does the work and gives its answer, once; it may then go on for a while. The answer does not wait for that."""
NameResource: TypeAlias = Callable[[Work, StoredResponse], str]
