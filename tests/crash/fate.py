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
from typing import Any, Final

from twophp.asgi.messages import App, Message, Receive, Scope, Send
from twophp.asgi.server import Server
from twophp.stores.sqlite import SQLiteStore

STEPS: Final = ("register", "confirm", "settle", "sweep")

Call = Callable[..., Awaitable[Any]]


class Fate:
    """Where a process ends. One request at a time, or nobody could say whose commit it was."""

    def __init__(self, dies_at: str) -> None:
        self._dies_at = dies_at
        self._step = ""

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
        assert isinstance(server.store, SQLiteStore)
        writer = server.store._writer
        setattr(writer, "_commit", self._committing(writer._commit))  # noqa: B010

    def _around(self, step: str, call: Call) -> Call:
        async def stepping(*arguments: Any, **named: Any) -> Any:
            self._step = step
            self.at(f"{step} asked")
            found = await call(*arguments, **named)
            self.at(f"{step} decided")
            return found

        return stepping

    def _committing(self, commit: Call) -> Call:
        async def committing() -> None:
            step = self._step
            self.at(f"{step} written")
            await commit()
            self.at(f"{step} durable")

        return committing

    def watching(self, app: App) -> App:
        """The application, with an eye on what it sends."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.at(f"{self._step} replying")
                await send(message)
                if message["type"] == "http.response.body":
                    self.at(f"{self._step} replied")

            await app(scope, receive, sending)

        return watched
