"""Reads for the registrar, beside the handle that writes: for the paired verifier, and for every caller that asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from twophp.core.compensation import CompensationReadback
from twophp.core.records import Key
from twophp.core.registrar import Look, Readback
from twophp.core.registrar_records import (
    GATE,
    Compensated,
    Consumed,
    Failure,
    Gate,
    Inert,
    NonceUse,
    Unverified,
    Verification,
    by_compensation,
    by_consumed,
    by_inert,
    by_key_fence,
    by_nonce_use,
    by_verified,
    compensation_of,
    registration_of,
)
from twophp.core.registration import Registration
from twophp.stores.memory import MemoryStore

EVERY_LINE: Final = 1_000_000_000  # Memory runs out first.


class Witness(Protocol):
    """An independent reader of what is committed."""

    async def schema(self) -> int:
        """A number that changes when a table or a trigger is altered."""
        ...

    async def look(self, key: str) -> Look:
        """What an attempt sees when it begins."""
        ...

    async def readback(self, key: str) -> Readback:
        """What stands under a key."""
        ...

    async def readback_of_compensation(self, nonce: str) -> CompensationReadback | None:
        """What stands under a compensation's nonce."""
        ...

    async def find(self, key: str) -> Registration | None:
        """The registration under a key."""
        ...

    async def compensations(self, key: str, limit: int) -> Sequence[Compensated]:
        """Every compensation of a key, oldest first."""
        ...

    async def unverified(self, limit: int) -> Sequence[Unverified]:
        """What waits for a verdict, oldest first."""
        ...

    async def erased(self, limit: int, *, by_history: bool) -> Sequence[str]:
        """Keys that were consumed and are not there."""
        ...

    async def failures(self, key: str | None, limit: int) -> Sequence[Failure]:
        """The failure audit, newest first."""
        ...

    async def gate(self) -> Gate | None:
        """The gate as it is."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class MemoryWitness:
    """The witness of a store that has no second connection: it reads by key, and remembers nothing itself."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def schema(self) -> int:
        """There is none that could change."""
        return 0

    async def look(self, key: str) -> Look:
        """See ``Witness.look``."""
        consumed, fence, gate = await self._get(by_consumed(key), by_key_fence(key), GATE)
        return Look(is_free=consumed is None, fence=_version(fence), gate=_version(gate))

    async def readback(self, key: str) -> Readback:
        """See ``Witness.readback``."""
        consumed, inert = await self._get(by_consumed(key), by_inert(key))
        if consumed is None or inert is None:
            return Readback(registrations=(), nonce_consumed_by=None)
        (use,) = await self._get(by_nonce_use(consumed.authorization_nonce))
        found = registration_of(consumed, None, inert.status)
        return Readback(registrations=(found,), nonce_consumed_by=None if use is None else use.logical_request_key)

    async def readback_of_compensation(self, nonce: str) -> CompensationReadback | None:
        """See ``Witness.readback_of_compensation``."""
        row, use = await self._get(by_compensation(nonce), by_nonce_use(nonce))
        if row is None:
            return None
        (inert,) = await self._get(by_inert(row.logical_request_key))
        return CompensationReadback(
            compensation=compensation_of(row, None),
            nonce_consumed_by=None if use is None else use.logical_request_key,
            registrations=0 if inert is None else 1,
        )

    async def find(self, key: str) -> Registration | None:
        """See ``Witness.find``."""
        consumed, verdict = await self._get(by_consumed(key), by_verified("registration", key))
        return None if consumed is None else registration_of(consumed, verdict)

    async def compensations(self, key: str, limit: int) -> Sequence[Compensated]:
        """See ``Witness.compensations``."""
        return [row for row in self._store.of_type(Compensated) if row.logical_request_key == key][:limit]

    async def unverified(self, limit: int) -> Sequence[Unverified]:
        """See ``Witness.unverified``."""
        said = {(row.about, row.subject) for row in self._store.of_type(Verification)}
        keys = [row.logical_request_key for row in self._store.of_type(Consumed)]
        waiting = [Unverified("registration", key, key) for key in keys]
        waiting += [
            Unverified("compensation", row.authorization_nonce, row.logical_request_key)
            for row in self._store.of_type(Compensated)
        ]
        return [one for one in waiting if (one.about, one.subject) not in said][:limit]

    async def erased(self, limit: int, *, by_history: bool) -> Sequence[str]:
        """See ``Witness.erased``."""
        there = {row.logical_request_key for row in self._store.of_type(Consumed)}
        if by_history:
            lines = await self._store.journal(0, EVERY_LINE)
            said = {line.event.subject for line in lines if line.event.event == "registered"}
        else:
            said = {row.logical_request_key for row in self._store.of_type(Inert)}
            said |= {row.logical_request_key for row in self._store.of_type(NonceUse)}
        return sorted(said - there)[:limit]

    async def failures(self, key: str | None, limit: int) -> Sequence[Failure]:
        """See ``Witness.failures``."""
        newest = reversed(self._store.of_type(Failure))
        return [row for row in newest if key in (None, row.logical_request_key)][:limit]

    async def gate(self) -> Gate | None:
        """See ``Witness.gate``."""
        (gate,) = await self._get(GATE)
        found: Gate | None = gate
        return found

    async def close(self) -> None:
        """There is nothing to close."""

    async def _get(self, *keys: Key) -> Sequence[Any]:
        return await self._store.read(keys)


def _version(record: Any | None) -> int:
    return 0 if record is None else int(record.version)
