"""A guard at the edge of the process: Python itself reports every connection and every lookup before it is made.

An audit hook cannot be removed, nor can code go around it, so there is one, and it is idle unless a guard is up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WATCHED = frozenset(
    {
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.sendmsg",
        "socket.sendto",
    }
)

Seen = tuple[str, Any]


class Guard:
    """Notes what wants to leave, and lets nothing pass but connections to ``own`` ports of this machine."""

    def __init__(self) -> None:
        self.own: set[int] = set()
        self.left: list[Seen] = []
        self.stopped: list[Seen] = []

    def judge(self, event: str, args: tuple[Any, ...]) -> None:
        what = args[0] if event in {"socket.getaddrinfo", "socket.gethostbyname"} else args[1]
        if event == "socket.connect" and what[0].startswith("127.") and what[1] in self.own:
            self.left.append((event, what))
            return
        self.stopped.append((event, what))
        raise PermissionError(f"stopped at the edge of the process: {event} {what}")


_up: Guard | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _up is not None and event in WATCHED:
        _up.judge(event, args)


sys.addaudithook(_hook)


@contextmanager
def guarded() -> Iterator[Guard]:
    global _up  # noqa: PLW0603 — there is one process, so there is one guard.
    assert _up is None
    _up = Guard()
    try:
        yield _up
    finally:
        _up = None
