"""Exports are bounded: in number, and in how long they wait for a client that does not take one."""

from __future__ import annotations

import asyncio
import csv
import io
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.types import Message

from tests.central.rows import row
from tests.central.served import Central, central
from tests.patience import PATIENCE_S
from twophp.central.api import export as api_export
from twophp.central.api.export import COLUMNS, MOST_EXPORTS
from twophp.central.ports import Row, RowFilter
from twophp.core.errors import StoreUnavailable

ROWS = [Row(number, row(number, "g", sync_timestamp=1)) for number in range(1, 1_001)]


class Exporting:
    """What the database is asked to export: a first part, and when it may go on another."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.may_go_on = asyncio.Event()
        self.ended = threading.Event()

    async def __call__(self, _wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        try:
            yield ROWS[:1]
            await self.may_go_on.wait()
            for _ in range(self.parts):
                yield ROWS
        finally:
            self.ended.set()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Central]:
    with central(tmp_path) as running:
        yield running


def test_so_many_are_under_way_and_the_next_is_asked_to_come_back(
    here: Central, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting = Exporting(parts=1)
    monkeypatch.setattr(here.state.store, "export", exporting)
    asked = {"Authorization": f"Bearer {here.token('auditor', 'audit')}"}
    with ExitStack() as stack:
        url = f"{here.url}/v1/export"
        streams = [stack.enter_context(here.http.stream("GET", url, headers=asked)) for _ in range(MOST_EXPORTS)]
        refused = here.http.get(url, headers=asked)
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "overloaded", "5")
        here.loop.call_soon_threadsafe(exporting.may_go_on.set)
        assert [len(stream.read().splitlines()) for stream in streams] == [1_001] * MOST_EXPORTS
    assert here.http.get(url, headers=asked).status_code == 200
    assert here.state.exports == 0


def test_what_nobody_takes_is_given_up(here: Central, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting = Exporting(parts=1_000)
    exporting.may_go_on.set()
    monkeypatch.setattr(here.state.store, "export", exporting)
    monkeypatch.setattr(api_export, "TAKEN_S", 0.2)
    host, _colon, port = here.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as asleep:
        head = f"GET /v1/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {here.token('auditor', 'audit')}\r\n\r\n"
        asleep.sendall(head.encode())
        assert exporting.ended.wait(PATIENCE_S)


@pytest.mark.anyio
async def test_whoever_goes_away_gives_the_place_back_at_once() -> None:
    exporting, gone = Exporting(parts=1), asyncio.Event()
    exporting.may_go_on.set()
    rows = exporting(RowFilter())

    async def lines() -> AsyncIterator[bytes]:
        async for _some in rows:
            yield b"a line"

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            gone.set()
            await asyncio.Event().wait()  # The client does not take it.

    export = api_export._Export(rows, lines())
    await export({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert await anext(rows, None) is None, "it is closed, although the test still refers to it"


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_a_database_that_is_away_is_a_status_and_not_half_a_file(
    here: Central, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    async def away(_wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        raise StoreUnavailable("away")
        yield ROWS

    monkeypatch.setattr(here.state.store, "export", away)
    answer = here.ask("GET", "/v1/export", params={"format": file_format})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert here.state.exports == 0


def test_an_export_of_nothing_names_its_columns(here: Central) -> None:
    answer = here.ask("GET", "/v1/export", params={"format": "csv"})
    assert list(csv.reader(io.StringIO(answer.text))) == [list(COLUMNS)]
