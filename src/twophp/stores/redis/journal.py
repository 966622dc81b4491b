"""The journal read back. Each writer has a chain of its own; joined, they are one, in the order in which they came.

A link gets its place among all links in the script that writes it. Whoever asks for the journal chains the new ones
once more, and writes down their hashes, so that a head that somebody noted stays provable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from twophp.core.records import JournalEvent
from twophp.kernel.journal import FIRST_FACT, PREVIOUS, RECORD, Link, decode_lines
from twophp.ports import JournalLine
from twophp.stores.chains import placed
from twophp.stores.redis import layout
from twophp.stores.redis.driver import Server
from twophp.stores.redis.layout import Layout
from twophp.stores.redis.opening import commit, read_head

PAGE: Final = 500


class Placed(msgspec.Struct, frozen=True):
    """A link at its place."""

    name: bytes
    first: int
    link: Link | None  # None: it is gone.
    joined: bytes | None  # Its hash in the joined journal.

    def as_row(self) -> dict[str, Any]:
        """As ``placed`` and an inspection take it."""
        assert self.link is not None
        return msgspec.structs.asdict(self.link) | {"first": self.first, "joined_hash": self.joined}


async def pages(server: Server, keys: Layout, first: int) -> AsyncIterator[list[Placed]]:
    """The links whose first line is this one or a later one, in order."""
    while found := await server.ask("ZRANGE", keys.of("places"), first, "+inf", *_BY_PLACE):
        names = [bytes(name) for name in found[::2]]
        links = await server.ask("HMGET", keys.of("link"), *names)
        joined = await server.ask("HMGET", keys.of("joined"), *names)
        page = [
            Placed(name, int(float(at)), None if link is None else layout.link_in(link), digest)
            for name, at, link, digest in zip(names, found[1::2], links, joined, strict=True)
        ]
        yield page
        first = page[-1].first + 1


_BY_PLACE: Final = ("BYSCORE", "LIMIT", 0, PAGE, "WITHSCORES")


async def join(server: Server, keys: Layout) -> None:
    """Chain what is new by now. Who is slower than another goes on from where that one has come to."""
    newest = int(await server.ask("HGET", keys.of("state"), "lines") or 0)
    while True:
        kept, lines, digest = await read_head(server, keys)
        async for page in pages(server, keys, lines + 1):
            words: list[Any] = []
            for one in page:
                if one.link is not None:
                    link = placed(one.as_row(), one.first, digest)
                    words += one.name, link.hash
                    lines, digest = link.last_line, link.hash
            head = layout.head_value(lines, digest)
            guard = "state", "head", kept
            if words and not await commit(
                server, keys, (guard,), ("HSET", "joined", *words), ("HSET", "state", "head", head)
            ):
                break
            kept = head
            if lines >= newest:
                return
        else:
            return


async def links_after(server: Server, keys: Layout, after: int, limit: int) -> list[Link]:
    """The joined links whose lines come after this one, in order."""
    found: list[Link] = []
    async for page in pages(server, keys, after + 1):
        whole = (one for one in page if one.link is not None and one.joined is not None)
        found += [replace(placed(one.as_row(), one.first), hash=one.joined) for one in whole]
        if len(found) >= limit:
            break
    return found[:limit]


async def lines_after(server: Server, keys: Layout, after: int, limit: int) -> list[JournalLine]:
    """The lines after this one, in order, and no more than ``limit``."""
    found: list[JournalLine] = []
    before = await server.ask("ZRANGE", keys.of("places"), after, "-inf", "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES")
    async for page in pages(server, keys, int(float(before[1])) if before else 1):
        for one in page:
            if one.link is not None and one.joined is not None:
                told = _told(one.link, one.first, one.joined)
                found += [line for line in told if line.seq > after]
        if len(found) >= limit:
            break
    return found[:limit]


def _told(link: Link, first: int, digest: bytes) -> list[JournalLine]:
    return [
        JournalLine(first + place, JournalEvent(*line[FIRST_FACT:-1]), digest)
        for place, line in enumerate(decode_lines(link.lines))
    ]


async def history(server: Server, keys: Layout, record: int, last_line: int) -> Sequence[JournalLine]:
    """Every line about a record, oldest first: from its newest line back to its first."""
    found: list[JournalLine] = []
    names = keys.several(("ids", "link", "places", "joined"))
    link: Link | None = None
    first, digest = 0, b""
    while last_line:
        if link is None or not link.id <= last_line <= link.last_line:
            said = await server.run("line", names, layout.link_name(last_line))
            if len(said) < len(("link", "place", "hash")) or said[0] is None:
                break
            link, first, digest = layout.link_in(said[0]), int(float(said[1])), said[2]
        lines = decode_lines(link.lines)
        place = last_line - link.id
        if not 0 <= place < len(lines) or lines[place][RECORD] != record:
            break  # Somebody has cut the journal. What is left is still told.
        line = lines[place]
        found.append(JournalLine(first + place, JournalEvent(*line[FIRST_FACT:-1]), digest))
        last_line = line[PREVIOUS] if line[PREVIOUS] != last_line else 0
    found.reverse()
    return found
