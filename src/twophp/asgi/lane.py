"""An ordinary two-phase request for an edge below ASGI: its facts, and the bytes of its answer's head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from twophp.asgi.messages import WITHOUT_CONTENT, Answer, Message
from twophp.asgi.shapes import Shape

_LENGTH: Final = b"content-length: "
_FRAMING_STARTS: Final = frozenset({_LENGTH, b"connection: ", b"transfer-encoding: "})
# What uvicorn lets out of names and of values.
_IS_NAME: Final = re.compile(rb"""[^\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]*""").fullmatch
_NOT_IN_VALUES: Final = bytes({*range(0x20), 0x7F} - {0x09})
LONGEST_NAME: Final = 64  # That is kept.
MOST_NAMES: Final = 512


class _Nobody:
    """In place of the event of uvicorn's cycle. No reader waits for messages: the request is here as a whole."""

    def set(self) -> None:
        """Do nothing."""


class Lane:
    """An ordinary two-phase request in place of uvicorn's cycle, until something about it is unusual.

    It has what the protocol looks at in a cycle, and what an answer needs.
    """

    __slots__ = (
        "access_log",
        "access_logger",
        "body",
        "cycle",
        "default_headers",
        "disconnected",
        "flow",
        "has_told",
        "keep_alive",
        "on_response",
        "protocol",
        "response_complete",
        "response_started",
        "scope",
        "shape",
        "waiting_for_100_continue",
    )
    message_event = _Nobody()

    def __init__(self, protocol: Any, shape: Shape) -> None:
        self.protocol = protocol
        self.scope: Any = protocol.scope
        self.shape = shape
        self.flow = protocol.flow
        self.access_log = protocol.access_log
        self.access_logger = protocol.access_logger
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.keep_alive = protocol.parser.should_keep_alive()
        self.body = b""
        self.cycle: Any = None  # Of uvicorn's, once something unusual has needed one.
        self.has_told = False
        self.disconnected = self.response_started = self.response_complete = self.waiting_for_100_continue = False

    async def receive(self) -> Message:
        """The whole body, once; a second call waits for the end of the connection."""
        if self.has_told:
            message: Message = await (self.cycle or self.protocol.cycle_of(self)).receive()
            return message
        self.has_told = True
        return {"type": "http.request", "body": self.body, "more_body": False}


def head_of(
    answer: Answer, status_line: bytes, defaults: Sequence[tuple[bytes, bytes]], *, keep_alive: bool
) -> bytes | None:
    """The head of an answer as uvicorn writes it, or None if uvicorn is to have a look at its framing."""
    if answer.status in WITHOUT_CONTENT:
        return None
    length: bytes | None = None
    lines = [status_line]
    add = lines.append
    pairs = (*defaults, *answer.headers)
    for name, value in pairs:
        start = _starts.get(name) or _start_of(name)
        if not start:
            return None
        if start in _FRAMING_STARTS:
            if start != _LENGTH or length is not None:
                return None
            length = value
        add(start)
        add(value)
        add(b"\r\n")
    size = b"%d" % len(answer.body)
    count = len(pairs) + 1
    if length is None and not answer.framed:
        lines += (_LENGTH, size, b"\r\n")
        count += 1
    elif length != size:
        return None
    if not keep_alive:
        add(b"connection: close\r\n")
        count += 1
    head = b"".join(lines)
    # A name is checked once, in ``_start_of``. Values are checked together: none may have a control character.
    if len(head.translate(None, _NOT_IN_VALUES)) != len(head) - 2 * count:
        return None
    return head + b"\r\n"


_starts: Final[dict[bytes, bytes]] = {}
"""How a line begins that has this name; empty if uvicorn lets no such line out."""


def _start_of(name: bytes) -> bytes:
    start = name.lower() + b": " if _IS_NAME(name) else b""
    if len(_starts) < MOST_NAMES and len(name) <= LONGEST_NAME:
        _starts[name] = start
    return start
