"""One intent that is being executed: what its handler is given, and who waits for its outcome."""

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
    """What a handler is given."""

    intent: Intent
    request: StoredRequest
    running: RunningIntent


class Settled(msgspec.Struct, gc=False):
    """The end of an intent: the answer to everybody who asks."""

    intent: Intent
    response: StoredResponse
    wording: Any = None  # What an edge makes of it, kept here so that every replay is spared the making.


class Execution:
    """One intent being executed. Whoever wants to know how it ends waits here, and may leave at any time."""

    said: StoredResponse | None = None  # What the handler answered, whatever becomes of it.
    raised: Exception | SystemExit | None = None  # What it raised, instead or afterwards.
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
        """Somebody waits, who has a future already. Only before the outcome is known."""
        self._waiting[outcome] = patience

    def outcome(self, patience: Patience = "endless") -> asyncio.Future[Settled]:
        """The outcome, once it is durable, or what keeps it from becoming so for longer than one is patient.

        A future of the caller's own: to cancel it ends the waiting and not the work (A-107).
        """
        outcome: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = patience
        if self._settled is not None or self._error is not None:
            self.ended(self._settled, self._error)
        return outcome

    def forget(self, outcome: asyncio.Future[Settled]) -> None:
        """Nobody waits for this one any more. A handler may run for long, and be asked about all the time."""
        self._waiting.pop(outcome, None)

    def late(self, error: StoreError, patience: Patience) -> None:
        """The outcome is not durable yet: whoever is no more patient than this is told so."""
        for outcome in [waiting for waiting, its in self._waiting.items() if its == patience]:
            del self._waiting[outcome]
            if not outcome.done():
                outcome.set_exception(type(error)(error.message, code=error.code))

    def ended(self, settled: Settled | None, error: BaseException | None = None) -> None:
        """Tell everybody."""
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
"""Does the work and says what it answers, once; it may then go on for a while. The answer does not wait for that."""
NameResource: TypeAlias = Callable[[Work, StoredResponse], str]
