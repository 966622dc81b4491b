"""The obligation tracker for event loops. The same calls as ``ObligationTracker``, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from twophp.core.obligation import ALREADY_COMMITTED, Commit, Decision, Obligation, ObligationError, Rollback, admitted
from twophp.core.records import Instant
from twophp.core.settings import knows_its_settings
from twophp.engine.obligations.audit import Audit, AuditLine, LeakReport, leak_report
from twophp.engine.obligations.fencing import Token
from twophp.engine.obligations.flow import Scanned
from twophp.engine.obligations.rules import milliseconds
from twophp.obligations.runtime import Apply, Options, Runtime, Which, statements, there, trace_of
from twophp.ports import JournalLine, Obligations, Statement


class AsyncObligationTracker:
    """Reserve, then commit or roll back. ``Options`` lists its settings; it opens with ``async with``."""

    @knows_its_settings(Options)
    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._runtime = Runtime(url, options)

    async def __aenter__(self) -> Self:
        await self._runtime.open()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self._runtime.close()

    # The contract.

    async def reserve(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> str:
        """See ``ObligationTracker.reserve``."""
        timeout_ms = None if timeout_secs is None else milliseconds(timeout_secs)
        obligations = self._runtime.obligations
        decision = await obligations.make(obligations.reserving(flow, payload, trace_of(trace_id), key, timeout_ms))
        made = admitted(decision, f"flow {flow!r}").obligation
        assert made is not None
        return made.obligation_id

    async def commit(self, obligation_id: str, trace_id: str | None = None, *, apply: Apply = ()) -> Decision:
        """See ``ObligationTracker.commit``."""
        return await self._settle(obligation_id, Commit(trace_id=trace_of(trace_id)), statements(apply))

    async def rollback(self, obligation_id: str, trace_id: str | None = None, *, strict: bool = False) -> Decision:
        """See ``ObligationTracker.rollback``."""
        return await self._roll_back(obligation_id, trace_of(trace_id), "caller", strict=strict)

    def guard(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> AsyncGuard:
        """``async with tracker.guard(...) as ob``; see ``ObligationTracker.guard``."""
        trace = trace_of(trace_id)
        return AsyncGuard(self, lambda: self.reserve(flow, payload, trace, key=key, timeout_secs=timeout_secs), trace)

    async def run_leak_scan(self, trace_id: str = "") -> Scanned:
        """See ``ObligationTracker.run_leak_scan``."""
        return await self._runtime.obligations.scan(trace_id)

    # Looking.

    async def get(self, obligation_id: str) -> Obligation:
        """See ``ObligationTracker.get``."""
        return there(await self._runtime.obligations.look(obligation_id), obligation_id)

    async def payload(self, obligation_id: str) -> Any:
        """See ``ObligationTracker.payload``."""
        return await self._runtime.obligations.payload(obligation_id)

    async def list(self, **which: Unpack[Which]) -> Sequence[Obligation]:
        """See ``ObligationTracker.list``."""
        return await self._runtime.store.obligations(Obligations(**which))

    async def history(self, obligation_id: str) -> Sequence[JournalLine]:
        """See ``ObligationTracker.history``."""
        key = (await self.get(obligation_id)).keys()[0]
        return await self._runtime.store.history(key)

    async def audit(self) -> AsyncIterator[AuditLine]:
        """See ``ObligationTracker.audit``."""
        export = Audit(self._runtime.store)
        while (page := await export.page()) is not None:
            for line in page:
                yield line

    async def report(self, *, since: Instant = 0) -> LeakReport:
        """See ``ObligationTracker.report``."""
        return await leak_report(self._runtime.store, since=since)

    # Fencing tokens.

    async def acquire(
        self, resource: str, trace_id: str | None = None, *, payload: Any = None, timeout_secs: float | None = None
    ) -> Token:
        """See ``ObligationTracker.acquire``."""
        timeout_ms = None if timeout_secs is None else milliseconds(timeout_secs)
        acquire = self._runtime.fencing.acquire
        return await acquire(resource, trace_of(trace_id), payload=payload, timeout_ms=timeout_ms)

    async def check(self, resource: str, number: int) -> None:
        """See ``ObligationTracker.check``."""
        await self._runtime.fencing.check(resource, number)

    async def release(self, token: Token, trace_id: str | None = None, *, apply: Apply = ()) -> Decision:
        """See ``ObligationTracker.release``."""
        return await self._runtime.fencing.release(token, trace_of(trace_id), apply=statements(apply))

    # Inside.

    async def _roll_back(
        self, obligation_id: str, trace_id: str, resolution: Literal["caller", "guard"], *, strict: bool = False
    ) -> Decision:
        command = Rollback(trace_id=trace_id, resolution=resolution, strict=strict)
        return await self._settle(obligation_id, command)

    async def _settle(
        self, obligation_id: str, command: Commit | Rollback, apply: tuple[Statement, ...] = ()
    ) -> Decision:
        obligations = self._runtime.obligations
        decision = await obligations.make(obligations.settling(obligation_id, command, apply))
        return admitted(decision, f"obligation {obligation_id}")


class AsyncGuard:
    """See ``Guard``."""

    def __init__(self, tracker: AsyncObligationTracker, reserve: Callable[[], Awaitable[str]], trace_id: str) -> None:
        self._tracker = tracker
        self._reserve = reserve
        self._trace_id = trace_id
        self._is_settled = False

    async def __aenter__(self) -> Self:
        self.obligation_id = await self._reserve()
        self._is_settled = False
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        try:
            await self._tracker._roll_back(self.obligation_id, self._trace_id, "guard")  # noqa: SLF001
        except ObligationError as error:
            if error.code != ALREADY_COMMITTED:  # It was committed by its id: nothing is left to give up.
                raise

    async def commit(self, *, apply: Apply = ()) -> Decision:
        """See ``ObligationTracker.commit``."""
        decision = await self._tracker.commit(self.obligation_id, self._trace_id, apply=apply)
        self._is_settled = True
        return decision

    async def rollback(self) -> Decision:
        """Give up before the end of the block."""
        decision = await self._tracker.rollback(self.obligation_id, self._trace_id)
        self._is_settled = True
        return decision
