"""Trying things on the memory store, through the one verb that every store has.

There is no schema to read, so the records say what they are: their keys are what is unique, and a record that is
written once has no update. What is tried is tried on a store of its own, which is forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_type_hints

from msgspec.structs import asdict, replace

from twophp.core.errors import StoreError
from twophp.core.registrar_records import DOMAIN, Consumed, Failure, WrittenOnce
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put
from twophp.stores.memory import MemoryStore
from twophp.stores.postgres_surface import PostgresBench
from twophp.stores.sqlite.surface import SQLiteBench
from twophp.stores.surfaces import Column, NoSuchTable, Shape, Tried, Values, done, refused

_RECORDS: Final[Mapping[str, tuple[type[Consumed | Failure], tuple[tuple[str, ...], ...]]]] = {
    "registrar_consumed": (
        Consumed,
        (
            ("logical_request_key",),
            ("replay_key",),
            ("authorization_nonce",),
            ("canonical_operation", "canonical_target", "deployed_artifact_hash", "effect_run_id"),
        ),
    ),
    "registrar_audit": (Failure, (("failure_id",),)),
}


class MemoryBench:
    """See ``SQLiteBench``. A fresh transaction is a fresh store."""

    def __init__(self, table: str) -> None:
        if table not in _RECORDS:
            raise NoSuchTable(f"memory keeps no table {table}")
        self._type, self._uniques = _RECORDS[table]
        self._store = MemoryStore(clock=lambda: 0)

    async def describe(self) -> Shape:
        """See ``SQLiteBench.describe``."""
        hints = get_type_hints(self._type)
        columns = {
            name: Column(name=name, kind="integer" if hints[name] is int else "text", nullable=False, required=True)
            for name in self._type.__struct_fields__
        }
        return Shape(columns=columns, uniques=self._uniques, allowed={"domain": DOMAIN})

    async def fresh(self) -> None:
        """See ``SQLiteBench.fresh``."""
        self._store = MemoryStore(clock=lambda: 0)

    async def undo(self) -> None:
        """See ``SQLiteBench.undo``."""
        await self.fresh()

    async def insert(self, row: Values, *, conflict: Literal["fail", "ignore", "replace"] = "fail") -> Tried:
        """See ``SQLiteBench.insert``: there is no way to replace."""
        del conflict
        if any(value is None for value in row.values()) or row.get("domain", DOMAIN) != DOMAIN:
            return refused("the registrar makes no such record")
        return await self._put(self._type(**row))

    async def insert_as_stranger(self, row: Values) -> Tried:
        """See ``SQLiteBench.insert_as_stranger``: no other process reaches this memory."""
        del row
        return refused("memory belongs to this process")

    async def insert_beside(self, row: Values) -> Tried:
        """See ``SQLiteBench.insert_beside``: there is one transaction at a time."""
        return await self.insert(row)

    async def update(self, where: Values, column: str, value: Any) -> Tried:
        """See ``SQLiteBench.update``. Under another identity it is another record: there is no way to ask for that."""
        found = self._find(where)
        changed = [replace(record, **{column: value}) for record in found]
        if [record.keys()[0] for record in changed] != [record.keys()[0] for record in found]:
            return refused("a record's identity does not change")
        return await self._put(*changed, named=found)

    async def delete(self, where: Values) -> Tried:
        """See ``SQLiteBench.delete``."""
        keys = [record.keys()[0] for record in self._find(where)]
        return await self._try(keys, Change(answer=None, drops=tuple(keys)))

    async def truncate(self) -> Tried:
        """See ``SQLiteBench.truncate``."""
        return refused("a store has no such verb")

    async def read(self, where: Values) -> Sequence[Mapping[str, Any]]:
        """See ``SQLiteBench.read``."""
        return [asdict(record) for record in self._find(where)]

    async def close(self) -> None:
        """See ``SQLiteBench.close``."""

    def _find(self, where: Values) -> list[Any]:
        records: list[Any] = self._store.of_type(self._type)
        return [one for one in records if all(getattr(one, name) == value for name, value in where.items())]

    async def _put(self, *records: Any, named: Sequence[WrittenOnce] = ()) -> Tried:
        keys = [key for record in (*records, *named) for key in record.keys()]  # noqa: SIM118 - no mapping
        return await self._try(keys, Change(answer=None, puts=tuple(Put(record=record) for record in records)))

    async def _try(self, keys: Sequence[Any], change: Change) -> Tried:
        try:
            await self._store.transact(AdHocCommand(keys, lambda _records: change))
        except StoreError as error:
            return refused(error.message)
        return done(len(change.puts) + len(change.drops))


Bench: TypeAlias = SQLiteBench | PostgresBench | MemoryBench
