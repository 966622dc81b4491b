"""The obligation tracker for threads: every call returns once what it says is durable.

On ``memory:`` nothing ever waits, so a call runs in its own thread from beginning to end. Otherwise the calls of all
threads go to one event loop, where those that come at the same time share one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from twophp.core.errors import StoreUnavailable
from twophp.core.machine import Refuse
from twophp.core.obligation import (
    ALREADY_COMMITTED,
    Commit,
    Decision,
    Obligation,
    ObligationError,
    Rollback,
    admitted,
)
from twophp.core.records import Instant
from twophp.core.settings import knows_its_settings
from twophp.engine.obligations.audit import Audit, AuditLine, LeakReport, leak_report
from twophp.engine.obligations.changes import ObligationCommand
from twophp.engine.obligations.fencing import Token
from twophp.engine.obligations.flow import Scanned
from twophp.engine.obligations.rules import milliseconds
from twophp.obligations.runtime import Apply, Options, Runtime, Which, statements, there, trace_of
from twophp.ports import JournalLine, Obligations
from twophp.stores.portal import Portal, run_sync

T = TypeVar("T")


class ObligationTracker:
    """Reserve, then commit or roll back. ``Options`` lists its settings; use it with ``with``, or close it."""

    @knows_its_settings(Options)
    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._runtime = runtime = Runtime(url, options)
        is_direct = url == "memory:" and not runtime.rules.owes
        # Scans and deliveries go on between the calls, so they need a loop of their own; calls on memory do not.
        self._portal = None if is_direct and not runtime.scans else Portal("twophp-obligations")
        self._run: Callable[[Coroutine[Any, Any, Any]], Any] = run_sync if is_direct else self._portal_run
        self._closed = False
        if self._portal is None:
            run_sync(runtime.open())
        else:
            self._portal.open(runtime.open(), runtime.close)
        self._obligations = runtime.obligations
        # Nothing waits in memory: most changes are made right here, without a coroutine.
        self._at_once = runtime.at_once if is_direct else None
        self._flows = runtime.rules.flows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop scanning and delivering, finish what was accepted, let go. Closing twice is closing once.

        In a child that was forked it does nothing: what is open is the parent's.
        """
        if self._closed or (self._portal is not None and self._portal.is_parents):
            return
        self._closed = True
        self._at_once = None
        if self._portal is not None:
            try:
                self._portal.run(self._runtime.close())
            finally:
                self._portal.close()
        self._run = _refuse

    # The contract.

    def reserve(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> str:
        """Record a tentative effect and return its obligation's id. Nothing of it is visible before the commit.

        While it is Reserved, no other caller of the flow can reserve the same ``key``: by default the payload's member
        ``key``, else its digest (A-75). Raises ERR_OBL_DUPLICATE_RESERVE while another holds it, and ValueError for an
        unknown flow.
        """
        timeout_ms = None if timeout_secs is None else milliseconds(timeout_secs)
        trace = trace_of(None) if trace_id is None else trace_id
        command, sealed = self._obligations.command(flow, payload, trace, key, timeout_ms)
        if self._at_once is not None and self._at_once.reserve_at_once(command, self._flows, sealed):
            return command.obligation_id
        admitted(self._make(self._obligations.reserving_with(command, sealed)), f"flow {flow!r}")
        return command.obligation_id

    def commit(self, obligation_id: str, trace_id: str | None = None, *, apply: Apply = ()) -> Decision:
        """Make the effect permanent and visible: the state, what is owed outside, and ``apply``, or none of it.

        Raises ERR_OBL_LEAK_TIMEOUT at or over the timeout, whether or not a scan has come by.
        """
        command = Commit(trace_id=trace_of(None) if trace_id is None else trace_id)
        if self._at_once is not None and apply == ():
            decision = self._at_once.settle_at_once(obligation_id, command)
        else:
            decision = self._make(self._obligations.settling(obligation_id, command, statements(apply)))
        if type(decision.verdict) is Refuse:
            admitted(decision, f"obligation {obligation_id}")
        return decision

    def rollback(self, obligation_id: str, trace_id: str | None = None, *, strict: bool = False) -> Decision:
        """Release everything tentative. Rolling back again succeeds and changes nothing, unless ``strict`` (A-70)."""
        return self._roll_back(obligation_id, trace_of(trace_id), "caller", strict=strict)

    def guard(
        self,
        flow: str,
        payload: Any = None,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        timeout_secs: float | None = None,
    ) -> Guard:
        """``with tracker.guard(...) as ob``: rolled back at the end of the block unless ``ob.commit()`` was called."""
        trace = trace_of(trace_id)
        return Guard(self, lambda: self.reserve(flow, payload, trace, key=key, timeout_secs=timeout_secs), trace)

    def run_leak_scan(self, trace_id: str = "") -> Scanned:
        """Roll back every obligation that is at or over its timeout now."""
        found: Scanned = self._run(self._obligations.scan(trace_id))
        return found

    # Looking.

    def get(self, obligation_id: str) -> Obligation:
        """The obligation as it is. Raises ERR_OBL_NOT_FOUND."""
        return there(self._run(self._obligations.look(obligation_id)), obligation_id)

    def payload(self, obligation_id: str) -> Any:
        """What was reserved, as JSON has it; None once it was rolled back."""
        return self._run(self._obligations.payload(obligation_id))

    def list(self, **which: Unpack[Which]) -> Sequence[Obligation]:
        """Obligations, newest first, narrowed by what is given: see ``Which``."""
        found: Sequence[Obligation] = self._run(self._runtime.store.obligations(Obligations(**which)))
        return found

    def history(self, obligation_id: str) -> Sequence[JournalLine]:
        """Every event of one obligation, oldest first."""
        key = self.get(obligation_id).keys()[0]
        found: Sequence[JournalLine] = self._run(self._runtime.store.history(key))
        return found

    def audit(self) -> Iterator[AuditLine]:
        """Every event of every obligation, oldest first, hash-chained; ``as_json_line`` makes a line of each."""
        export = Audit(self._runtime.store)
        while (page := self._run(export.page())) is not None:
            yield from page

    def report(self, *, since: Instant = 0) -> LeakReport:
        """Whether obligations leak, by flow."""
        found: LeakReport = self._run(leak_report(self._runtime.store, since=since))
        return found

    # Fencing tokens.

    def acquire(
        self, resource: str, trace_id: str | None = None, *, payload: Any = None, timeout_secs: float | None = None
    ) -> Token:
        """Hold a resource with a token higher than any before; ERR_OBL_DUPLICATE_RESERVE while another holds it."""
        timeout_ms = None if timeout_secs is None else milliseconds(timeout_secs)
        held = self._runtime.fencing.acquire(resource, trace_of(trace_id), payload=payload, timeout_ms=timeout_ms)
        token: Token = self._run(held)
        return token

    def check(self, resource: str, number: int) -> None:
        """Raise StaleToken unless this token holds the resource now. The resource calls it before each use."""
        self._run(self._runtime.fencing.check(resource, number))

    def release(self, token: Token, trace_id: str | None = None, *, apply: Apply = ()) -> Decision:
        """Release the resource when the work is done; ``apply`` is written only if the token still holds."""
        wanted = self._runtime.fencing.release(token, trace_of(trace_id), apply=statements(apply))
        decision: Decision = self._run(wanted)
        return decision

    # Inside.

    def _roll_back(
        self, obligation_id: str, trace_id: str, resolution: Literal["caller", "guard"], *, strict: bool = False
    ) -> Decision:
        command = Rollback(trace_id=trace_id, resolution=resolution, strict=strict)
        if self._at_once is not None:
            decision = self._at_once.settle_at_once(obligation_id, command)
        else:
            decision = self._make(self._obligations.settling(obligation_id, command))
        return admitted(decision, f"obligation {obligation_id}")

    def _make(self, wanted: ObligationCommand) -> Decision:
        decision: Decision = self._run(self._obligations.make(wanted))
        return decision

    def _portal_run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._portal is not None
        return self._portal.run(coroutine)


class Guard:
    """One obligation that cannot be forgotten: it ends with its block."""

    def __init__(self, tracker: ObligationTracker, reserve: Callable[[], str], trace_id: str) -> None:
        self._tracker = tracker
        self._reserve = reserve
        self._trace_id = trace_id
        self._is_settled = False

    def __enter__(self) -> Self:
        self.obligation_id = self._reserve()
        self._is_settled = False  # A guard may be entered again: it is another obligation then.
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        try:
            self._tracker._roll_back(self.obligation_id, self._trace_id, "guard")  # noqa: SLF001
        except ObligationError as error:
            if error.code != ALREADY_COMMITTED:  # It was committed by its id: nothing is left to give up.
                raise

    def commit(self, *, apply: Apply = ()) -> Decision:
        """See ``ObligationTracker.commit``."""
        decision = self._tracker.commit(self.obligation_id, self._trace_id, apply=apply)
        self._is_settled = True
        return decision

    def rollback(self) -> Decision:
        """Give up before the end of the block."""
        decision = self._tracker.rollback(self.obligation_id, self._trace_id)
        self._is_settled = True
        return decision


def _refuse(coroutine: Coroutine[Any, Any, Any]) -> Any:
    coroutine.close()
    raise StoreUnavailable("the tracker is closed", code="store_closed")
