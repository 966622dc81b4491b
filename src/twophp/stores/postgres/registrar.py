"""The registrar's side of PostgreSQL: the one handle that may write its rows, and a reader that trusts no handle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from twophp.core.compensation import CompensationReadback
from twophp.core.records import JournalEvent
from twophp.core.registrar import Look, Readback
from twophp.core.registrar_records import (
    Compensated,
    Consumed,
    Failure,
    Gate,
    Unverified,
    compensation_of,
    registration_of,
)
from twophp.core.registration import Registration
from twophp.kernel.journal import FIRST_FACT, decode_lines
from twophp.stores.postgres import driver
from twophp.stores.postgres.opening import insist_on_schema
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.store import PostgresStore
from twophp.stores.postgres.text import kept, kept_values, plain
from twophp.stores.sqlite.registrar_tables import (
    compensated_of,
    consumed_of,
    failure_of,
    gate_of,
    readback_registration,
    verification_of,
)
from twophp.stores.sqlite.table import Row

READERS: Final = 2
LINKS_AT_ONCE: Final = 500
_COMPENSATED_COLUMNS: Final = 1 + len(Compensated.__struct_fields__)
_CONSUMED_COLUMNS: Final = 1 + len(Consumed.__struct_fields__)


class RegistrarStore(PostgresStore):
    """The store whose writer is the registrar: the guards of its tables ask each transaction for that."""

    _as = ("as_registrar",)


class PostgresWitness:
    """An independent reader: connections of its own see committed rows only, and no cache of a writer."""

    def __init__(self, pool: Any, script: Script) -> None:
        self._pool = pool
        self._script = script

    @classmethod
    async def open(cls, url: str) -> PostgresWitness:
        """Connect to a ledger that is there. Nothing is made or migrated."""
        place = driver.place_of(url)
        script = Script(place.schema)
        async with driver.in_our_words():
            pool, _is_pooled = await driver.open_pool(place, most=READERS)
            try:
                async with pool.acquire() as connection:
                    await insist_on_schema(connection, script)
            except BaseException:
                await driver.close_pool(pool)
                raise
        return cls(pool, script)

    async def schema(self) -> int:
        """See ``Witness.schema``."""
        return int((await self._rows("surface_state"))[0][0])

    async def look(self, key: str) -> Look:
        """See ``Witness.look``."""
        ((is_free, fence, gate),) = await self._rows("look_at_key", key)
        return Look(is_free=is_free, fence=fence, gate=gate)

    async def readback(self, key: str) -> Readback:
        """See ``Witness.readback``."""
        rows = await self._rows("readback", key)
        used_by = rows[0][-1] if rows else None
        found = tuple(readback_registration(row[:_CONSUMED_COLUMNS], *row[_CONSUMED_COLUMNS:-1]) for row in rows)
        return Readback(registrations=found, nonce_consumed_by=used_by)

    async def readback_of_compensation(self, nonce: str) -> CompensationReadback | None:
        """See ``Witness.readback_of_compensation``."""
        rows = await self._rows("readback_of_compensation", nonce)
        if not rows:
            return None
        *columns, used_by, registrations = rows[0]
        return CompensationReadback(
            compensation=compensation_of(compensated_of(tuple(columns)), None),
            nonce_consumed_by=used_by,
            registrations=registrations,
        )

    async def find(self, key: str) -> Registration | None:
        """See ``Witness.find``."""
        consumed = await self._rows("consumed_of_key", key)
        verdicts = await self._rows("verdict_of_key", key)
        if not consumed:
            return None
        return registration_of(consumed_of(consumed[0]), verification_of(verdicts[0]) if verdicts else None)

    async def compensations(self, key: str, limit: int) -> Sequence[Compensated]:
        """See ``Witness.compensations``."""
        return [compensated_of(row) for row in await self._rows("compensations_of_key", key, limit)]

    async def unverified(self, limit: int) -> Sequence[Unverified]:
        """See ``Witness.unverified``."""
        keys = await self._rows("unverified_registrations", limit)
        nonces = await self._rows("unverified_compensations", limit)
        return [
            *(Unverified("registration", key, key) for (key,) in keys),
            *(Unverified("compensation", nonce, key) for key, nonce in nonces),
        ]

    async def erased(self, limit: int, *, by_history: bool) -> Sequence[str]:
        """See ``Witness.erased``."""
        if not by_history:
            return [key for (key,) in await self._rows("erased_keys", limit)]
        found: list[str] = []
        after = 0
        while len(found) < limit and (links := await self._rows("lines_of_links", after, LINKS_AT_ONCE)):
            after = links[-1][0]
            found += await self._erased_of(line for _id, lines in links for line in decode_lines(lines))
        return found[:limit]

    async def _erased_of(self, lines: Iterable[Sequence[Any]]) -> list[str]:
        events = (JournalEvent(*line[FIRST_FACT:-1]) for line in lines)
        said = [one for one in events if (one.kind, one.event) == ("registration", "registered")]
        keys, replay_keys = [kept(one.subject) for one in said], [kept(one.detail) for one in said]
        rows = await self._rows("erased_of", keys, replay_keys) if said else []
        return [key for (key,) in rows]

    async def failures(self, key: str | None, limit: int) -> Sequence[Failure]:
        """See ``Witness.failures``."""
        rows = await (
            self._rows("failures_newest", limit) if key is None else self._rows("failures_of_key", key, limit)
        )
        return [failure_of(row) for row in rows]

    async def gate(self) -> Gate | None:
        """See ``Witness.gate``."""
        rows = await self._rows("gate_now")
        return gate_of(rows[0]) if rows else None

    async def close(self) -> None:
        """See ``Witness.close``."""
        await driver.close_pool(self._pool)

    async def _rows(self, name: str, *bindings: Any) -> list[Row]:
        async with driver.in_our_words():
            found = await self._pool.fetch(self._script.named(name), *kept_values(bindings))
        return [plain(row) for row in found]
