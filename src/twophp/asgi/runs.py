"""Runs the application for an intent that was confirmed, and words the answer that tells its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextvars import Context, copy_context
from typing import Final

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Scope
from twophp.asgi.replay import Replay, live_scope, replayed_scope
from twophp.asgi.server import Server
from twophp.asgi.shapes import Shape
from twophp.core.errors import CommitUnknown, Refused, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.intent_commands import Confirm
from twophp.core.machine import Goto
from twophp.core.phase import IntentDecision
from twophp.engine.running import Answered, Execution, Settled, Work
from twophp.kernel.intents import NotNamed
from twophp.observability.conditions import Conditions

log: Final = logging.getLogger("twophp.server")

NOT_SETTLED: Final = "not_settled"
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_ASYNC, _TRANSPARENT, _PROCESSING = Mode.ASYNC, Mode.TRANSPARENT, Phase.PROCESSING


class NotRegistered(Exception):
    """A plain request could not be recorded; its cause says why, and nothing has run."""


class Runs:
    """What happens to an intent past the point of no return, for one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = server.settings
        self._app = server.app
        self._executions = server.executions
        self._passes_through = server.settings.success_status == "passthrough"
        self._conditions = Conditions(log)
        self.crossed, self.observed = server.executions.crossed, server.intents.observed

    def begin(self, intent: Intent, scope: Scope) -> Execution:
        """Run the application for a request that the server itself confirms: with its own scope."""

        def handler(work: Work, answered: Answered) -> Awaitable[None]:
            return Replay(self._app, live_scope(scope, work), work.request.body, answered).run()

        return self._executions.begin(intent, handler)

    def replay(self, intent: Intent, scope: Scope, shape: Shape, context: Context) -> Execution:
        """Run the application for what was registered, in the surroundings of the request that confirmed it."""

        def handler(work: Work, answered: Answered) -> Awaitable[None]:
            app_scope = replayed_scope(scope, work, shape.live(scope["headers"]))
            return Replay(self._app, app_scope, work.request.body, answered).run()

        return self._executions.begin(intent, handler, context)

    def cross(self, command: Confirm, scope: Scope, shape: Shape) -> Crossing:
        """Confirm; what was confirmed runs, whether or not its client still waits (A-107)."""
        crossing = Crossing(self, command, scope, shape)
        self._executions.crossing += 1
        try:
            self._server.intents.confirm_then(command, self._server.policy_of, crossing)
        except Exception as error:  # noqa: BLE001 - Refused at once: as if by the flush.
            crossing(None, error)
        return crossing

    async def resolve(self, crossing: Crossing, command: Confirm, error: Exception) -> None:
        """The flush could not tell whether the confirm was written, or lacked a key: confirm once more (A-42)."""
        try:
            decision = await self._server.intents.confirm(command, self._server.policy_of, again=True)
        except StoreUnavailable as still:
            # The confirm may have been written: its outcome stays unknown.
            crossing.failed(error if isinstance(error, CommitUnknown) else still)
        except Exception as worse:  # noqa: BLE001 - The request that waits receives the error.
            crossing.failed(worse)
        else:
            crossing.decided(decision)

    def lost(self, error: Exception) -> None:
        """Log an error that no request waits for. Whether something is to be run is unknown: a sweep will find out."""
        if isinstance(error, TwoPHPError):
            self._conditions.known(logging.WARNING, "a request that was cut off cannot be gone on with", error=error)
        else:
            log.error("a request that was cut off cannot be gone on with", exc_info=error)

    def resolving(self, crossing: Crossing, command: Confirm, error: Exception) -> None:
        """Run ``resolve`` in a task of its own, which a shutdown waits for."""
        self._executions.spawn(self.resolve(crossing, command, error))

    async def run(self, intent: Intent, scope: Scope) -> Answer:
        """Run what is past the point of no return. A client that leaves cancels the wait, never the work (A-107)."""
        execution = self.begin(intent, scope)
        try:
            settled = await execution.outcome("usual")
        except StoreError as error:
            raise not_settled() from error
        if intent.mode is _TRANSPARENT and execution.said is None and execution.raised is not None:
            raise execution.raised  # The client does not know 2PHP: the server answers as it would without us.
        return self.final(settled, execution)

    async def run_plain(self, intent: Intent, scope: Scope) -> Answer:
        """Run a recorded plain request. Its client is answered also if its outcome cannot be recorded (A-37)."""
        execution = self.begin(intent, scope)
        try:
            settled: Settled | None = await execution.outcome("short")
        except StoreError as error:
            if execution.said is None and execution.raised is None:
                raise NotRegistered from error  # Not begun, so the application can still serve it.
            if execution.running.has_rows:  # The business rows were to be written with the outcome, and are not.
                raise not_settled() from error
            self._conditions.known(
                logging.ERROR, "the outcome of a plain request is not recorded yet", error=error, intent=intent
            )
            settled = None
        if execution.said is None and execution.raised is not None:
            raise execution.raised
        response = execution.said if settled is None else settled.response
        assert response is not None
        # The settled answer differs from ``said`` if the business rows were refused.
        return by_run(execution, answers.as_it_is(response))

    async def told_later(self, decision: IntentDecision, intent: Intent, scope: Scope) -> Answer:
        """A confirm whose request does not wait for the handler it began: asynchronous, or not the first (T1 row 8)."""
        if not isinstance(decision.verdict, Goto) and (intent.phase is not _PROCESSING or intent.mode is not _ASYNC):
            settled = await self.outcome(intent)
            if settled is not None:
                return self.final(settled)
        return answers.accepted(intent, scope.get("root_path", ""))

    async def outcome(self, intent: Intent) -> Settled | None:
        """The outcome of an intent that is or was executed here or elsewhere; None if it takes too long."""
        try:
            return await self._server.outcome(intent)
        except StoreError as error:
            raise not_settled() from error

    def final(self, settled: Settled, run: Execution | None = None) -> Answer:
        """The answer for the end of an intent, worded once; with the ``run`` that this request waited for, if any."""
        answer: Answer | None = settled.wording
        if answer is None:
            answer = settled.wording = self._worded(settled)
        return answer if run is None else by_run(run, answer)

    def _worded(self, settled: Settled) -> Answer:
        intent, settings = settled.intent, self._settings
        if intent.mode is _TRANSPARENT and settings.expose_server_id:  # draft §5.5.6: MAY
            return answers.as_it_is(settled.response, server_correlation_id=intent.server_correlation_id)
        return answers.final(settled, passthrough=self._passes_through)


def by_run(run: Execution, answer: Answer) -> Answer:
    """The same answer, for the request that waited for this run of the application."""
    return Answer(answer.status, answer.headers, answer.body, answer.framed, run)


class Crossing:
    """A confirm on its way: the flush calls it, and it starts the handler at once; no task is woken in between.

    ``told`` gets the outcome of what runs here for this request, whose ``execution`` is set by then. It gets the
    decision where there is nothing to run, or where the request does not wait. The flush that settles resolves it.
    """

    __slots__ = ("_command", "_context", "_runs", "_scope", "_shape", "execution", "told")

    def __init__(self, runs: Runs, command: Confirm, scope: Scope, shape: Shape) -> None:
        self._runs = runs
        self._command = command
        self._scope = scope
        self._shape = shape
        self._context = copy_context()  # The handler runs with the variables of the request that confirmed it.
        self.told: asyncio.Future[Settled | IntentDecision] = asyncio.get_running_loop().create_future()
        self.execution: Execution | None = None

    def __call__(self, decision: IntentDecision | None, error: Exception | None) -> None:
        """Take the store's answer: a decision or an error."""
        try:
            if decision is not None:
                self._context.run(self._runs.observed, decision)
                self.decided(decision)
            elif isinstance(error, CommitUnknown | StorePoisoned | NotNamed):
                self._context.run(self._runs.resolving, self, self._command, error)
            elif error is not None:
                self.failed(error)
        except Exception as worse:  # noqa: BLE001 - The request that waits receives the error.
            self.failed(worse)
        finally:
            self._runs.crossed()

    def decided(self, decision: IntentDecision) -> None:
        """Run what is ours to run, or give the decision to the request that waits."""
        intent, told = decision.intent, self.told
        begins = type(decision.verdict) is Goto and intent is not None
        waits = begins and intent is not None and intent.mode is not _ASYNC
        if not waits and not told.done():
            told.set_result(decision)  # Before the handler begins: a 202 does not wait for it.
        if begins and intent is not None:
            execution = self._runs.replay(intent, self._scope, self._shape, self._context)
            if waits and not told.done():
                self.execution = execution
                execution.tell(told, "usual")

    def failed(self, error: Exception) -> None:
        """Give the error to the request that waits, or log it if none does."""
        if self.told.done():
            self._runs.lost(error)
        else:
            self.told.set_exception(error)


def not_settled() -> Refused:
    """A-108: a handler has run, so the answer must not be the 503 that says nothing was registered."""
    return Refused("the outcome is not durable yet", code=NOT_SETTLED)
