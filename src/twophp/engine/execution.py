"""Running what was confirmed: once, to its end, whoever is still listening.

From the point of no return on, processing is nobody's request any more: it runs in a task of its own, a client that
hangs up changes nothing (A-107), and its outcome is durable before anybody hears of it. Whoever else confirms the same
intent waits here for the same outcome, or, if another process runs it, asks the store until it is there (A-33).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from twophp.core.errors import Refused, StoreError, StoreUnavailable, Tampered, TwoPHPError
from twophp.core.intent import SETTLED, Intent
from twophp.core.phase import FENCE_LOST, Decision, Settle
from twophp.core.records import Key
from twophp.engine.current import RunningIntent, executing
from twophp.engine.exchange import (
    StoredRequest,
    StoredResponse,
    bounded,
    decode_request,
    decode_response,
    encode,
    storable,
)
from twophp.engine.intents import Intents, PolicyOf, key_of
from twophp.engine.recent import Recent
from twophp.ports import MintId, Statement

log: Final = logging.getLogger("twophp.execution")

SETTLE_TRIES: Final = 5
RECENT_BYTES: Final = 16 * 1024 * 1024
OVERHEAD_BYTES: Final = 1_024  # What a small entry costs beside its body.
FIRST_LOOK_S: Final = 0.005
LONGEST_LOOK_S: Final = 0.25

FAILURE_STATUS: Final = 400  # below it the handler succeeded.


class Work(msgspec.Struct, frozen=True):
    """What a handler is given."""

    intent: Intent
    request: StoredRequest
    running: RunningIntent


class Settled(msgspec.Struct, frozen=True):
    """The end of an intent: the answer to everybody who asks."""

    intent: Intent
    response: StoredResponse


Handler: TypeAlias = Callable[[Work], Awaitable[StoredResponse]]
NameResource: TypeAlias = Callable[[Work, StoredResponse], str]


class Executions:
    """Everything this process is executing right now."""

    def __init__(
        self,
        intents: Intents,
        policy_of: PolicyOf,
        *,
        name_resource: NameResource,
        failed: StoredResponse,
        mint: MintId,
        takes_statements: bool,
        max_result_bytes: int,
    ) -> None:
        self._intents = intents
        self._policy_of = policy_of
        self._name_resource = name_resource
        self._failed = failed
        self._mint = mint
        self._takes_statements = takes_statements
        self._max_result_bytes = max_result_bytes
        self._running: dict[Key, tuple[Intent, asyncio.Task[Settled]]] = {}
        self._requests: Recent[StoredRequest] = Recent(entries=4_096, size=RECENT_BYTES)
        self._answers: Recent[Settled] = Recent(entries=4_096, size=RECENT_BYTES)

    def begin(self, intent: Intent, handler: Handler) -> tuple[RunningIntent, asyncio.Task[Settled]]:
        """Start processing; the caller may wait for the task or leave. Always shield it: it must not be cancelled."""
        provisional = intent.resource_id or self._mint()
        running = RunningIntent(intent, provisional_resource_id=provisional, takes_statements=self._takes_statements)
        key = key_of(intent)
        task = asyncio.get_running_loop().create_task(self._execute(intent, running, handler))
        self._running[key] = (intent, task)
        task.add_done_callback(lambda done: self._ended(key, done))
        return running, task

    def expect(self, intent: Intent, request: StoredRequest) -> None:
        """A registered request that will most likely be confirmed here: keep it at hand."""
        self._requests.keep(key_of(intent), request, len(request.body) + OVERHEAD_BYTES)

    def recall(self, key: Key) -> Settled | None:
        """A recent outcome, without asking the store: what is settled does not change."""
        return self._answers.get(key)

    async def outcome(self, intent: Intent, wait_ms: int) -> Settled | None:
        """How an intent ended, waiting for whoever executes it; None if that takes longer than ``wait_ms``."""
        if intent.phase in SETTLED:
            return await self.settled(intent)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                return await self._outcome(intent)
        except TimeoutError:
            return None

    async def renew(self) -> None:
        """Extend the lease of everything that still runs here."""
        alive = [intent for intent, _task in self._running.values()]
        await asyncio.gather(*(self._intents.renew(intent, self._policy_of) for intent in alive))

    async def drain(self, timeout_s: float) -> int:
        """Let what runs come to its end; how many did not make it in time. Those are left to recovery (A-34)."""
        tasks = [task for _intent, task in self._running.values()]
        if not tasks:
            return 0
        _done, left = await asyncio.wait(tasks, timeout=timeout_s)
        return len(left)

    async def settled(self, intent: Intent) -> Settled:
        """The stored outcome of an intent that has one."""
        recalled = self.recall(key_of(intent))
        if recalled is not None:
            return recalled
        stored = await self._intents.response(intent)
        if stored is None:  # It was settled together with its answer; whoever removed one of them was not us.
            raise Tampered("the stored answer is gone")
        return self._remember(Settled(intent, decode_response(stored)))

    def _remember(self, settled: Settled) -> Settled:
        self._answers.keep(key_of(settled.intent), settled, len(settled.response.body) + OVERHEAD_BYTES)
        return settled

    def _ended(self, key: Key, task: asyncio.Task[Settled]) -> None:
        held = self._running.get(key)
        if held is not None and held[1] is task:  # Not if somebody here has taken the intent over.
            del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an intent could not be settled and is left to recovery: %s", error)

    async def _outcome(self, intent: Intent) -> Settled:
        here = self._running.get(key_of(intent))
        if here is not None:
            settled = await asyncio.shield(here[1])
            return Settled(settled.intent, storable(settled.response))
        return await self._decided_elsewhere(intent)

    async def _decided_elsewhere(self, intent: Intent) -> Settled:
        pause_s = FIRST_LOOK_S
        while True:
            found = await self._intents.look(intent.client_correlation_id, intent.server_correlation_id)
            if found is None:
                raise Refused("the intent is gone", code="unknown_intent")
            if found.phase in SETTLED:
                return await self.settled(found)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)

    async def _execute(self, intent: Intent, running: RunningIntent, handler: Handler) -> Settled:
        request = self._requests.take(key_of(intent)) or await self._stored_request(intent)
        work = Work(intent, request or _NO_REQUEST, running)
        if request is None:
            return await self._settle(intent, work, self._failed)
        with executing(running):
            try:
                response = await handler(work)
            except Exception:
                log.exception("the handler of %s failed", intent.service_endpoint, extra=ids_of(intent))
                response = self._failed
        return await self._settle(intent, work, response)

    async def _stored_request(self, intent: Intent) -> StoredRequest | None:
        payload = await self._intents.payload(intent)
        return None if payload is None else decode_request(payload)

    async def _settle(self, intent: Intent, work: Work, response: StoredResponse) -> Settled:
        try:
            return await self._write(intent, work, response)
        except StoreUnavailable:
            raise
        except StoreError as error:
            if error.code == "commit_unknown" or not work.running.statements:
                raise
            # The business rows were refused, and with them the commit: nothing happened, and that is the outcome.
            log.warning("the business statements of %s were refused: %s", intent.service_endpoint, error)
            work.running.statements.clear()
            return await self._write(intent, work, self._failed)

    async def _write(self, intent: Intent, work: Work, response: StoredResponse) -> Settled:
        succeeded = response.status < FAILURE_STATUS
        settle = Settle(
            fence=intent.fence,
            succeeded=succeeded,
            status=response.status,
            resource_id=self._name_resource(work, response) if succeeded else None,
            transaction_reference=work.running.transaction_reference,
        )
        statements = tuple(work.running.statements) if succeeded else ()
        kept = bounded(storable(response), self._max_result_bytes)
        decision = await self._persistently(intent, settle, encode(kept), statements)
        assert decision.intent is not None
        if decision.code == FENCE_LOST:  # Somebody took over; what they decided is what is true.
            return await self._decided_elsewhere(decision.intent)
        if decision.code is not None:
            raise TwoPHPError(f"the outcome was refused: {decision.code}", code=decision.code)
        self._remember(Settled(decision.intent, kept))
        return Settled(decision.intent, response)

    async def _persistently(
        self, intent: Intent, settle: Settle, response: bytes, statements: tuple[Statement, ...]
    ) -> Decision:
        """A-108: the outcome is written if there is any way to; a store that is away for a moment is no reason."""
        pause_s = FIRST_LOOK_S
        for _try in range(SETTLE_TRIES - 1):
            try:
                return await self._intents.settle(intent, settle, response, self._policy_of, statements=statements)
            except StoreUnavailable as error:
                log.warning("settling will be tried again: %s", error)
                await asyncio.sleep(pause_s)
                pause_s *= 4
        return await self._intents.settle(intent, settle, response, self._policy_of, statements=statements)


_NO_REQUEST: Final = StoredRequest("", "", b"", b"", (), b"")


def ids_of(intent: Intent) -> dict[str, str]:
    """Both correlation ids, for every log line about an intent."""
    return {
        "client_correlation_id": intent.client_correlation_id,
        "server_correlation_id": intent.server_correlation_id,
    }
