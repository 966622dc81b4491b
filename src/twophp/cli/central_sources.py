"""Where a verification reads from: a central ledger's API, or its database without the process that serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from twophp.central.ports import LEAVES_PER_PAGE, Leaves
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.cli.remote import BAD_ANSWER, STRANGER, Remote, is_remote
from twophp.core.errors import Refused


class KeptHead(msgspec.Struct, frozen=True):
    """A head that was signed and kept."""

    number: int
    size: int
    root: bytes
    note: str


class Source(Protocol):
    """What a verification asks."""

    async def leaves(self, first: int) -> Leaves:
        """A page of leaves."""
        ...

    async def head_before(self, number: int | None) -> KeptHead | None:
        """The newest head that was signed, or the newest below a number."""
        ...

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """The proof that one tree continues the other."""
        ...


class OfApi:
    """Over HTTP."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def leaves(self, first: int) -> Leaves:
        """See ``Source``."""
        return await self._remote.packed(f"/v1/proofs/leaves?first={first}", Leaves)

    async def head_before(self, number: int | None) -> KeptHead | None:
        """See ``Source``."""
        below = "" if number is None else f"&before={number}"
        found = (await self._remote.document(f"/v1/heads?limit=1{below}"))["heads"]
        try:
            heads = [KeptHead(one["number"], one["size"], bytes.fromhex(one["root"]), one["note"]) for one in found]
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(STRANGER, code=BAD_ANSWER) from error
        return heads[0] if heads else None

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """See ``Source``."""
        found = await self._remote.document(f"/v1/proofs/consistency?old_size={old_size}&new_size={new_size}")
        return [bytes.fromhex(part) for part in found["path"]]


class OfDatabase:
    """In a transaction for each question."""

    def __init__(self, store: CentralStore) -> None:
        self._store = store

    async def leaves(self, first: int) -> Leaves:
        """See ``Source``."""
        return await self._store.leaves(first, LEAVES_PER_PAGE)

    async def head_before(self, number: int | None) -> KeptHead | None:
        """See ``Source``."""
        found = await self._store.heads(before=number, limit=1)
        return KeptHead(found[0].number, found[0].size, found[0].root, found[0].note) if found else None

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """See ``Source``."""
        return await self._store.consistency(old_size, new_size)


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Source]:
    """The source that a URL names."""
    if is_remote(url):
        yield OfApi(Remote(url))
        return
    store = await open_central(url, read_only=True)
    try:
        yield OfDatabase(store)
    finally:
        await store.close()
