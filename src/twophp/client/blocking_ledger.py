"""The ledger for threads: a caller writes what it waits for itself, with no hop to the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final, Self

from twophp.client.ledger import Ledger
from twophp.client.write_behind import WriteBehindQueue
from twophp.core.call import Call, by_client_id
from twophp.core.call_commands import Command, ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, TwoPHPError
from twophp.kernel.commands import AdHocCommand, ReadRecords
from twophp.ports import Command as StoreCommand
from twophp.stores.sqlite.blocking import BlockingSQLite

log: Final = logging.getLogger("twophp.client")


class BlockingLedger(WriteBehindQueue):
    """Beside a ``Ledger``, which keeps the leases and answers the questions: a second handle on the same file."""

    def __init__(self, ledger: Ledger, handle: BlockingSQLite) -> None:
        super().__init__()
        self._ledger = ledger
        self._handle = handle
        self._flushing: asyncio.Future[None] | None = None

    @classmethod
    async def beside(cls, ledger: Ledger) -> Self | None:
        """None if the ledger's store has no such way."""
        handle = ledger.blocking()
        return None if handle is None else cls(ledger, handle)

    def look(self, client_correlation_id: str) -> Call | None:
        """See ``Ledger.look``."""
        self.hurry()
        (call,) = self._transact(ReadRecords((by_client_id(client_correlation_id),)))
        return call  # type: ignore[no-any-return]

    def record(self, client_correlation_id: str, command: Command, request: bytes | None = None) -> CallDecision:
        """See ``Ledger.record``."""
        self.hurry()
        key, change = self._ledger.change(client_correlation_id, command, request)
        decision: CallDecision = self._transact(AdHocCommand((key,), change))
        self._ledger.note_driver(client_correlation_id, command, decision)
        return decision

    def record_behind(self, known: Call, told: ServerReply) -> CallDecision | None:
        """See ``Ledger.record_behind``."""
        decision = self._ledger.decided(known, told)
        if decision.changed and not self.add(known.client_correlation_id, told):
            return None
        return decision

    def flush(self) -> None:
        """Return when every outcome recorded behind an answer is written, or its failure is logged."""
        self.hurry()
        self._handle.flush()

    def close(self) -> None:
        """Take nothing more, finish, and close the handle."""
        self._refuse()
        self.hurry()
        self._handle.close()

    def _transact(self, command: StoreCommand) -> Any:
        """See ``Ledger``: deciding once more on the reopened store finds out (A-42)."""
        try:
            return self._handle.transact(command)
        except (CommitUnknown, StorePoisoned):
            pass
        try:
            self._handle.reopen()
            return self._handle.transact(command)
        except StoreError as error:
            raise CommitUnknown(f"the client's ledger cannot say what it holds: {error.message}") from error

    def _begin(self, client_correlation_id: str, told: ServerReply) -> TwoPHPError | None:
        key, change = self._ledger.change(client_correlation_id, told)
        try:
            self._handle.hand_over(AdHocCommand((key,), change), partial(self._heard, client_correlation_id, told))
        except TwoPHPError as error:
            return error
        return None

    def _heard(self, client_correlation_id: str, told: ServerReply, decision: Any, error: Exception | None) -> None:
        ours = error if error is None or isinstance(error, TwoPHPError) else StoreError(repr(error))
        self._ended(client_correlation_id, told, decision, ours)

    def _look(self) -> None:
        super()._look()
        if not self._handle.is_idle():
            try:
                self._flushing = self._loop.run_in_executor(None, self._handle.flush)
            except RuntimeError:  # The interpreter is ending, and starts no threads: the flush at its exit does it.
                log.debug("outcomes are left to the flush at exit")
