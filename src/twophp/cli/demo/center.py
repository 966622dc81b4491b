"""The demo's central ledger, as a process of its own: ``python -m twophp.cli.demo.center SPEC``.

Each participant and the operator has a token of its own, made here before it is started.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from twophp.central.app import create_app
from twophp.central.auth.access import Access
from twophp.central.ingest.pull import management_token
from twophp.central.ports import Role
from twophp.central.stores.opening import open_central
from twophp.cli.central_serve import PORT, management_key
from twophp.cli.demo.fleet import serve, url_of
from twophp.cli.demo.service import Shipping
from twophp.core.policy import DAY_MS
from twophp.stores.clock import system_clock

OPERATOR: Final = "operator"


class CenterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the central ledger's process."""

    store: str
    listener: int


class Center:
    """Its database, its URL and its tokens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.store = f"sqlite:///{folder / 'central.db'}"
        self.url = ""
        self._secrets: dict[str, str] = {}
        self._key = management_key(self.store)

    @property
    def token(self) -> str:
        """The operator's: it opens every page, for a day."""
        return self._secrets[OPERATOR]

    def found(self, participants: Sequence[str]) -> None:
        """Make the database, and a token for each participant and the operator."""
        asyncio.run(self._found(participants))

    def listen(self) -> socket.socket:
        """On the port where a central ledger is looked for first, or any other if that port is taken."""
        try:
            listener = socket.create_server(("127.0.0.1", PORT))
        except OSError:
            listener = socket.create_server(("127.0.0.1", 0))
        self.url = url_of(listener)
        return listener

    def shipping(self, name: str) -> Shipping:
        """What a participant has to know to send its rows, and to be asked for them."""
        return Shipping(url=self.url, token=self._secrets[name], management_token=management_token(self._key, name))

    async def _found(self, participants: Sequence[str]) -> None:
        store = await open_central(self.store)
        access, expires_at = Access(store), system_clock() + DAY_MS
        for name in participants:
            _token, self._secrets[name] = await access.create_token(name, {Role.SERVICE}, expires_at=expires_at)
        _token, self._secrets[OPERATOR] = await access.create_token(OPERATOR, {Role.OPERATIONS}, expires_at=expires_at)
        await store.close()


async def _main(spec: CenterSpec) -> None:
    store = await open_central(spec.store)
    await serve(create_app(store, management_key=management_key(spec.store)), spec.listener)


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=CenterSpec)))
