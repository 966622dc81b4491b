"""Everything that was asked for, as a file: CSV, JSON lines or Parquet, streamed from one consistent view."""

from __future__ import annotations

import asyncio
import csv
import importlib
import io
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from twophp.central.api.documents import row_of
from twophp.central.api.problems import ApiProblem
from twophp.central.api.queries import Filter
from twophp.central.api.routes import describe
from twophp.central.api.state import Central, CentralPart, Reader
from twophp.central.ports import Row, RowFilter
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase

Format: TypeAlias = Literal["jsonl", "csv", "parquet"]
Documents: TypeAlias = AsyncIterator[list[dict[str, Any]]]

log: Final = logging.getLogger("twophp.central")

MOST_EXPORTS: Final = 4
"""So many are under way at once: each holds a connection to the database, and other requests need some, too."""
TAKEN_S: Final = 300.0
"""How long a client may leave a part of its export untaken; for so long the database keeps a view for it."""
COLUMNS: Final = (*LedgerEntry.__struct_fields__, "sequence")
BOOLEANS: Final = frozenset({"client_id_is_proxy", "indeterminate"})
INTEGERS: Final = frozenset({"ttl_ms", "version", "sequence"})
MEDIA_TYPES: Final[dict[str, str]] = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would run if a cell began with it."""

router: Final = APIRouter(tags=["questions"])

_encode_lines: Final = msgspec.json.Encoder().encode_lines
_described: Final = describe(None)
_described["responses"][200] = {
    "description": "One row each: a line of JSON, a line of CSV, or a row of Parquet.",
    "content": {kind.partition(";")[0]: {"schema": {}} for kind in MEDIA_TYPES.values()},
}


@router.get("/v1/export", **_described)
async def export(
    central: CentralPart,
    _principal: Reader,
    which: Filter,
    file_format: Annotated[Format, Query(alias="format")] = "jsonl",
    *,
    draft_outcomes_only: Annotated[bool, Query()] = False,
) -> Response:
    """Every row that fits, in its newest version, as a file.

    With `draft_outcomes_only` an outcome is one of the draft's three, and null where it is FAILED (A-45).
    """
    if central.exports >= MOST_EXPORTS:
        raise ApiProblem("overloaded", "too many exports are under way", retry_after_s=5)
    write = {"jsonl": _json_lines, "csv": _csv, "parquet": _parquet}[file_format]
    rows = _counted(central, which)
    parts = write(_documents(rows, draft_outcomes_only=draft_outcomes_only))
    first = await anext(parts, b"")  # So that a database that is away is a status, and not half a file.
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="ledger.{file_format}"'}
    return _Export(rows, _joined(first, parts), headers=headers, media_type=MEDIA_TYPES[file_format])


class _Export(StreamingResponse):
    """Given up when the client does not take it. At its end its rows are closed at once: they hold a connection."""

    def __init__(self, rows: AsyncGenerator[Sequence[Row]], content: AsyncIterator[bytes], **more: Any) -> None:
        super().__init__(content, **more)
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rows):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(TAKEN_S):
                await send(message)

        try:
            await super().stream_response(in_time)
        except TimeoutError:
            log.warning("an export was given up: its client has not taken it for %g s", TAKEN_S)


async def _counted(central: Central, which: RowFilter) -> AsyncGenerator[Sequence[Row]]:
    central.exports += 1
    try:
        async with aclosing(central.store.export(which)) as found:
            async for rows in found:
                yield rows
    finally:
        central.exports -= 1


async def _joined(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in parts:
        yield part


async def _documents(chunks: AsyncIterator[Sequence[Row]], *, draft_outcomes_only: bool) -> Documents:
    async for rows in chunks:
        documents = [row_of(row) for row in rows]
        if draft_outcomes_only:
            for document in documents:
                if document["outcome"] is Phase.FAILED:
                    document["outcome"] = None
        yield documents


async def _json_lines(chunks: Documents) -> AsyncIterator[bytes]:
    async for documents in chunks:
        yield _encode_lines(documents)


async def _csv(chunks: Documents) -> AsyncIterator[bytes]:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    async for documents in chunks:
        writer.writerows({name: _cell(value) for name, value in document.items()} for document in documents)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()  # The names of the columns, where there is no row.


def _cell(value: Any) -> Any:
    """Names and ids come from outside: none of them is a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


class _Sink(io.RawIOBase):
    """What Parquet's writer has written and the client has not taken yet."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


async def _parquet(chunks: Documents) -> AsyncIterator[bytes]:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ApiProblem("no_parquet") from error
    schema = arrow.schema([(name, _parquet_type(arrow, name)) for name in COLUMNS])
    sink = _Sink()
    writer = parquet.ParquetWriter(arrow.PythonFile(sink, mode="w"), schema)
    async for documents in chunks:
        writer.write_table(arrow.Table.from_pylist([_plain(document) for document in documents], schema=schema))
        yield sink.take()
    writer.close()
    yield sink.take()


def _parquet_type(arrow: Any, name: str) -> Any:
    if name in BOOLEANS:
        return arrow.bool_()
    return arrow.int64() if name in INTEGERS else arrow.string()


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """An enumeration's member is text to us, and a stranger to Arrow."""
    return {name: str(value) if isinstance(value, str) else value for name, value in document.items()}
