"""A plain HTTP client: no library of ours, one keep-alive connection, and the patience to ask again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from tests.patience import PATIENCE_S

TRIES: Final = 40
OPT_IN: Final = "DTT-2PHP-Enabled: true"
NOT_YET: Final = frozenset({202, 409, 429, 503})
_GONE: Final = (OSError, asyncio.IncompleteReadError)


class Answer(msgspec.Struct, frozen=True):
    """A response as it came, but for the time it was sent at."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def __getitem__(self, name: str) -> str:
        found = dict(self.headers).get(name)
        assert found is not None, f"no {name}: {self}"
        return found

    @property
    def phase(self) -> str:
        return self["dtt-2php-phase-state"]

    @property
    def server_id(self) -> str:
        return self["dtt-2php-server-correlation-id"]

    @property
    def run(self) -> str:
        """The number that the handler's run drew."""
        return msgspec.json.decode(self.body, type=dict[str, object])["run"]  # type: ignore[return-value]


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = [f"{line} HTTP/1.1", "Host: orders", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def register(client: str, body: bytes = b"{}") -> bytes:
    return request("POST /orders", OPT_IN, client_id(client), "Content-Type: application/json", body=body)


def auto_confirm(client: str, body: bytes = b"{}") -> bytes:
    callback = ("DTT-2PHP-Auto-Confirm: true", "DTT-2PHP-Callback: https://client.example/callback")
    return request("POST /orders", OPT_IN, client_id(client), *callback, "Content-Type: application/json", body=body)


def confirm(client: str, server: str) -> bytes:
    return request("POST /orders/confirm", OPT_IN, client_id(client), server_id(server))


def status(client: str, server: str) -> bytes:
    return request(f"GET /_2php/intents/{server}", OPT_IN, client_id(client), server_id(server))


def client_id(value: str) -> str:
    return f"DTT-2PHP-Client-Correlation-ID: {value}"


def server_id(value: str) -> str:
    return f"DTT-2PHP-Server-Correlation-ID: {value}"


class Connection:
    """Keeps a connection as long as the server does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader

    async def insist(self, asked: bytes) -> Answer:
        """Ask until there is an answer that is one, however many servers it takes."""
        for _try in range(TRIES):
            answer = await self.ask(asked)
            if answer is not None and answer.status not in NOT_YET:
                return answer
        raise AssertionError(f"no answer after {TRIES} tries: {asked!r}")

    async def ask(self, asked: bytes) -> Answer | None:
        """The answer, or None if the server went away before all of it was here."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.send(asked)
                return await self.read()
        except _GONE:
            await self.close()
            return None

    async def send(self, asked: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(asked)
        await self._writer.drain()

    async def read(self) -> Answer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")[:-2]
        pairs = [(name.lower(), value.strip()) for name, _colon, value in (field.partition(":") for field in fields)]
        body = await self._reader.readexactly(int(dict(pairs)["content-length"]))
        headers = tuple(pair for pair in pairs if pair[0] != "date")
        return Answer(int(line.split()[1]), headers, body)

    async def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            with suppress(*_GONE):
                await writer.wait_closed()
