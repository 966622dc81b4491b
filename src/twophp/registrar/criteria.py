"""Criteria (a) to (h): what each asks of a table, by its schema and by trying.

A criterion returns its reasons against the table; none is a proof. Every attempt to break a rule has a counterpart that
must succeed, so a table that refuses everything proves nothing. An error while probing is a reason, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from twophp.core.surface import CRITERIA
from twophp.registrar.memory_bench import Bench
from twophp.stores.surfaces import Shape, Values

LOGICAL_KEY: Final = "logical_request_key"
REPLAY_KEY: Final = "replay_key"
NONCE: Final = "authorization_nonce"
ATTEMPT: Final = re.compile(r"(^|_)attempt(_|$)")
ROUTING: Final = re.compile(r"(^|_)(route|routing|channel|direction)(_|$)")
BINDING: Final[Mapping[str, tuple[str, ...]]] = {
    "operation": ("canonical_operation", "operation"),
    "canonical_target": ("canonical_target",),
    "run_id": ("run_id",),
    "deployed_artifact_hash": ("deployed_artifact_hash",),
    "owner_or_approval_binding": ("owner_or_approval_binding",),
}
REGISTRATION: Final = "registration"
LONG_AGO: Final = 1


class ProbeBroke(Exception):
    """A probe could not be made, so it proves nothing."""


async def examine(bench: Bench, audit: Bench | None) -> dict[str, tuple[str, ...]]:
    """For each criterion the reasons against the table."""
    shape = await bench.describe()
    probes = Probes(bench, shape, audit)
    return {letter: tuple(await _reasons(probes.of(letter))) for letter in CRITERIA}


async def _reasons(probe: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    try:
        return await probe()
    except ProbeBroke as broke:
        return [str(broke)]
    except Exception as error:  # noqa: BLE001 - fail closed: after any error nothing was proven (REG-6-09).
        return [f"the probe broke: {error!r}"]


class Probes:
    """The probes of one table."""

    def __init__(self, bench: Bench, shape: Shape, audit: Bench | None) -> None:
        self._bench = bench
        self._shape = shape
        self._audit = audit

    def of(self, letter: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
        """The probe of one criterion."""
        probe: Callable[[], Coroutine[Any, Any, list[str]]] = getattr(self, f"_{letter}")
        return probe

    async def _a(self) -> list[str]:
        """Single-use UNIQUE on replay_key; one row per logical effect; attempts key nothing."""
        reasons = [
            f"no UNIQUE on {name} alone" if name in self._shape.columns else f"there is no column {name}"
            for name in (REPLAY_KEY, LOGICAL_KEY)
            if (name,) not in self._shape.uniques
        ]
        reasons += [
            f"UNIQUE ({', '.join(unique)}) has an attempt in its key and admits the next (REPLAY_ATTEMPT_NO_BYPASS)"
            for unique in self._shape.uniques
            if any(ATTEMPT.search(name) for name in unique)
        ]
        first = await self._begin()
        if not (await self._bench.insert(self._row(2))).done:
            return [*reasons, "tried: a second, different request is refused as well"]
        for name in {REPLAY_KEY, LOGICAL_KEY} & first.keys():
            tried = await self._bench.insert({**self._row(3), name: first[name]})
            reasons += [f"tried: the same {name} is accepted again"] if tried.done else []
        other_nonce = {NONCE: self._value(NONCE, 4)} if NONCE in first else {}
        if (await self._bench.insert({**self._next_attempt(first, 4), **other_nonce})).done:
            reasons.append("tried: the same request is accepted again under another attempt")
        return reasons

    async def _b(self) -> list[str]:
        """What binds is there, and cannot be left out."""
        found = {what: self._column_of(names) for what, names in BINDING.items()}
        reasons = [f"there is no column {what}" for what, name in found.items() if name is None]
        bound = [name for name in found.values() if name is not None]
        reasons += [f"{name} may be NULL" for name in bound if self._shape.columns[name].nullable]
        await self._begin()
        for name in bound:
            if (await self._bench.insert({**self._row(2), name: None})).done:
                reasons.append(f"tried: a row without {name} is accepted")
        return reasons

    async def _c(self) -> list[str]:
        """A domain that is marked and enforced, and it is registration."""
        reasons = [f"{name} is a column of routing" for name in self._shape.columns if ROUTING.search(name)]
        if "domain" not in self._shape.columns:
            return [*reasons, "there is no column domain that says registration"]
        if self._row(1)["domain"] != REGISTRATION:
            reasons.append("its domain is not registration")
        await self._begin()
        if (await self._bench.insert({**self._row(2), "domain": "routing"})).done:
            reasons.append("tried: a row of another domain is accepted")
        return reasons

    async def _d(self) -> list[str]:
        """Consumed inside the transaction, with the nonce; a conflict rejects, a rollback undoes it all."""
        reasons = [] if (NONCE,) in self._shape.uniques else [f"{NONCE} is not single-use: no UNIQUE on it alone"]
        first = await self._begin()
        if NONCE in first and (await self._bench.insert({**self._row(2), NONCE: first[NONCE]})).done:
            reasons.append("tried: a nonce is accepted twice")
        ignored = await self._bench.insert(self._next_attempt(first, 3), conflict="ignore")
        if ignored.done and ignored.rows:
            reasons.append("tried: ON CONFLICT sees no conflict where the same key comes again")
        if (await self._bench.insert_beside(self._next_attempt(first, 4))).done:
            reasons.append("tried: two transactions insert the same key at the same time")
        await self._bench.fresh()
        if await self._bench.read(self._identity(first)):
            reasons.append("tried: a rolled-back row is still there")
        return reasons

    async def _e(self) -> list[str]:
        """The registrar alone writes, and no connection changes what is written."""
        reasons = [f"{who} may insert as well" for who in self._shape.strangers]
        if (await self._bench.insert_as_stranger(self._row(1))).done:
            reasons.append("tried: a connection that is not the registrar's can insert")
        first = await self._begin()
        return reasons + await self._changes_to(self._bench, self._shape, first)

    async def _f(self) -> list[str]:
        """An audit that is no part of the transaction that is rolled back, and as immutable as the rest."""
        if self._audit is None:
            return ["there is no failure audit beside it"]
        await self._begin()
        await self._bench.undo()  # The registration is rolled back ...
        try:
            return await self._audited(self._audit)  # ... and the audit is written after it, by another connection.
        finally:
            await self._audit.undo()

    async def _audited(self, audit: Bench) -> list[str]:
        shape = await audit.describe()
        reasons = [f"audit: {hazard}" for hazard in shape.hazards]
        line = _sample(shape, 1)
        await audit.fresh()
        tried = await audit.insert(line)
        if not tried.done:
            return [*reasons, f"tried: no line can be written after a rollback: {tried.said}"]
        found = await audit.read(_identity_in(shape, line))
        reasons += [] if found else ["tried: the line is not there after the rollback"]
        return reasons + [f"audit: {why}" for why in await self._changes_to(audit, shape, line)]

    async def _g(self) -> list[str]:
        """What a retry is answered from: the whole prior decision, found by its key."""
        wanted = [LOGICAL_KEY, REPLAY_KEY, NONCE, *(self._column_of(names) or what for what, names in BINDING.items())]
        reasons = [f"there is no column {name}" for name in wanted if name not in self._shape.columns]
        if not any(ATTEMPT.search(name) for name in self._shape.columns):
            reasons.append("there is no column for the attempt")
        if LOGICAL_KEY not in self._shape.columns:
            return reasons
        first = await self._begin()
        found = await self._bench.read({LOGICAL_KEY: first[LOGICAL_KEY]})
        if len(found) != 1:
            reasons.append(f"tried: {len(found)} rows are found by the logical key")
        elif any(found[0].get(name) != value for name, value in first.items()):
            reasons.append("tried: what is found is not what was decided")
        return reasons

    async def _h(self) -> list[str]:
        """Rows stay for any horizon: nothing lets them go, however old they are."""
        reasons = list(self._shape.hazards)
        old = {name: LONG_AGO for name, column in self._shape.columns.items() if name.endswith("_at")}
        first = await self._begin({name: value for name, value in old.items() if self._is_integer(name)})
        if (await self._bench.delete(self._identity(first))).done:
            reasons.append("tried: an old row can be deleted")
        if (await self._bench.truncate()).done:
            reasons.append("tried: the table can be emptied")
        return reasons

    # What the probes are made of.

    async def _begin(self, changes: Values | None = None) -> dict[str, Any]:
        """A transaction with one row in it. Without that, nothing that is refused means anything."""
        await self._bench.fresh()
        row = {**self._row(1), **(changes or {})}
        tried = await self._bench.insert(row)
        if not tried.done:
            raise ProbeBroke(f"no row could be inserted to try with: {tried.said}")
        return row

    async def _changes_to(self, bench: Bench, shape: Shape, row: Values) -> list[str]:
        """Every way to change what is written."""
        where, reasons = _identity_in(shape, row), list[str]()
        editable = [name for name in row if (await bench.update(where, name, _value(shape, name, 7))).done]
        if editable:
            reasons.append(f"tried: UPDATE changes {', '.join(editable)}")
        if (await bench.delete(where)).done:
            reasons.append("tried: DELETE removes a row")
        # Once by what is unique in it, and once as it is stored, with the id that the database gave it.
        again = [row] if any(len(unique) == 1 and unique[0] in row for unique in shape.uniques) else []
        for known in (*again, *await bench.read(where)):
            if (await bench.insert(known, conflict="replace")).done:
                reasons.append("tried: a conflicting insert replaces a row")
                break
        if (await bench.truncate()).done:
            reasons.append("tried: the table can be emptied")
        return reasons

    def _next_attempt(self, row: Values, number: int) -> dict[str, Any]:
        return {**row, **{name: self._value(name, number) for name in row if ATTEMPT.search(name)}}

    def _row(self, number: int) -> dict[str, Any]:
        return _sample(self._shape, number)

    def _value(self, name: str, number: int) -> Any:
        return _value(self._shape, name, number)

    def _identity(self, row: Values) -> dict[str, Any]:
        return _identity_in(self._shape, row)

    def _column_of(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self._shape.columns), None)

    def _is_integer(self, name: str) -> bool:
        return self._shape.columns[name].kind == "integer"


def _sample(shape: Shape, number: int) -> dict[str, Any]:
    """A row that ought to be acceptable, unlike that of any other number.

    A table that demands nothing gets a value wherever it may: an empty row could not be found again.
    """
    known = {LOGICAL_KEY, REPLAY_KEY, NONCE, "domain", *(name for names in BINDING.values() for name in names)}
    columns = shape.columns
    given = [name for name in columns if columns[name].required or name in known or ATTEMPT.search(name)]
    optional = [name for name in columns if columns[name].nullable]
    return {name: _value(shape, name, number) for name in given or optional or columns}


def _value(shape: Shape, name: str, number: int) -> Any:
    if name in shape.allowed:
        return shape.allowed[name]
    kind = shape.columns[name].kind
    if kind == "text":
        return f"twophp-probe-{number}-{name}"
    if kind == "bytes":
        return f"twophp-probe-{number}".encode()
    return number if kind == "integer" else float(number)


def _identity_in(shape: Shape, row: Values) -> dict[str, Any]:
    """What finds the row again: a column that is unique by itself, else all that was given."""
    for (name,) in (unique for unique in shape.uniques if len(unique) == 1):
        if name in row:
            return {name: row[name]}
    return dict(row)
