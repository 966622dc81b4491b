"""How far an attempt to deliver has come."""

from __future__ import annotations

import asyncio


class Milestones:
    """How far an attempt has come, for the request that waits for it."""

    __slots__ = ("sent", "started")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[bool] = loop.create_future()
        self.sent: asyncio.Future[bool] = loop.create_future()

    def has_started(self) -> None:
        """The attempt has begun."""
        _reach(self.started, reached=True)

    def has_sent(self) -> None:
        """All bytes are written."""
        _reach(self.sent, reached=True)

    def is_over(self, _task: asyncio.Task[None]) -> None:
        """What was not reached by now never is."""
        _reach(self.started, reached=False)
        _reach(self.sent, reached=False)


def _reach(milestone: asyncio.Future[bool], *, reached: bool) -> None:
    if not milestone.done():  # It is also done when the request that waited was cancelled.
        milestone.set_result(reached)
