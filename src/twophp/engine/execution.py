"""Runs the handler of a confirmed intent once and to its end, whether or not a client still waits.

From the point of no return on, processing belongs to no request: it runs in a task of its own, a client that hangs up
changes nothing (A-107), and the outcome is durable before any caller receives it. A caller that confirms the same
intent waits here for the same outcome. If another process runs the intent, the caller reads the store until the
outcome is there (A-33).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

from twophp.core.errors import KeyMissing, Refused, StoreError, Tampered
from twophp.core.intent import SETTLED, Intent
from twophp.core.intent_commands import Settle
from twophp.core.machine import Refuse
from twophp.core.outcome import has_succeeded
from twophp.core.phase import FENCE_LOST, IntentDecision
from twophp.engine.current import Join, RunningIntent, Trial, make_current
from twophp.engine.exchange import (
    StoredRequest,
    StoredResponse,
    bounded,
    decode_request,
    decode_response,
    encode,
    storable,
)
from twophp.engine.intents import FIRST_FENCE, Intents
from twophp.engine.obligations.bound import BoundObligations
from twophp.engine.obligations.flow import Obligations
from twophp.engine.persistence import AWAY, Patience, Persistence
from twophp.engine.recent import Recent
from twophp.engine.running import Execution, Handler, NameResource, Settled, Work
from twophp.engine.settlement import Settlement
from twophp.kernel.intents import PolicyOf
from twophp.observability.conditions import Conditions, ids_of, named
from twophp.ports import Statement

log: Final = logging.getLogger("twophp.execution")

RENEWED_TOGETHER: Final = 512  # As many as a store writes in one batch. The next ones wait until these are durable.
RECENT_BYTES: Final = 16 * 1024 * 1024
OVERHEAD_BYTES: Final = 1_024  # What a small entry costs beside its body.
FIRST_LOOK_S: Final = 0.005
LONGEST_LOOK_S: Final = 0.25


class Executions:
    """Everything this process is executing right now."""

    around: MutableMapping[str, Any] | None = None  # An edge keeps this for a handler that runs without a request.

    def __init__(
        self,
        intents: Intents,
        policy_of: PolicyOf,
        *,
        name_resource: NameResource,
        failed: StoredResponse,
        conflict: StoredResponse,
        indeterminate: StoredResponse,
        takes_statements: bool,
        max_result_bytes: int,
        replay_wait_ms: int | None = None,
        obligations: Obligations | None = None,
        join: Join | None = None,
    ) -> None:
        self._conditions = Conditions(log)
        self._persistence = Persistence(self._conditions, policy_of, replay_wait_ms)
        self._intents = intents
        self._policy_of = policy_of
        self._name_resource = name_resource
        self._failed = failed
        self._indeterminate = indeterminate
        self._takes_statements = takes_statements
        self._max_result_bytes = max_result_bytes
        self._obligations = obligations
        self._settlement = Settlement(
            intents,
            policy_of,
            self._persistence,
            self,
            name_resource=name_resource,
            failed=failed,
            conflict=conflict,
            indeterminate=indeterminate,
            max_result_bytes=max_result_bytes,
            obligations=obligations,
        )
        self._bind = None if obligations is None else self._bound
        self.crossing = 0  # Confirms that the store has; each may begin an execution here once it is durable.
        self._all_crossed: asyncio.Future[None] | None = None  # ``drain`` waits for the last of them.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._trial: Trial | None = None
        self._join = join
        self._running: dict[str, Execution] = {}  # By server correlation id, until it is settled.
        self._asked_about: dict[str, Intent] = {}
        self._executing: set[Execution] = set()  # Until its handler has returned. The loop keeps only weak references.
        self._tasks: set[asyncio.Task[None]] = set()  # Tasks of ``spawn``, which run beside the executions.
        self._requests: Recent[StoredRequest] = Recent(entries=4_096, size=RECENT_BYTES)
        self._answers: Recent[Settled] = Recent(entries=4_096, size=RECENT_BYTES)

    def begin(self, intent: Intent, handler: Handler, context: Context | None = None) -> Execution:
        """Start processing, in a task that no caller may cancel. The caller may wait for its outcome or leave.

        ``context`` has the variables that the handler runs with. It belongs to the handler from here on.
        """
        key = intent.server_correlation_id  # The provisional id as well: a client without another polls by it.
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._trial = loop, (loop, self._try_out, self._join)
        running = RunningIntent(
            intent,
            provisional_resource_id=key,
            takes_statements=self._takes_statements,
            bind=self._bind,
            trial=self._trial,
        )
        execution = Execution(intent, running, copy_context() if context is None else context)
        self._running[key] = execution
        self._executing.add(execution)  # Until ``_execute`` ends, which spares the loop a callback.
        execution.task = loop.create_task(self._execute(execution, handler), context=execution.context)
        return execution

    def crossed(self) -> None:
        """The store has answered one confirm, with a decision or an error."""
        self.crossing -= 1
        if self._all_crossed is not None and not self.crossing and not self._all_crossed.done():
            self._all_crossed.set_result(None)

    async def _try_out(self, intent: Intent, statements: tuple[Statement, ...]) -> None:
        """Try the statements. A store that is away does not judge them: the handler waits, as its settlement would."""
        attempt = partial(self._intents.try_out, intent, statements)
        try:
            await attempt()
        except AWAY as error:
            await self._persistence.go_on(error, intent, _nobody_waits, attempt)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no caller waits for. A shutdown waits until it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _bound(self, intent: Intent) -> BoundObligations:
        assert self._obligations is not None
        assert self._loop is not None
        timeout_ms = self._policy_of(intent).processing_timeout_ms
        return BoundObligations(self._obligations, intent, timeout_ms, self._loop)

    def expect(self, server_correlation_id: str, request: StoredRequest) -> None:
        """Keep a request in memory while it is registered: this process will most likely confirm it."""
        self._requests.keep(server_correlation_id, request, len(request.body) + OVERHEAD_BYTES)

    def known(self, server_correlation_id: str) -> Intent | None:
        """An intent that runs here, or has ended here a moment ago."""
        found = self._running.get(server_correlation_id) or self.recall(server_correlation_id)
        return None if found is None else found.intent

    def recall(self, server_correlation_id: str) -> Settled | None:
        """A recent outcome, without the store: a settled intent does not change. The caller checks whose it is."""
        return self._answers.get(server_correlation_id)

    async def outcome(self, intent: Intent, wait_ms: int) -> Settled | None:
        """Wait for the execution of an intent and return its outcome; None if that takes longer than ``wait_ms``."""
        if intent.phase in SETTLED:
            return await self.settled(intent)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                return await self._outcome(intent)
        except TimeoutError:
            return None

    async def renew(self) -> None:
        """Extend the leases of what runs here, some at a time; raise the first error after all were tried."""
        alive = self.alive()
        failed: list[BaseException] = []
        for start in range(0, len(alive), RENEWED_TOGETHER):
            some = alive[start : start + RENEWED_TOGETHER]
            renewals = (self._intents.renew(intent, self._policy_of) for intent in some)
            told = await asyncio.gather(*renewals, return_exceptions=True)
            failed += [error for error in told if isinstance(error, BaseException)]
            for intent, decision in zip(some, told, strict=True):
                if isinstance(decision, IntentDecision) and decision.code == FENCE_LOST:
                    self._fenced(intent)
        if failed:
            raise failed[0]

    def _fenced(self, intent: Intent) -> None:
        """Another process has taken the intent over: its handler here can write no more rows with it (``Refused``)."""
        execution = self._running.get(intent.server_correlation_id)
        if execution is not None and execution.intent.fence == intent.fence:
            execution.running.fenced()

    def alive(self) -> list[Intent]:
        """The intents that run here, or whose outcome is being asked for here."""
        return [*(execution.intent for execution in self._running.values()), *self._asked_about.values()]

    @contextmanager
    def kept_alive(self, intent: Intent) -> Iterator[None]:
        """Renew its lease with the others while the caller finds out how the intent ended, possibly for long (A-34)."""
        self._asked_about[intent.server_correlation_id] = intent
        try:
            yield
        finally:
            del self._asked_about[intent.server_correlation_id]

    async def drain(self, timeout_s: float) -> list[asyncio.Task[None]]:
        """Let what runs end, also what a handler does after its answer. Return the tasks that did not end in time.

        An intent without an outcome by then is left to recovery (A-34). As long as it has none, it has a task here, or
        the store has its confirm or its outcome.
        """
        seconds = asyncio.get_running_loop().time
        until = seconds() + timeout_s
        while True:
            left = self.left()
            ends = {execution.outcome(): execution for execution in self._running.values()}
            rest_s = until - seconds()
            if not (left or ends or self.crossing) or rest_s <= 0:
                return left
            waits: list[asyncio.Future[Any]] = [*left, *ends]
            if self.crossing:
                self._all_crossed = asyncio.get_running_loop().create_future()
                waits.append(self._all_crossed)
            await asyncio.wait(waits, timeout=rest_s)  # Then look again: more may have begun.
            for outcome, execution in ends.items():
                execution.forget(outcome)
                if outcome.done():
                    outcome.exception()  # Retrieved, or asyncio would log it: ``_end`` has logged it.

    def left(self) -> list[asyncio.Task[None]]:
        """The tasks that run."""
        # A task that was cancelled before it began has not removed itself in ``_execute``.
        self._executing = {execution for execution in self._executing if not execution.task.done()}
        beside = (task for task in self._tasks if not task.done())
        return [*(execution.task for execution in self._executing), *beside]

    async def settled(self, intent: Intent) -> Settled:
        """The stored outcome of an intent that has one."""
        recalled = self.recall(intent.server_correlation_id)
        if recalled is not None:
            return recalled
        stored = await self._intents.response(intent)
        if stored is None:  # It was settled together with its answer: only a change from outside removes one of them.
            raise Tampered("the stored answer is gone")
        return self.remember(Settled(intent, decode_response(stored)))

    def remember(self, settled: Settled) -> Settled:
        """Keep an outcome in memory for the repeats that come soon, and return it."""
        size = len(settled.response.body) + OVERHEAD_BYTES
        self._answers.keep(settled.intent.server_correlation_id, settled, size)
        return settled

    async def _outcome(self, intent: Intent) -> Settled:
        here = self._running.get(intent.server_correlation_id)
        if here is not None:
            outcome = here.outcome()
            try:
                settled = await outcome
            finally:
                here.forget(outcome)
            return Settled(settled.intent, storable(settled.response))
        return await self.decided_elsewhere(intent)

    async def decided_elsewhere(self, intent: Intent) -> Settled:
        """The outcome of an intent that another process executes or has settled, once it is there."""
        pause_s = FIRST_LOOK_S
        while True:
            found = await self._intents.look(intent.client_correlation_id, intent.server_correlation_id)
            if found is None:
                raise Refused("the intent is gone", code="unknown_intent")
            if found.phase in SETTLED:
                return await self.settled(found)
            await self._intents.news(found, pause_s)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)

    async def _execute(self, execution: Execution, handler: Handler) -> None:
        """The task of one execution: hand over the request, settle what is answered."""
        make_current(execution.running)
        intent = execution.intent
        try:
            request = self._requests.take(intent.server_correlation_id) or await self._stored_request(intent)
            work = Work(intent, request or _NO_REQUEST, execution.running)
            if request is not None:
                try:
                    await handler(work, partial(self._answered, execution, work, copy_context()))
                except StoreError as error:  # The handler uses our database, whose errors are known: no traceback.
                    where = intent.service_endpoint
                    self._conditions.known(
                        logging.WARNING, "the handler of %s failed", where, error=error, intent=intent
                    )
                    execution.raised = error
                except (Exception, SystemExit) as error:  # An exit would end the event loop and all its requests.
                    what = "failed" if execution.said is None else "raised after its answer was complete"
                    where = f"{intent.service_endpoint} {what}"
                    log.exception("the handler of %s (%s)", where, named(intent), extra=ids_of(intent))
                    execution.raised = error
                execution.is_over = True
                if execution.beside is not None:
                    execution.beside.cancel()
            if not execution.is_settling and not self._settle_at_once(execution, work):
                # An owner that took the intent over and cannot begin does not know what the one before has done.
                is_known = (
                    request is not None or intent.fence == FIRST_FENCE or self._settlement.leaves_no_trace(intent)
                )
                unsaid = self._failed if is_known else self._indeterminate
                self._end(execution, await self._settlement.settle(execution, work, execution.said or unsaid))
        except BaseException as error:
            if not execution.is_settling:
                self._end(execution, None, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._executing.discard(execution)

    def _settle_at_once(self, execution: Execution, work: Work) -> bool:
        """Submit an ordinary outcome; False if it is not ordinary. The flush calls ``_told``, and no task waits for it.

        Ordinary: the handler has answered and returned, and nothing else is to be settled with its answer. An outcome
        that the flush refuses is settled once more by ``_settled_beside``, which handles every other case.
        """
        response, running, intent = execution.said, execution.running, execution.intent
        if response is None or running.has_more_to_settle():
            return False
        try:
            succeeded = has_succeeded(response.status)
            settle = Settle(
                fence=intent.fence,
                succeeded=succeeded,
                status=response.status,
                resource_id=self._name_resource(work, response) if succeeded else None,
                indeterminate=response is self._indeterminate,
            )
            kept = storable(response)
            if len(kept.body) > self._max_result_bytes:
                kept = bounded(kept, self._max_result_bytes)
            told = partial(self._told, execution, work, kept)
            self._intents.settle_then(intent, settle, encode(kept), self._policy_of(intent), told)
        except Exception:  # noqa: BLE001 - The same error occurs again in ``_settle``, which handles it.
            return False
        return True

    def _told(
        self,
        execution: Execution,
        work: Work,
        kept: StoredResponse,
        decision: IntentDecision | None,
        error: Exception | None,
    ) -> None:
        """The flush reports what became of an outcome that was settled at once (``Store.submit``)."""
        intent, in_context = None if decision is None else decision.intent, execution.context.run
        try:
            if error is None and decision is not None and intent is not None and type(decision.verdict) is not Refuse:
                in_context(self._intents.observed, decision)  # As the execution ran, for observers.
                said, settled = execution.said, self.remember(Settled(intent, kept))
                if said is not None and kept is not said:
                    settled = Settled(intent, said)
                self._end(execution, settled)
                return
        except Exception:  # The callers that wait still receive the outcome, from ``_settled_beside``.
            log.exception("an outcome could not be told at once (%s)", named(execution.intent))
        in_context(self.spawn, self._settled_beside(execution, work))

    def _answered(self, execution: Execution, work: Work, context: Context, response: StoredResponse) -> None:
        """Most handlers return as soon as they have answered; the answer of one that goes on is settled beside it."""
        execution.said, execution.running.has_answered = response, True
        assert self._loop is not None
        execution.beside = self._loop.call_soon(self._settle_beside, execution, work, context=context)

    def _settle_beside(self, execution: Execution, work: Work) -> None:
        """Settle the answer, unless a block of business rows is open, as of a dependency that ends after the answer.

        Rows of such a block belong to this outcome, so the outcome waits until no block is open or the handler returns.
        """
        if execution.is_over:
            return
        assert self._loop is not None
        again = partial(self._loop.call_soon_threadsafe, self._settle_beside, execution, work, context=copy_context())
        if execution.running.close_unless_open(again):
            execution.is_settling = True
            self.spawn(self._settled_beside(execution, work))

    async def _settled_beside(self, execution: Execution, work: Work) -> None:
        assert execution.said is not None
        try:
            self._end(execution, await self._settlement.settle(execution, work, execution.said))
        except BaseException as error:  # Every caller that waits receives the error.
            self._end(execution, None, error)
            if not isinstance(error, Exception):
                raise

    def _end(self, execution: Execution, settled: Settled | None, error: BaseException | None = None) -> None:
        key = execution.intent.server_correlation_id
        if self._running.get(key) is execution:  # Not if another execution in this process has taken the intent over.
            del self._running[key]
        if error is not None and execution.running.own is not None:
            self.spawn(execution.running.own.roll_back())
        if isinstance(error, Exception):
            told = (named(execution.intent), error)
            log.error("an intent could not be settled and is left to recovery (%s): %s", *told)
        execution.ended(settled, error)

    async def _stored_request(self, intent: Intent) -> StoredRequest | None:
        """The registered request, or None. One that cannot be opened does not run: to wait would not mend it."""
        try:
            payload = await self._intents.payload(intent)
        except (KeyMissing, Tampered) as error:
            where = intent.service_endpoint
            message = "a request to %s cannot be opened and does not run (%s): %s"
            log.error(message, where, named(intent), error, extra=ids_of(intent))  # noqa: TRY400
            return None
        return None if payload is None else decode_request(payload)


def _nobody_waits(_error: StoreError, _patience: Patience) -> None:
    """The handler still runs, so no caller waits for this."""


_NO_REQUEST: Final = StoredRequest("", "", b"", b"", (), b"")
