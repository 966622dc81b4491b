"""The obligations of one intent, for the handler that executes it.

    intent = current_intent()
    oid = await intent.obligations.reserve("publish", {"key": "k1"})

They are settled in the very transaction that settles the intent: COMMITTED commits every one, FAILED rolls all of them
back (Part 3). A reserve is admitted only while the intent is PROCESSING under the handler's own fence, which is checked
in the same transaction: a handler that was taken for dead, or has answered already, can bind nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from twophp.core.errors import CommitUnknown, Refused
from twophp.core.intent import Intent, Phase
from twophp.core.obligation import Decision, Rollback, admitted
from twophp.engine.obligations.changes import Held
from twophp.engine.obligations.flow import Obligations
from twophp.engine.obligations.rules import milliseconds
from twophp.kernel.intents import key_of
from twophp.ports import Change, Records

T = TypeVar("T")


class BoundObligations:
    """What a handler may reserve. Use it from any task; ``blocking`` is for handlers that run in a thread."""

    def __init__(
        self, obligations: Obligations, intent: Intent, timeout_ms: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._obligations = obligations
        self._intent = intent
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._held: dict[str, str] = {}  # Flow by id, of everything that is to be settled with the intent.
        self._unsure: set[str] = set()  # Those of them whose reserve has an unknown outcome.
        self._under_way = 0
        self._idle = asyncio.Event()
        self._is_closed = False

    async def reserve(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> str:
        """Record a tentative effect; its id. By default it may last for the endpoint's processing timeout (A-81)."""
        return await self._on_loop(self._reserve(flow, payload, trace_id, key, timeout_secs))

    async def rollback(self, obligation_id: str, trace_id: str | None = None) -> Decision:
        """Give one up before the intent is settled."""
        return await self._on_loop(self._roll_back(obligation_id, trace_id))

    @property
    def blocking(self) -> BlockingObligations:
        """The same two calls for a handler that runs in a thread of its own."""
        return BlockingObligations(self, self._loop)

    async def close(self) -> Held:
        """Let nothing more be bound, wait for what is being reserved, and return what is to be settled."""
        self._is_closed = True
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        for obligation_id in tuple(self._unsure):  # A miss is final: ``is_there`` takes its turn.
            if not await self._obligations.is_there(obligation_id):
                del self._held[obligation_id]
            self._unsure.discard(obligation_id)
        return tuple(self._held.items())

    async def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """A store belongs to one loop: a caller on another loop waits for the coroutine there."""
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _reserve(
        self, flow: str, payload: Any, trace_id: str | None, key: str | None, timeout_secs: float | None
    ) -> str:
        if self._is_closed:
            raise _not_running()
        intent = self._intent
        timeout_ms = self._timeout_ms if timeout_secs is None else milliseconds(timeout_secs)
        trace = intent.server_correlation_id if trace_id is None else trace_id
        wanted = self._obligations.reserving(flow, payload, trace, key, timeout_ms, intent.server_correlation_id)
        wanted.keys = (*wanted.keys, key_of(intent))
        wanted.then = self._only_while_it_runs
        obligation_id = wanted.keys[0].values[0]
        self._under_way += 1
        try:
            self._held[obligation_id] = flow
            admitted(await self._obligations.make(wanted), f"flow {flow!r}")
        except (CommitUnknown, asyncio.CancelledError):
            self._unsure.add(obligation_id)  # It may have been written, or may still be; ``close`` finds out.
            raise
        except Exception:
            del self._held[obligation_id]  # Nothing was written, so there is nothing to settle.
            raise
        finally:
            self._under_way -= 1
            self._idle.set()
        return obligation_id

    def _only_while_it_runs(self, records: Records, made: Change) -> Change:
        found: Intent | None = records.get(key_of(self._intent))
        if found is None or found.phase is not Phase.PROCESSING or found.fence != self._intent.fence:
            raise _not_running()
        return made

    async def _roll_back(self, obligation_id: str, trace_id: str | None) -> Decision:
        trace = self._intent.server_correlation_id if trace_id is None else trace_id
        command = Rollback(trace_id=trace)
        wanted = self._obligations.settling(obligation_id, command)
        decision = admitted(await self._obligations.make(wanted), f"obligation {obligation_id}")
        self._held.pop(obligation_id, None)
        self._unsure.discard(obligation_id)
        return decision


class BlockingObligations:
    """``BoundObligations`` for a thread that is not the event loop's."""

    def __init__(self, bound: BoundObligations, loop: asyncio.AbstractEventLoop) -> None:
        self._bound = bound
        self._loop = loop

    def reserve(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> str:
        """See ``BoundObligations.reserve``."""
        return self._run(self._bound.reserve(flow, payload, trace_id, key=key, timeout_secs=timeout_secs))

    def rollback(self, obligation_id: str, trace_id: str | None = None) -> Decision:
        """See ``BoundObligations.rollback``."""
        return self._run(self._bound.rollback(obligation_id, trace_id))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _not_running() -> Refused:
    return Refused("the intent is not, or no longer, executed here; nothing was reserved", code="intent_not_running")
