"""What the names of a request's header fields say, worked out once for each list of names.

A client sends the same names in the same order with every request. So the pass over them is made once: whether one
looks like ours, where our fields stand, and which fields belong to which half of a handshake. A request that comes
later costs one look-up, and reads the few values it needs by their place.

This is the fast lane of the edge. It is open for the ordinary request alone: no name repeats, every name is in lower
case as ASGI prescribes, and of our fields there are those of a registration or of a confirm and no others. Any other
request goes to ``wire.parse``, which has all the rules; a value that is not plainly valid goes there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from twophp.engine.exchange import KEPT_PREFIXES, RawHeaders
from twophp.wire import fields

Names: TypeAlias = tuple[bytes, ...]
Pick: TypeAlias = Callable[[Sequence[tuple[bytes, bytes]]], RawHeaders]
Asks: TypeAlias = Literal["", "register", "confirm"]
"""What the names ask for; empty where only the full parser can say."""

NONE: Final = -1
SEVERAL: Final = -2
MOST: Final = 512  # Shapes that are kept. A service has a handful.
MOST_NAMES: Final = 64  # In a list that is kept. With the next bound: clients cannot fill our memory.
LONGEST_BYTES: Final = 2_048  # Of all names together.

_LOOKS_LIKE_OURS: Final = (b"2php", b"dtt-")
_REGISTER: Final = frozenset({fields.ENABLED.key, fields.CLIENT_CORRELATION_ID.key})
_CONFIRM: Final = _REGISTER | {fields.SERVER_CORRELATION_ID.key}
# How the bytes travelled, and our own twelve: neither is part of what an application is asked to do.
_NOT_OF_THE_REQUEST: Final = fields.BY_KEY.keys() | {
    b"content-length",
    b"transfer-encoding",
    b"expect",
    b"te",
    b"trailer",
}

name_of: Final = itemgetter(0)


class Shape(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts about one list of names. A place is an index into the headers, or NONE, or SEVERAL."""

    is_plain: bool  # No name looks like one of ours, however it is spelled.
    asks: Asks
    enabled: int
    client_id: int
    server_id: int
    content_type: int
    content_length: int
    registered: Pick  # The fields that are kept of a Phase 1 request.
    live: Pick  # The fields that an application gets from the request that confirms.


class Shapes:
    """The shapes that one service has seen."""

    def __init__(self, extra: frozenset[bytes]) -> None:
        """``extra`` are the names that a service stores beside the usual ones."""
        self._extra = extra
        self.known: dict[Names, Shape] = {}

    def of(self, headers: Iterable[Any]) -> Shape:
        """The shape of these headers."""
        return self.known.get(tuple(map(name_of, headers))) or self.learn(headers)

    def learn(self, headers: Iterable[Any]) -> Shape:
        """Work out the shape of these headers, and keep it if there is room."""
        names = tuple(map(name_of, headers))
        shape = self._shape(names)
        if len(names) <= MOST_NAMES and sum(map(len, names)) <= LONGEST_BYTES:
            if len(self.known) >= MOST:
                self.known.clear()
            self.known[names] = shape
        return shape

    def _shape(self, names: Names) -> Shape:
        lowered = [name.lower() for name in names]
        ours = frozenset(name for name in lowered if name in fields.BY_KEY)
        is_ordinary = len(set(names)) == len(names) and list(names) == lowered
        parts = [(place, self._part(name)) for place, name in enumerate(lowered)]
        return Shape(
            is_plain=not any(mark in name for name in lowered for mark in _LOOKS_LIKE_OURS),
            asks="" if not is_ordinary else "register" if ours == _REGISTER else "confirm" if ours == _CONFIRM else "",
            enabled=_place(lowered, fields.ENABLED.key),
            client_id=_place(lowered, fields.CLIENT_CORRELATION_ID.key),
            server_id=_place(lowered, fields.SERVER_CORRELATION_ID.key),
            content_type=_place(lowered, b"content-type"),
            content_length=_place(lowered, b"content-length"),
            registered=_picking([place for place, part in parts if part == "registered"]),
            live=_picking([place for place, part in parts if part == "live"]),
        )

    def _part(self, name: bytes) -> Literal["registered", "live", "of neither"]:
        """Which of the two requests of a handshake a header belongs to (A-03)."""
        if name in _NOT_OF_THE_REQUEST:
            return "of neither"
        return "registered" if name.startswith(KEPT_PREFIXES) or name in self._extra else "live"


def _place(names: list[bytes], name: bytes) -> int:
    count = names.count(name)
    return NONE if not count else SEVERAL if count > 1 else names.index(name)


def _picking(places: list[int]) -> Pick:
    """Takes the pairs at these places, without a frame of ours where there are several."""
    if not places:
        return _nothing
    if len(places) > 1:
        pick: Any = itemgetter(*places)
        return pick  # type: ignore[no-any-return]
    only = places[0]
    return lambda headers: (headers[only],)


def _nothing(_headers: object) -> RawHeaders:
    return ()
