"""The obligation machine: every rule about a reserved effect, and nothing else.

Theory. An obligation is a tentative effect. It is reserved, and then committed or rolled back, once. It may stay
Reserved no longer than its timeout, so time is part of the state here as it is for an intent: a Reserved obligation
whose timeout has passed is OVERDUE for every command, long before any scan. OVERDUE is never stored. That is why a late
commit fails between two scans as surely as after one (A-73), and why "no obligation stays Reserved beyond the timeout"
does not depend on how often the scan runs.

* ``decide`` names the *signal* that a command amounts to, looks it up in ``TABLE`` under the obligation's effective
  state, and returns the records to store and the history to write, all of it one change.
* A reserve is about two obligations: the one that holds its flow and key now, under whose state the cell is looked up,
  and the new one. A holder that is overdue is rolled back first, by its own cell; then the reserve meets a holder that
  no longer has the key. Both are one change (T4).
* The table carries the audit codes OBL-001 to OBL-004: a state cannot change without its event. OBL-005 speaks of a
  whole scan and of no single obligation; ``scan_completed`` makes it.

    caller    RESERVE, RESERVE_AGAIN, COMMIT, ROLLBACK, ROLLBACK_STRICT
    time      SCAN
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from twophp.core.errors import Refused
from twophp.core.identity import digest
from twophp.core.machine import Cell, Goto, Ignore, Never, Refuse, Replay
from twophp.core.misfits import unwritable
from twophp.core.records import Instant, JournalEvent, Key

OBLIGATION: Final = "obligation"
BY_ID: Final = "obligation.obligation_id"
BY_FLOW_AND_KEY: Final = "obligation.flow_and_key"

LEAK_TIMEOUT_MS: Final = 30_000
"""How long an obligation may stay Reserved unless it says otherwise (OBL-LEAK-1)."""

FLOWS: Final = frozenset({"publish", "revoke", "quarantine", "migration", "fencing"})
"""The closed set of the contract. ``flows_with`` is the one way to widen it (A-78)."""

# Event codes (OBL-EVT-1 to -5).
RESERVED_EVENT: Final = "OBL-001"
COMMITTED_EVENT: Final = "OBL-002"
ROLLED_BACK_EVENT: Final = "OBL-003"
LEAK_EVENT: Final = "OBL-004"
SCAN_EVENT: Final = "OBL-005"

# Error codes (OBL-ERR-1 to -5).
ALREADY_COMMITTED: Final = "ERR_OBL_ALREADY_COMMITTED"
ALREADY_ROLLED_BACK: Final = "ERR_OBL_ALREADY_ROLLED_BACK"
NOT_FOUND: Final = "ERR_OBL_NOT_FOUND"
LEAK_TIMEOUT: Final = "ERR_OBL_LEAK_TIMEOUT"
DUPLICATE_RESERVE: Final = "ERR_OBL_DUPLICATE_RESERVE"

RESERVE_MISMATCH: Final = "reserve_mismatch"
"""Ours, not the contract's: an id was used for two different reserves."""

EVENTS: Final[Mapping[str, str]] = {
    RESERVED_EVENT: "Obligation reserved",
    COMMITTED_EVENT: "Obligation committed",
    ROLLED_BACK_EVENT: "Obligation rolled back",
    LEAK_EVENT: "Obligation leak detected",
    SCAN_EVENT: "Leak scan completed",
}
ERRORS: Final[Mapping[str, str]] = {
    ALREADY_COMMITTED: "A committed obligation can neither be committed again nor rolled back",
    ALREADY_ROLLED_BACK: "A rolled-back obligation cannot be committed",
    NOT_FOUND: "There is no obligation with this id",
    LEAK_TIMEOUT: "The obligation was held for longer than its leak timeout",
    DUPLICATE_RESERVE: "Another obligation with this flow and key is Reserved",
}

Resolution: TypeAlias = Literal["", "caller", "guard", "leak_scan"]
"""What settled the obligation (A-74); empty while it is Reserved."""


class State(StrEnum):
    """The three states of the contract, Absent, and Overdue for a Reserved obligation whose timeout has passed."""

    ABSENT = "Absent"
    RESERVED = "Reserved"
    OVERDUE = "Overdue"  # Never stored: see the theory above.
    COMMITTED = "Committed"
    ROLLED_BACK = "RolledBack"

    __hash__ = str.__hash__


class Signal(StrEnum):
    """What a command amounts to, in the tracker's own words."""

    RESERVE = "reserve"  # Looked up under the state of the holder of the same flow and key.
    RESERVE_AGAIN = "reserve_again"  # The id is taken: the same reserve, said again after an unknown commit.
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_STRICT = "rollback_strict"  # From a caller that wants an error if it was rolled back before.
    SCAN = "scan"

    __hash__ = str.__hash__


# Looking an enum's member up by name costs ten times as much as a global; the functions below run for every effect.
_ABSENT, _RESERVED, _OVERDUE = State.ABSENT, State.RESERVED, State.OVERDUE
_BY_RESERVE, _BY_COMMIT = Signal.RESERVE, Signal.COMMIT
_NO_STEPS: Final[tuple[JournalEvent, ...]] = ()
_TEXT: Final[dict[State, str]] = {state: state.value for state in State}
_STATES: Final[dict[str, State]] = {state.value: state for state in State}

_S, _O = Signal, State
_REPLAY, _IGNORE = Replay(), Ignore()
_NOT_FOUND, _DUPLICATE = Refuse(NOT_FOUND), Refuse(DUPLICATE_RESERVE)
_COMMITTED, _ROLLED_BACK = Refuse(ALREADY_COMMITTED), Refuse(ALREADY_ROLLED_BACK)
_RESERVE, _COMMIT = Goto((_O.RESERVED,), RESERVED_EVENT), Goto((_O.COMMITTED,), COMMITTED_EVENT)
_ROLL_BACK, _LEAK = Goto((_O.ROLLED_BACK,), ROLLED_BACK_EVENT), Goto((_O.ROLLED_BACK,), LEAK_EVENT)

TABLE: Final[dict[State, dict[Signal, Cell]]] = {
    _O.ABSENT: {
        _S.RESERVE: _RESERVE,
        _S.RESERVE_AGAIN: Never("an id that nothing has is not taken"),
        _S.COMMIT: _NOT_FOUND,
        _S.ROLLBACK: _NOT_FOUND,  # "always succeeds" speaks of obligations that exist.
        _S.ROLLBACK_STRICT: _NOT_FOUND,
        _S.SCAN: _IGNORE,
    },
    _O.RESERVED: {
        _S.RESERVE: _DUPLICATE,  # flow and key belong to one obligation while it is Reserved.
        _S.RESERVE_AGAIN: _REPLAY,
        _S.COMMIT: _COMMIT,
        _S.ROLLBACK: _ROLL_BACK,
        _S.ROLLBACK_STRICT: _ROLL_BACK,
        _S.SCAN: _IGNORE,
    },
    _O.OVERDUE: {
        _S.RESERVE: _LEAK,  # The holder leaks; the reserve then meets it RolledBack.
        _S.RESERVE_AGAIN: Refuse(LEAK_TIMEOUT, _LEAK),  # It cannot be committed any more, so a success would be false.
        _S.COMMIT: Refuse(LEAK_TIMEOUT, _LEAK),  # rolled back in the same change, and the caller gets the error.
        _S.ROLLBACK: _ROLL_BACK,  # The owner gave it up by itself: late, but no leak.
        _S.ROLLBACK_STRICT: _ROLL_BACK,
        _S.SCAN: _LEAK,  # OBL-LEAK-5, OBL-LEAK-6
    },
    _O.COMMITTED: {
        _S.RESERVE: _RESERVE,  # A new obligation: a settled one holds no key, and is left as it is.
        _S.RESERVE_AGAIN: _REPLAY,
        _S.COMMIT: _COMMITTED,
        _S.ROLLBACK: _COMMITTED,
        _S.ROLLBACK_STRICT: _COMMITTED,
        _S.SCAN: _IGNORE,
    },
    _O.ROLLED_BACK: {
        _S.RESERVE: _RESERVE,
        _S.RESERVE_AGAIN: _REPLAY,
        _S.COMMIT: _ROLLED_BACK,
        _S.ROLLBACK: _REPLAY,  # INV-OBL-ROLLBACK-SAFE, A-70: success, no change, no event.
        _S.ROLLBACK_STRICT: _ROLLED_BACK,
        _S.SCAN: _IGNORE,
    },
}


class Obligation(msgspec.Struct, frozen=True, gc=False):
    """One tentative effect. Fields stand in the order of the store's columns."""

    obligation_id: str
    flow: str
    key: str  # Empty: nothing to collide with.
    trace_id: str  # Of the reserve; stored as given.
    intent: str  # Server correlation id of the intent whose handler opened it, or empty.
    reserved_at: Instant
    timeout_ms: int
    # The fields below change, once; those above never do.
    state: State = State.ABSENT
    version: int = 0
    settled_at: Instant | None = None
    resolution: Resolution = ""
    due_at: Instant | None = None
    counted: bool = False  # Whether it counts in its flow's budget while it is Reserved.

    @property
    def overdue_at(self) -> Instant:
        """From this instant on it is overdue: elapsed >= timeout (A-74)."""
        return self.reserved_at + self.timeout_ms

    def effective_state(self, now: Instant) -> State:
        """The state to be judged by. A clock that went backwards makes nothing overdue (OBL-LEAK-4)."""
        if self.state is _RESERVED and now >= self.reserved_at + self.timeout_ms:
            return _OVERDUE
        return self.state

    def keys(self) -> tuple[Key, ...]:
        """Found by its id and, while it is Reserved, by the flow and key that it keeps others from."""
        identity = Key(BY_ID, (self.obligation_id,))
        if self.state is _RESERVED and self.key:
            return identity, Key(BY_FLOW_AND_KEY, (self.flow, self.key))
        return (identity,)


def by_id(obligation_id: str) -> Key:
    """The key that a commit, a rollback or the scan looks for."""
    return Key(BY_ID, (obligation_id,))


def by_flow_and_key(flow: str, key: str) -> Key:
    """The key that a reserve looks for: an obligation that holds it is in the way."""
    return Key(BY_FLOW_AND_KEY, (flow, key))


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Record a tentative effect. ``obligation_id`` is a fresh one."""

    obligation_id: str
    flow: str
    trace_id: str
    key: str = ""
    intent: str = ""
    timeout_ms: int = LEAK_TIMEOUT_MS
    counted: bool = False


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make the effect permanent and visible."""

    trace_id: str


class Rollback(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Release everything tentative. ``strict`` asks to be refused when that was done before (A-70)."""

    trace_id: str
    resolution: Literal["caller", "guard"] = "caller"
    strict: bool = False


class Scan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The leak scan's visit. Without a trace id of its own, its events carry the obligation's."""

    trace_id: str = ""


Command: TypeAlias = Reserve | Commit | Rollback | Scan


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What ``decide`` found: the verdict, the obligation it is about, and everything to store in one change."""

    verdict: Cell
    obligation: Obligation | None
    steps: tuple[JournalEvent, ...] = ()
    changed: bool = False
    leaked: Obligation | None = None  # The overdue holder that had to make room for a new reserve.
    information: str | None = None  # A code that is worth knowing and is no refusal.

    @property
    def code(self) -> str | None:
        """The refusal's code, or None. A refusal may still have changed something: see ``changed``."""
        return self.verdict.code if type(self.verdict) is Refuse else None

    @property
    def records(self) -> tuple[Obligation, ...]:
        """The records to store: the one that frees its key before the one that takes it."""
        found = (self.leaked, self.obligation) if self.changed else ()
        return tuple(record for record in found if record is not None)


class ObligationError(Refused):
    """One of the contract's five errors. ``obligation`` is the obligation it is about, or None if there is none."""

    default_code = NOT_FOUND

    def __init__(self, message: str, *, code: str | None = None, obligation: Obligation | None = None) -> None:
        super().__init__(message, code=code)
        self.obligation = obligation


def admitted(decision: Decision, about: str) -> Decision:
    """The decision; raises if it is a refusal. Changes that a refusal made durable stay durable (A-73)."""
    code = decision.code
    if code is not None:
        raise ObligationError(f"{about}: {ERRORS[code]}", code=code, obligation=decision.obligation)
    return decision


class UnknownFlow(Refused, ValueError):
    """The flow is not in the declared set (A-78); nothing was reserved."""

    default_code = "unknown_flow"


def decide(obligation: Obligation | None, command: Command, now: Instant, flows: Container[str] = FLOWS) -> Decision:
    """What ``command`` means for ``obligation`` at ``now``. Pure.

    For a reserve, ``obligation`` is what is found under its id or else under its flow and key.
    """
    if type(command) is Reserve:
        return _reserve(obligation, command, now, flows)
    if type(command) is Commit:
        return _take(obligation, _BY_COMMIT, command, now)
    if type(command) is Scan:
        return _take(obligation, Signal.SCAN, command, now)
    assert type(command) is Rollback
    decision = _take(obligation, Signal.ROLLBACK_STRICT if command.strict else Signal.ROLLBACK, command, now)
    if type(decision.verdict) is not Replay:
        return decision
    return Decision(decision.verdict, obligation, information=ALREADY_ROLLED_BACK)


# Everything is built by position: a keyword, a copy, ``max`` or an enum's ``value`` costs as much as all the rest.


def _reserve(holder: Obligation | None, command: Reserve, now: Instant, flows: Container[str]) -> Decision:
    """Look up the holder's cell, twice if the holder has to leak first; then make the new obligation."""
    id_, flow, timeout_ms = command.obligation_id, command.flow, command.timeout_ms
    if flow not in flows:
        raise UnknownFlow(f"unknown flow: {flow!r}")
    if timeout_ms <= 0:
        raise Refused("timeout_ms must be positive", code="bad_timeout")
    leaked, steps = None, _NO_STEPS
    if holder is None:
        cell = TABLE[_ABSENT][_BY_RESERVE]
    elif holder.obligation_id == id_:
        return _reserve_again(holder, command, now)
    else:
        cell, leaked, steps = _met(holder, command, now)
    if type(cell) is not Goto:
        return Decision(cell, holder)
    event = cell.event
    assert event is not None  # INV-OBL-AUDIT-COMPLETE
    trace_id = command.trace_id
    new = Obligation(
        id_,
        flow,
        command.key,
        trace_id,
        command.intent,
        now,
        timeout_ms,
        _RESERVED,
        1,
        None,
        "",
        now + timeout_ms,
        command.counted,
    )
    step = JournalEvent(OBLIGATION, id_, event, "Absent", "Reserved", now, now, 0, trace_id, flow)
    return Decision(cell, new, (*steps, step), True, leaked)  # noqa: FBT003 - see above


def _met(
    holder: Obligation, command: Reserve, now: Instant
) -> tuple[Cell, Obligation | None, tuple[JournalEvent, ...]]:
    """The cell that decides in the end, and the holder if it had to leak first."""
    assert (holder.flow, holder.key) == (command.flow, command.key or None), "not in the way"
    met = _take(holder, _BY_RESERVE, command, now)
    if not met.changed or met.obligation is None:
        return met.verdict, None, ()
    return TABLE[met.obligation.state][_BY_RESERVE], met.obligation, met.steps


def _reserve_again(holder: Obligation, command: Reserve, now: Instant) -> Decision:
    """The id is taken. Only the same reserve is replayed: a caller that means another effect must get an error."""
    if (holder.flow, holder.key) != (command.flow, command.key):
        message = f"obligation {command.obligation_id} was reserved with another flow or key; use a fresh id"
        raise Refused(message, code=RESERVE_MISMATCH)
    return _take(holder, Signal.RESERVE_AGAIN, command, now)


def _take(obligation: Obligation | None, signal: Signal, command: Command, now: Instant) -> Decision:
    """Apply the cell to the stored obligation."""
    cell = TABLE[_ABSENT if obligation is None else obligation.effective_state(now)][signal]
    assert type(cell) is not Never, cell.why
    goto = cell.goto if type(cell) is Refuse else cell
    if type(goto) is not Goto or obligation is None:
        return Decision(cell, obligation)
    after = _STATES[goto.path[-1]]
    return Decision(cell, obligation) if after is _RESERVED else _settled(obligation, cell, goto, after, command, now)


def _settled(before: Obligation, cell: Cell, goto: Goto, after: State, command: Command, now: Instant) -> Decision:
    event = goto.event
    assert event is not None  # INV-OBL-AUDIT-COMPLETE
    who: Resolution = command.resolution if type(command) is Rollback else "caller"
    detail: str = who
    at = now
    if event == LEAK_EVENT:
        # true from the timeout on, whenever it is noticed. A-73: OBL-004 carries the error code as well.
        who, at, detail = "leak_scan", before.overdue_at, LEAK_TIMEOUT
    id_, trace_id, reserved_at = before.obligation_id, before.trace_id, before.reserved_at
    settled = Obligation(
        id_,
        before.flow,
        before.key,
        trace_id,
        before.intent,
        reserved_at,
        before.timeout_ms,
        after,
        before.version + 1,
        now if now > reserved_at else reserved_at,  # noqa: FURB136 - A-29: never before its beginning.
        who,
        None,
        before.counted,
    )
    told = command.trace_id or trace_id
    step = JournalEvent(OBLIGATION, id_, event, _TEXT[before.state], _TEXT[after], at, now, 0, told, detail)
    return Decision(cell, settled, (step,), True)  # noqa: FBT003 - see above


def scan_completed(*, scanned: int, leaked: int, now: Instant, trace_id: str = "") -> JournalEvent:
    """The last event of every scan, also of one that found nothing (OBL-LEAK-7). ``scanned``: Reserved at its start."""
    detail = f"scanned={scanned} leaked={leaked}"
    return JournalEvent(OBLIGATION, "leak_scan", SCAN_EVENT, "", "", now, now, trace_id=trace_id, detail=detail)


RETENTION: Final = "retention"
"""The kind of line that names deleted records. It is no event of an obligation: the obligation's history stays."""


def forgotten(obligation_ids: Sequence[str], now: Instant) -> JournalEvent:
    """The line that is written when the records of settled obligations are deleted, to explain their absence."""
    detail = msgspec.json.encode(obligation_ids).decode()
    return JournalEvent(RETENTION, OBLIGATION, "forgotten", "", "", now, now, detail=detail)


def flows_with(declared: Iterable[str] = ()) -> frozenset[str]:
    """The contract's flows and those that a service declares by name (A-78)."""
    flows = FLOWS.union(declared)
    if not all(flows):
        raise UnknownFlow("a flow needs a name")
    return flows


KEY_TAG: Final = b"twophp:obligation-key:1"


def canonical_key(payload: Any = None, key: str | None = None) -> str:
    """The key that a reserve collides by, or an empty string if it collides with nothing (A-75).

    The caller's ``key``, else the payload's member ``key``, else the digest of the payload unless that is empty.
    """
    if key is not None:
        if not key:
            raise Refused("key must not be empty; leave it out to have it derived", code="empty_key")
        return key
    named = payload.get("key") if type(payload) is dict or isinstance(payload, Mapping) else None
    if type(named) is str and named:
        return named
    if named is not None and named != "":
        return named if isinstance(named, str) else _canonical(named).decode()
    if payload is None or (isinstance(payload, Sized) and not len(payload)):
        return ""
    if isinstance(payload, bytes):
        return digest(KEY_TAG, b"bytes", payload)
    return digest(KEY_TAG, b"json", _canonical(payload))


def _canonical(value: object) -> bytes:
    """JSON with sorted members and no spaces: equal values, however they were built, give equal bytes."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the payload has no canonical form: {unwritable(error)}"
        raise Refused(message, code="payload_not_canonical") from error
