"""The draft's questions to a ledger (§10.4), and a tracker's to its obligations, by indexes where there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from twophp.core.entry import LedgerEntry
from twophp.core.intent import Intent, Phase
from twophp.core.obligation import Obligation, State, by_id
from twophp.ports import MOST_ROWS, Calls, Find, Initiated, Obligations, Question, Stalled, Tail, Tally, Tree
from twophp.stores.memory_answers import fits
from twophp.stores.redis import layout
from twophp.stores.redis.driver import Server
from twophp.stores.redis.layout import Layout

PAGE: Final = 500
_END: Final = b"\xff"  # No text of ours has this byte, so it is behind all that begins alike.


class Reader:
    """Asks one ledger."""

    def __init__(self, server: Server, keys: Layout) -> None:
        self._server = server
        self._keys = keys

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``LedgerQuestions.entries``."""
        match question:
            case Tree(root):
                return await self._of_clients(await self._called_from(root))
            case Initiated(source):
                return await self._rows(await self._indexed("sources", source))
            case Stalled(lease_ended_by):
                return await self._stalled(lease_ended_by or 0)
            case Find(correlation_id):
                found = await self._indexed("called", correlation_id), await self._indexed("servers", correlation_id)
                return await self._rows({*found[0], *found[1]})
            case Calls(ids):
                return await self._of_clients(ids)
            case Tail(limit):
                ids = await self._ask(
                    "ZRANGE", "rows", "+inf", "-inf", *_first(min(limit, MOST_ROWS), "BYSCORE", "REV")
                )
                return (await self._rows(map(int, ids)))[::-1]

    async def rows_in(self, name: str, before: float, limit: int) -> Sequence[LedgerEntry]:
        """The first ledger rows of a set, those before this score, in its order."""
        ids = await self._ask("ZRANGE", name, "-inf", f"({before}", *_first(min(limit, MOST_ROWS), "BYSCORE"))
        return [row for _id, row in await self._rows_by_id([int(id_) for id_ in ids])]

    async def pages_of(self, name: str) -> AsyncIterator[list[int]]:
        """All ids of a set that is sorted by them, a page at a time, the greatest first."""
        end = "+inf"
        while ids := await self._ask("ZRANGE", name, end, "-inf", *_first(PAGE, "BYSCORE", "REV")):
            yield [int(id_) for id_ in ids]
            end = f"({int(ids[-1])}"

    async def records(self, ids: Sequence[int]) -> list[Any]:
        """The records of these ids that are there."""
        values = await self._ask("HMGET", "record", *ids) if ids else []
        return [layout.slot_of(id_, value)[0].record for id_, value in zip(ids, values, strict=True) if value]

    # Obligations.

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``ObligationQuestions.obligations``: page by page, or among what is Reserved."""
        limit = min(wanted.limit, MOST_ROWS)
        end = (await self._ids_of([wanted.before]))[0] if wanted.before else None
        found: list[Obligation] = []
        async for page in self._candidates(wanted):
            ids = [id_ for id_ in page if end is None or id_ < end]
            found += [one for one in await self.records(ids) if isinstance(one, Obligation) and fits(one, wanted)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _candidates(self, wanted: Obligations) -> AsyncIterator[list[int]]:
        if wanted.state != State.RESERVED:
            async for ids in self.pages_of("obligations"):
                yield ids
            return
        members = await self._ask("ZRANGE", "due:obligation", 0, -1)
        all_ids = sorted(await self._ids_of([layout.values_in(member)[0] for member in members]), reverse=True)
        for start in range(0, len(all_ids), PAGE):
            yield all_ids[start : start + PAGE]

    async def _ids_of(self, obligation_ids: Sequence[str]) -> list[int]:
        names = [layout.key_name(by_id(one)) for one in obligation_ids]
        found = await self._ask("HMGET", "key", *names) if names else []
        return [int(id_ or 0) for id_ in found]

    async def tally(self, since: int) -> Sequence[Tally]:
        """See ``ObligationQuestions.tally``: looks at every one."""
        counts: Counter[tuple[str, str, str]] = Counter()
        async for ids in self.pages_of("obligations"):
            found = [one for one in await self.records(ids) if one.reserved_at >= since]
            counts.update((one.flow, one.state.value, one.resolution) for one in found)
        return [Tally(*what, counts[what]) for what in sorted(counts)]

    # Ledger rows.

    async def _called_from(self, root: str) -> list[str]:
        """The root and every id that was called below it. An id that was seen is not visited again (A-53)."""
        called, ahead = {root: None}, [root]
        while ahead and len(called) < MOST_ROWS:
            members = await self._begins("children", ahead.pop())
            fresh = [child for member in members if (child := layout.values_in(member)[1]) not in called]
            called.update(dict.fromkeys(fresh))
            ahead.extend(fresh)
        return list(called)

    async def _of_clients(self, ids: Iterable[str]) -> list[LedgerEntry]:
        found: set[int] = set()
        for one in dict.fromkeys(ids):
            found.update(await self._indexed("called", one))
        return await self._rows(found)

    async def _stalled(self, lease_ended_by: int) -> list[LedgerEntry]:
        """Those that are open, oldest first; one that is running only if its lease has ended."""
        found: list[LedgerEntry] = []
        start = 0
        while ids := [int(id_) for id_ in await self._ask("ZRANGE", "open", start, start + PAGE - 1)]:
            rows = await self._rows_by_id(ids)
            running = [id_ for id_, row in rows if row.phase is Phase.PROCESSING]
            intents = {
                (one.client_correlation_id, one.server_correlation_id): one
                for one in await self.records(running)
                if isinstance(one, Intent)
            }
            for _id, row in rows:
                intent = intents.get((row.client_correlation_id, row.server_correlation_id))
                has_stopped = intent is not None and (intent.lease_until or 0) <= lease_ended_by
                if row.phase is not Phase.PROCESSING or (row.actor == "server" and has_stopped):
                    found.append(row)
            start += PAGE
            if len(found) >= MOST_ROWS:
                break
        return found[:MOST_ROWS]

    async def _rows(self, ids: Iterable[int]) -> list[LedgerEntry]:
        """The ledger rows of these ids, oldest first."""
        return [row for _id, row in await self._rows_by_id(sorted(ids)[:MOST_ROWS])]

    async def _rows_by_id(self, ids: Sequence[int]) -> list[tuple[int, LedgerEntry]]:
        values = await self._ask("HMGET", "entry", *ids) if ids else []
        return [(id_, layout.entry_in(id_, value)[0]) for id_, value in zip(ids, values, strict=True) if value]

    async def _indexed(self, name: str, value: str) -> list[int]:
        return [layout.id_in(member) for member in await self._begins(name, value)]

    async def _begins(self, name: str, value: str) -> list[bytes]:
        """The members of an index that have this value."""
        begins = layout.prefix_of(value)
        where = b"[" + begins, b"[" + begins + _END
        found: list[bytes] = await self._ask("ZRANGE", name, *where, *_first(MOST_ROWS, "BYLEX"))
        return found

    async def _ask(self, command: str, name: str, *words: Any) -> Any:
        return await self._server.ask(command, self._keys.of(name), *words)


def _first(limit: int, *how: str) -> tuple[Any, ...]:
    return *how, "LIMIT", 0, limit
