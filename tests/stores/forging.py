"""A forger with write access who knows the file format: lines edited, cut, moved, and chains made to fit again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from tests.stores.orders import raw
from twophp.kernel.journal import GENESIS, Link
from twophp.stores.sqlite.verify import ProvenHead

COLUMNS = [
    "number",
    "previous",
    "record",
    "kind",
    "subject",
    "event",
    "before",
    "after",
    "at",
    "observed_at",
    "fence",
    "trace_id",
    "detail",
    "crc",
]


def links(path: Path) -> list[Link]:
    columns = "id, writer, seq, count, at, next_id, hash, CAST(lines AS BLOB)"
    rows: list[Any] = raw(path, f"SELECT {columns} FROM link ORDER BY id")  # noqa: S608
    return [Link(*row) for row in rows]


def link_of(path: Path, number: int) -> Link:
    return next(link for link in links(path) if link.id <= number <= link.last_line)


def lines_of(link: Link) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(link.lines)
    return found


def rewrite(path: Path, link: Link, lines: list[list[Any]]) -> None:
    """Other lines in the place of a link's own; its hash stays."""
    raw(path, "UPDATE link SET lines = ? WHERE id = ?", msgspec.json.encode(lines).decode(), link.id)


def edit(path: Path, number: int, column: str, value: object, *, checksum: bool = False) -> None:
    """One value of one line; with ``checksum`` the line's own fits again."""
    link = link_of(path, number)
    lines = lines_of(link)
    line = lines[number - link.id]
    line[COLUMNS.index(column)] = value
    if checksum:
        line[-1] = crc32(msgspec.json.encode(line[:-1]))
    rewrite(path, link, lines)


def edit_all(path: Path, column: str, value: object) -> None:
    """The same of every line."""
    for link in links(path):
        lines = lines_of(link)
        for line in lines:
            line[COLUMNS.index(column)] = value
        rewrite(path, link, lines)


def delete(path: Path, first: int, last: int) -> None:
    """Lines are taken out; a link that has none left goes altogether."""
    for link in links(path):
        lines = lines_of(link)
        left = [line for line in lines if not first <= line[0] <= last]
        if not left:
            raw(path, "DELETE FROM link WHERE id = ?", link.id)
        elif len(left) < len(lines):
            rewrite(path, link, left)


def rechain(path: Path, change: Callable[[Link], Link] = lambda link: link) -> None:
    """What a careful forger does: every hash computed anew, and every writer's row made to fit."""
    digest = GENESIS
    raw(path, "DELETE FROM writer")
    for found in links(path):
        link = change(found)
        link = msgspec.structs.replace(link, count=len(lines_of(link)))
        digest = link.expected(digest)
        raw(path, "UPDATE link SET id = ?, writer = ?, seq = ?, count = ?, hash = ? WHERE id = ?",
            link.id, link.writer, link.seq, link.count, digest, found.id)  # fmt: skip
        raw(path, "INSERT OR REPLACE INTO writer VALUES (?, 'forged', ?, ?, ?)", link.writer, link.seq, link.id, digest)


def head_of(path: Path) -> ProvenHead:
    last = links(path)[-1]
    return ProvenHead(last.last_line, last.hash)
