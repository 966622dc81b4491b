"""The client's side of the ledger: calls, their rows and their leases, on one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from hmac import compare_digest
from typing import Any, Final, Self

from twophp.client.outgoing import callback_token
from twophp.client.settings import Settings
from twophp.client.write_behind import BehindOnLoop
from twophp.core.call import CALL, IN_LEDGER, OPEN, Call, Stage, by_client_id
from twophp.core.call_commands import Command, Renew, ServerReply, Tick
from twophp.core.call_machine import CallDecision, Care, decide
from twophp.core.entry import Writer, client_entry
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned
from twophp.core.identity import seal_context
from twophp.core.records import Key
from twophp.engine.obligations.rules import RETENTION_MS, forget_settled
from twophp.kernel.commands import AdHocCommand, ReadRecords
from twophp.ports import Change, Decide, Put, Records, Vault, WholeStore
from twophp.shipping.shipper import Shipper
from twophp.stores.sqlite.blocking import BlockingSQLite
from twophp.stores.urls import open_blocking, open_vault, opening
from twophp.storing.bites import purge
from twophp.storing.reopening import open_ledger
from twophp.wire.rows import encode_batch

log: Final = logging.getLogger("twophp.client")

CALLBACK: Final = b"callback"
HEARTBEATS: Final = 3  # Renewals in the time of one lease.


class Ledger:
    """Everything a transport writes down. Open it, use it and close it on one event loop."""

    def __init__(self, settings: Settings, store: WholeStore, writer: Writer) -> None:
        self.store = store
        self.owner = store.owners.register(settings.mint())
        self._settings = settings
        self._writer = writer
        self._care = Care(lease_ms=round(settings.lease_s * 1_000))
        self._driven: dict[str, tuple[int, int]] = {}  # Fence, and when it was last written.
        self._stopping = asyncio.Event()
        self._behind = BehindOnLoop(self._write)
        to = settings.shipping()
        self._shipper = None
        if to is not None:
            self._shipper = Shipper(store, writer, to, encode=encode_batch, mint=settings.mint, renamed=self._write_as)
            self._shipper.start()
        self._heart = asyncio.get_running_loop().create_task(self._beat())

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Open the store, made if it is not there, and say whose it is."""
        async with opening(settings.ledger, clock=settings.clock) as store:
            writer = await open_ledger(store, settings.source, settings.mint)
            return cls(settings, store, writer)

    async def close(self) -> None:
        """Finish what was accepted and close the store. Open calls are left to the next process that reconciles."""
        self._stopping.set()
        await asyncio.wait([self._heart])  # If it ended with an error, the rest is closed all the same.
        if self._shipper is not None:
            await self._shipper.close()
        await self.store.close()
        self.store.owners.release(self.owner)

    @property
    def is_alive(self) -> bool:
        """Whether it still renews leases: not once it was closed, nor once its loop has cancelled its tasks."""
        return not self._heart.done()

    async def flush(self) -> None:
        """Return when every outcome recorded behind an answer is written, or its failure is logged."""
        await self._behind.flush()

    def _write_as(self, writer: Writer) -> None:
        self._writer = writer

    async def look(self, client_correlation_id: str) -> Call | None:
        """The call as it is, after every earlier outcome of it was written."""
        await self._behind.caught_up(client_correlation_id)
        (call,) = await self._sure(partial(self.store.transact, ReadRecords((by_client_id(client_correlation_id),))))
        return call  # type: ignore[no-any-return]

    async def record(self, client_correlation_id: str, command: Command, request: bytes | None = None) -> CallDecision:
        """Decide and make durable: the call, its row, its history. ``request`` is kept, sealed, while it is SENT."""
        await self._behind.caught_up(client_correlation_id)
        return await self._write(client_correlation_id, command, request)

    def record_behind(self, known: Call, told: ServerReply) -> CallDecision | None:
        """Decide from what is known, at once and in any thread, and write it later. None: the caller must record it."""
        decision = self.decided(known, told)
        if decision.changed and not self._behind.add(known.client_correlation_id, told):
            return None
        return decision

    def decided(self, known: Call, told: ServerReply) -> CallDecision:
        """What this means for a call, as far as is known here and now."""
        return decide(known, told, self.store.now(), self._care)

    async def _write(self, client_correlation_id: str, command: Command, request: bytes | None = None) -> CallDecision:
        key, change = self.change(client_correlation_id, command, request)
        decision: CallDecision = await self._sure(partial(self.store.transact, AdHocCommand((key,), change)))
        self.note_driver(client_correlation_id, command, decision)
        return decision

    def change(self, client_correlation_id: str, command: Command, request: bytes | None = None) -> tuple[Key, Decide]:
        """What to read, and how to decide: any handle on the store may write it."""
        key = by_client_id(client_correlation_id)
        sealed = None
        if request is not None:
            sealed = self._vault.seal(request, context=self._context(client_correlation_id))

        def change(records: Records) -> Change:
            before: Call | None = records.get(key)
            decision = decide(before, self._knowing_the_dead(command, before), records.now, self._care)
            call = decision.call
            if not decision.changed or call is None:
                return Change(answer=decision)
            if call.stage is Stage.ABSENT:
                return Change(answer=decision, drops=(key,), journal=decision.steps)
            in_ledger = bool(decision.steps) and call.stage in IN_LEDGER
            kept = {"payload": sealed} if sealed is not None or _lets_go(before, call) else {}
            entry = client_entry(call, self._writer) if in_ledger else None
            put = Put(record=call, entry=entry, journal=decision.steps, seals=kept)  # type: ignore[arg-type]
            return Change(answer=decision, puts=(put,))

        return key, change

    def _knowing_the_dead(self, command: Command, call: Call | None) -> Command:
        """Tell a visit whether the driver has died. A dead owner stays dead, so deciding once more says the same."""
        if not isinstance(command, Tick) or call is None or self.store.owners.state(call.owner) != "dead":
            return command
        return Tick(owner=command.owner, dead_driver=call.owner)

    def blocking(self) -> BlockingSQLite | None:
        """Another handle, for threads. None if only the event loop can write to the store."""
        return open_blocking(self._settings.ledger, clock=self._settings.clock)

    async def _sure(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask again on the reopened store if a failed commit left it unknown what the store holds (A-42)."""
        try:
            return await ask()
        except (CommitUnknown, StorePoisoned):
            pass
        try:
            await self.store.reopen()
            return await ask()
        except StoreError as error:
            raise CommitUnknown(f"the client's ledger cannot say what it holds: {error.message}") from error

    async def noted_request(self, call: Call) -> bytes | None:
        """What was about to be sent when the call was noted."""
        sealed = await self.store.unseal(by_client_id(call.client_correlation_id), "payload")
        return None if sealed is None else self._vault.open(sealed, context=self._context(call.client_correlation_id))

    async def due(self, limit: int) -> list[str]:
        """Ids of calls without a driver, or that were kept long enough; calls of dead drivers come first."""
        await self._behind.flush()
        owners, state = await self.store.owners_of(CALL), self.store.owners.state
        dead = [owner for owner in owners if state(owner) == "dead"]
        keys = [key for owner in dead for key in await self.store.owned(CALL, owner, limit)]
        keys += await self.store.due(CALL, self.store.now() + 1, limit)
        return [key.values[0] for key in dict.fromkeys(keys)][:limit]

    def leave(self, client_correlation_id: str) -> None:
        """Stop renewing the lease of a call: its driver is done with it."""
        self._driven.pop(client_correlation_id, None)

    def callback_token(self, client_correlation_id: str) -> str:
        """The token of the URL at which this call is acknowledged, the same in every process that has the ring."""
        return callback_token(self._vault.derived(CALLBACK)[0], client_correlation_id)

    def made_token(self, token: str, client_correlation_id: str) -> bool:
        """Whether the token was made for this call, with any key of the ring: it may have been rotated since."""
        given = token.encode("utf-8", "replace")
        made = (callback_token(secret, client_correlation_id) for secret in self._vault.derived(CALLBACK))
        return any(compare_digest(one.encode(), given) for one in made)

    @cached_property
    def _vault(self) -> Vault:
        return open_vault(self._settings.ledger, self._settings.keys)

    def _context(self, client_correlation_id: str) -> bytes:
        return seal_context(self._writer.source, client_correlation_id, "payload")

    def note_driver(self, client_correlation_id: str, command: Command, decision: CallDecision) -> None:
        """Keep the lease of a call that this transport drives, and not of one that it has left."""
        call = decision.call
        if call is None or (isinstance(command, Renew) and client_correlation_id not in self._driven):
            return
        if call.owner == self.owner and call.stage in OPEN:
            self._driven[call.client_correlation_id] = call.fence, self._settings.steady()
        else:
            self.leave(call.client_correlation_id)

    async def _beat(self) -> None:
        """Renew what has been driven for a while. A call that is quicker than this costs no heartbeat."""
        interval_s = self._settings.lease_s / HEARTBEATS
        try:
            await self._purge()
            while not self._stopping.is_set():
                try:
                    async with asyncio.timeout(interval_s):
                        await self._stopping.wait()
                except TimeoutError:
                    await self._renew(self._settings.steady() - round(interval_s * 1_000))
                    await self._forget()
                    await self._purge()
        finally:  # Also when a loop ends and its transport was not closed: it cancels its tasks, and waits for them.
            await self._behind.close()

    async def _forget(self) -> None:
        """Delete old shipments: they are the only obligations here, and no reader needs settled ones."""
        if self._shipper is not None:
            try:
                await forget_settled(self.store, RETENTION_MS)
            except Exception as error:  # noqa: BLE001 - see ``_purge``.
                log.warning("old shipments could not be deleted: %s", error)

    async def _purge(self) -> None:
        """Delete rows that the central ledger has had for long enough (A-59), a bounded number at a time."""
        kept_ms = self._settings.ledger_retention_ms
        try:
            if kept_ms is not None:
                await purge(self.store, max(kept_ms, self._care.kept_ms))
        except Exception as error:  # noqa: BLE001 - a purge that fails must not end the heartbeat.
            log.warning("rows could not be purged: %s", error)

    async def _renew(self, before: int) -> None:
        old = [(id_, fence) for id_, (fence, at) in list(self._driven.items()) if at <= before]
        beats = (self.record(id_, Renew(fence=fence)) for id_, fence in old)
        for error in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(error, Exception):
                log.warning("a call could not be renewed: %s", error)


def _lets_go(before: Call | None, after: Call) -> bool:
    """Once both ids are known nothing has to be sent again, so nothing is kept."""
    return before is not None and before.stage is Stage.SENT and after.stage is not Stage.SENT
