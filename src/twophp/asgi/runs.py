"""Running the application for an intent that was confirmed, and the words that its outcome is told in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from msgspec.structs import replace

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Scope
from twophp.asgi.replay import Replay, live_scope, replayed_scope
from twophp.asgi.server import Server
from twophp.asgi.shapes import Shapes
from twophp.core.errors import Refused, StoreError
from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Mode, Phase
from twophp.core.machine import Goto
from twophp.core.phase import Decision
from twophp.engine.conditions import Conditions
from twophp.engine.execution import Answered, Execution, Settled, Work

log: Final = logging.getLogger("twophp.server")

NOT_SETTLED: Final = "not_settled"
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_ASYNC, _TRANSPARENT, _PROCESSING = Mode.ASYNC, Mode.TRANSPARENT, Phase.PROCESSING


class NotRegistered(Exception):
    """A plain request could not be recorded; its cause says why, and nothing has run."""


class Runs:
    """What happens to an intent past the point of no return, for one server."""

    def __init__(self, server: Server, shapes: Shapes) -> None:
        self._server = server
        self._settings = server.settings
        self._executions = server.executions
        self._shapes = shapes
        self._conditions = Conditions(log)

    def begin(self, intent: Intent, scope: Scope) -> Execution:
        """Run the application."""

        def handler(work: Work, answered: Answered) -> Awaitable[None]:
            if intent.mode in CONFIRMED_BY_SERVER:
                app_scope = live_scope(scope, work)
            else:
                app_scope = replayed_scope(scope, work, self._shapes)
            return Replay(self._server.app, app_scope, work.request.body, answered).run()

        return self._executions.begin(intent, handler)

    async def run(self, intent: Intent, scope: Scope) -> Answer:
        """Past the point of no return. A client that leaves cancels the waiting, never the work (A-107)."""
        execution = self.begin(intent, scope)
        try:
            settled = await execution.outcome("usual")
        except StoreError as error:
            raise _not_settled() from error
        if intent.mode is _TRANSPARENT and execution.said is None and execution.raised is not None:
            raise execution.raised  # To a client that changed nothing, as it always was: its server's to answer.
        return replace(self.final(settled), run=execution)

    async def run_plain(self, intent: Intent, scope: Scope) -> Answer:
        """A plain request, recorded. If its outcome cannot be, that is our trouble and not the caller's (A-37)."""
        execution = self.begin(intent, scope)
        try:
            settled: Settled | None = await execution.outcome("short")
        except StoreError as error:
            if execution.said is None and execution.raised is None:
                raise NotRegistered from error  # Not even begun: the application can still have it.
            if execution.running.statements:  # The business rows were to be written with it, and are not.
                raise _not_settled() from error
            self._conditions.known(
                logging.ERROR, "the outcome of a plain request is not recorded yet", error=error, intent=intent
            )
            settled = None
        if execution.said is None and execution.raised is not None:
            raise execution.raised
        response = execution.said if settled is None else settled.response
        assert response is not None
        # Not what was said, if the business rows were refused.
        return replace(answers.as_it_is(response), run=execution)

    async def told_later(self, decision: Decision, intent: Intent, scope: Scope) -> Answer:
        """A confirm whose request does not run the handler itself: asynchronous, or not the first (T1 row 8)."""
        if isinstance(decision.verdict, Goto):
            self.begin(intent, scope)
        elif intent.phase is not _PROCESSING or intent.mode is not _ASYNC:
            settled = await self.outcome(intent)
            if settled is not None:
                return self.final(settled)
        return answers.accepted(intent, scope.get("root_path", ""))

    async def outcome(self, intent: Intent) -> Settled | None:
        """How an intent that somebody executes, or has executed, ends; None if that takes too long."""
        try:
            return await self._server.outcome(intent)
        except StoreError as error:
            raise _not_settled() from error

    def final(self, settled: Settled) -> Answer:
        """What the end of an intent is answered with, put into words once."""
        if settled.wording is None:
            settled.wording = self._worded(settled)
        answer: Answer = settled.wording
        return answer

    def _worded(self, settled: Settled) -> Answer:
        intent, settings = settled.intent, self._settings
        if intent.mode is _TRANSPARENT and settings.expose_server_id:  # draft §5.5.6: MAY
            return answers.as_it_is(settled.response, server_correlation_id=intent.server_correlation_id)
        return answers.final(settled, passthrough=settings.success_status == "passthrough")


def _not_settled() -> Refused:
    """A-108: something has run, so a store that cannot say how it ended is no 503 with nothing registered."""
    return Refused("the outcome is not durable yet", code=NOT_SETTLED)
