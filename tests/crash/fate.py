"""Dying at an exact place: every boundary a handshake crosses has a name, and a server can be told to end at one.

{register,confirm,settle,sweep} asked      the engine is called; the store knows nothing yet
                                written    inside the transaction, everything written, before its COMMIT
                                durable    after COMMIT; nobody has been told
                                decided    the engine has its answer
handler entered, handler acted             before and after the effect
{register,settle} replying, ... replied    before the first and after the last byte to the client
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from twophp.asgi.messages import App, Message, Receive, Scope, Send
from twophp.asgi.server import Server
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Command, Records, Then
from twophp.stores.sqlite import SQLiteStore

STEPS: Final = ("register", "confirm", "settle", "sweep")

Call = Callable[..., Awaitable[Any]]

_step: Final[ContextVar[str]] = ContextVar("step", default="")
"""What the engine is doing, for the transaction that it asks for."""


class Fate:
    """Where a process ends. One request at a time, or nobody could say whose reply it was."""

    def __init__(self, dies_at: str) -> None:
        self._dies_at = dies_at
        self._in_batch: set[str] = set()  # What the engine was doing that is part of the open transaction.
        self._last = ""  # What a reply is about: whatever was done last, on behalf of a client.

    def at(self, place: str) -> None:
        """Die, if this is the place. SIGKILL is delivered before ``kill`` returns."""
        if place == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def await_all(self) -> None:
        """Stand at every boundary of the server that this process will start, before its first sweep."""
        start = Server.start

        def haunted(server: Server) -> None:
            self._await_in(server)
            start(server)

        setattr(Server, "start", haunted)  # noqa: B010 - In this process only.

    def _await_in(self, server: Server) -> None:
        for step in STEPS:
            setattr(server.intents, step, self._around(step, getattr(server.intents, step)))
        for step in ("confirm", "settle"):
            told_later = f"{step}_then"
            setattr(server.intents, told_later, self._told(step, getattr(server.intents, told_later)))
        assert isinstance(server.store, SQLiteStore)
        writer = server.store._writer
        setattr(writer, "transact", self._transacting(writer.transact))  # noqa: B010
        setattr(writer, "submit", self._submitting(writer.submit))  # noqa: B010
        setattr(writer, "_sync", self._committing(writer._sync))  # noqa: B010

    def _around(self, step: str, call: Call) -> Call:
        async def stepping(*arguments: Any, **named: Any) -> Any:
            if step != "sweep":
                self._last = step
            token = _step.set(step)
            self.at(f"{step} asked")
            found = await call(*arguments, **named)
            self.at(f"{step} decided")
            _step.reset(token)
            return found

        return stepping

    def _told(self, step: str, call: Callable[..., None]) -> Callable[..., None]:
        """The same for a step that the flush tells of: ``then`` is its last argument."""

        def stepping(*arguments: Any) -> None:
            *facts, then = arguments
            self._last = step
            token = _step.set(step)
            self.at(f"{step} asked")

            def told(found: Any, error: Exception | None) -> None:
                self.at(f"{step} decided")
                then(found, error)

            call(*facts, told)
            _step.reset(token)

        return stepping

    def _transacting(self, transact: Call) -> Call:
        """Others commit too, the outbox for one: a transaction is known by the decisions that were made in it."""

        async def transacting(command: Command) -> Any:
            step = _step.get()

            def deciding(records: Records) -> Change:
                self._in_batch.add(step)
                return command.decide(records)

            return await transact(AdHocCommand(command.keys, deciding, command.admission))

        return transacting

    def _submitting(self, submit: Callable[..., None]) -> Callable[..., None]:
        def submitting(command: Command, then: Then) -> None:
            step = _step.get()

            def deciding(records: Records) -> Change:
                self._in_batch.add(step)
                return command.decide(records)

            submit(AdHocCommand(command.keys, deciding, command.admission), then)

        return submitting

    def _committing(self, commit: Callable[[], None]) -> Callable[[], None]:
        def committing() -> None:
            steps, self._in_batch = self._in_batch, set()
            for step in steps:
                self.at(f"{step} written")
            commit()
            for step in steps:
                self.at(f"{step} durable")

        return committing

    def watching(self, app: App) -> App:
        """The application, with an eye on what it sends."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.at(f"{self._last} replying")
                await send(message)
                if message["type"] == "http.response.body":
                    self.at(f"{self._last} replied")

            await app(scope, receive, sending)

        return watched
