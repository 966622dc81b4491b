"""The call machine: every rule about what a client knows of a call it made, and nothing else.

Theory. A client knows the server's answers, and one thing more: whether it still means to confirm. Six things follow.

* A call has a ledger row from the moment both ids are known (draft §5.2.3), and the row shows the server's latest
  statement (A-49). An answer that was overtaken by a later one changes nothing; no phase is taken back.
* A call that the server executes at once (auto-confirm) is noted *before* it is sent, as SENT, without a row: only
  here may something run while the client holds no row (A-43). It stays SENT until an answer or a callback comes.
* The one thing a client decides by itself is not to confirm: GIVE_UP. Afterwards the same call may be made anew, so it
  must be true. An open call therefore has a driver with a lease and a fence. A driver that takes a call over may
  confirm it, so only the holder of the fence may give it up; a driver that was suspended and comes back is OVERTAKEN.
* To give up is no statement about the server, where the call still waits. The row says so until the client's deadline
  has passed, and TTL_EXPIRED from then on (A-49). Until then the call is GIVEN_UP: nobody drives it, asks about it or
  confirms it, and the first visit after the DEADLINE ends it. A server's answer in that time is a fact like any other.
* Facts need no fence. Every process that learns how a call ended writes it down, and a second one finds it written.
* A 408 refuses one confirm; it is no statement about another. It proves that nothing ran only if it answers the first
  request that could have made the call run: the first of its driver, on a call that was never taken over (fence 1). Any
  other 408 is LATE and changes nothing. A status read that says TTL_EXPIRED states the server's own record, so the row
  says it too; but a server may answer every read after the TTL like that (draft §8.2 read literally), so the call is
  marked UNPROVEN, and its caller is never advised to make it anew.

    before    NOTE
    told      WAITING, PROCESSING, COMMITTED, FAILED, INDETERMINATE, EXPIRED, LATE, NONE, PLAIN, OTHER
    callback  ACKNOWLEDGED, ACKNOWLEDGED_AGAIN
    driver    GIVE_UP, GIVE_UP_LATE, RENEW, RELEASE, OVERTAKEN
    others    TAKE_OVER, HELD, DEADLINE, FORGET, IDLE
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from twophp.core.call import CALL, IN_LEDGER, OPEN, UNPROVEN, Call, Stage, call_facts
from twophp.core.call_commands import Command, GiveUp, Note, NotThere, Release, Renew, ServerReply, Tick
from twophp.core.intent import Phase
from twophp.core.machine import Cell, Goto, Ignore, Never, Refuse, Replay
from twophp.core.policy import DAY_MS, HOUR_MS, SECOND_MS
from twophp.core.records import Instant, JournalEvent


class Signal(StrEnum):
    """What a command amounts to, once its guards have been weighed."""

    NOTE = "NOTE"  # About to be sent to a server that confirms by itself.
    WAITING = "WAITING"  # The server registered it and waits.
    PROCESSING = "PROCESSING"  # The server said so, with its id.
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    INDETERMINATE = "INDETERMINATE"  # FAILED, and the server does not know whether the effects happened.
    EXPIRED = "EXPIRED"  # A 408 to the first confirm, or a status read that says so.
    LATE = "LATE"  # A 408 to a repeat: it proves nothing about the requests before it.
    NONE = "NONE"  # The server says that there is no such intent, or that it registered nothing.
    PLAIN = "PLAIN"  # The server does not speak 2PHP and has simply done it.
    ACKNOWLEDGED = "ACKNOWLEDGED"  # The callback came: the point of no return was crossed (draft §5.5.5).
    ACKNOWLEDGED_AGAIN = "ACKNOWLEDGED_AGAIN"  # Delivered a second time.
    OTHER = "OTHER"  # A reply with another server correlation id than before.
    GIVE_UP = "GIVE_UP"  # It will not be confirmed, says the holder of the fence, though it still could be.
    GIVE_UP_LATE = "GIVE_UP_LATE"  # The same, and its deadline has passed.
    RENEW = "RENEW"  # Still being driven, says the holder of the fence.
    RELEASE = "RELEASE"  # No longer being driven, says the holder of the fence.
    OVERTAKEN = "OVERTAKEN"  # Any of the four, from a driver whose fence was taken over.
    TAKE_OVER = "TAKE_OVER"  # The lease ran out, the driver released the call, or it is dead.
    HELD = "HELD"  # The lease still runs.
    DEADLINE = "DEADLINE"  # It was given up, and its deadline has passed since.
    FORGET = "FORGET"  # It was kept long enough.
    IDLE = "IDLE"  # Nothing to do.

    __hash__ = str.__hash__


UNKNOWN: Final = "unknown_call"
OTHER_INTENT: Final = "other_intent"
CONTRADICTION: Final = "contradiction"
NOT_WAITING: Final = "not_waiting"
IS_OVERTAKEN: Final = "overtaken"
IS_HELD: Final = "held"
NOBODY: Final = ""
"""The ``owner`` of a call that its driver has released."""

_S, _C = Signal, Stage
_REPLAY, _IGNORE = Replay(), Ignore()
_NONE: Final = Goto((_C.ABSENT,), "not_registered")
_FORGOTTEN: Final = Goto((_C.ABSENT,), "forgotten")
_CONTRADICTION: Final = Refuse(CONTRADICTION)
_NOT_WAITING: Final[dict[Signal, Cell]] = dict.fromkeys((_S.GIVE_UP, _S.GIVE_UP_LATE), Refuse(NOT_WAITING))
_INDETERMINATE: Final = Goto((_C.FAILED,), "indeterminate")


def _never(why: str, *signals: Signal) -> dict[Signal, Cell]:
    return dict.fromkeys(signals, Never(why))


_NOT_GIVEN_UP: Final = _never("it was not given up, or is over", _S.DEADLINE)


def _driven(stage: Stage) -> dict[Signal, Cell]:
    """The cells of an open call for its driver's signals and for those of other processes."""
    return {
        _S.RENEW: Goto((stage,)),
        _S.RELEASE: Goto((stage,)),
        _S.TAKE_OVER: Goto((stage,), "taken_over"),
        _S.HELD: Refuse(IS_HELD),
        _S.OVERTAKEN: Refuse(IS_OVERTAKEN),
        _S.IDLE: _IGNORE,
        **_never("it has not ended", _S.FORGET),
        **_NOT_GIVEN_UP,
    }


_ENDED: Final[dict[Signal, Cell]] = {
    _S.NOTE: _REPLAY,
    _S.WAITING: _IGNORE,  # An answer that was overtaken.
    _S.LATE: _IGNORE,
    _S.NONE: _IGNORE,  # Forgotten by the server; its earlier answers still hold.
    _S.PLAIN: _IGNORE,
    _S.ACKNOWLEDGED_AGAIN: _REPLAY,
    _S.OTHER: Refuse(OTHER_INTENT),
    **_NOT_WAITING,
    _S.RENEW: _IGNORE,
    _S.RELEASE: _IGNORE,
    _S.OVERTAKEN: Refuse(IS_OVERTAKEN),
    _S.HELD: Refuse(IS_HELD),
    _S.FORGET: _FORGOTTEN,
    _S.IDLE: _IGNORE,
    **_never("only an open call is driven", _S.TAKE_OVER),
    **_NOT_GIVEN_UP,
}

TABLE: Final[dict[Stage, dict[Signal, Cell]]] = {
    _C.ABSENT: {
        _S.NOTE: Goto((_C.SENT,)),
        _S.WAITING: Goto((_C.WAITING_CONFIRM,)),  # draft §5.2.3
        _S.PROCESSING: Goto((_C.PROCESSING,)),  # T2: a repeated Phase 1 whose intent was confirmed in between.
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: _IGNORE,  # Both ids were never known, so there is no row to write.
        _S.LATE: _IGNORE,
        _S.NONE: _IGNORE,
        _S.PLAIN: _IGNORE,
        **dict.fromkeys((_S.GIVE_UP, _S.GIVE_UP_LATE, _S.RENEW, _S.RELEASE), Refuse(UNKNOWN)),
        _S.ACKNOWLEDGED: Refuse(UNKNOWN),  # only known client ids.
        _S.IDLE: _IGNORE,
        **_never("there is nothing to compare with", _S.OTHER, _S.OVERTAKEN, _S.ACKNOWLEDGED_AGAIN),
        **_never("there is no lease and no end", _S.TAKE_OVER, _S.HELD, _S.DEADLINE, _S.FORGET),
    },
    _C.SENT: {
        **_driven(_C.SENT),
        _S.NOTE: _REPLAY,
        _S.WAITING: Goto((_C.WAITING_CONFIRM,)),  # A server without auto-confirm.
        _S.PROCESSING: Goto((_C.PROCESSING,)),
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: _NONE,
        _S.LATE: _IGNORE,  # The first sending may have run.
        _S.NONE: _NONE,
        _S.PLAIN: Goto((_C.ABSENT,), "plain"),  # no client ledger row.
        _S.ACKNOWLEDGED: Goto((_C.PROCESSING,), "acknowledged"),  # whichever comes first writes the row.
        **_NOT_WAITING,
        **_never("no server id was told yet", _S.OTHER, _S.ACKNOWLEDGED_AGAIN),
    },
    _C.WAITING_CONFIRM: {
        **_driven(_C.WAITING_CONFIRM),
        _S.NOTE: _REPLAY,
        _S.WAITING: _REPLAY,
        _S.PROCESSING: Goto((_C.PROCESSING,)),
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: Goto((_C.TTL_EXPIRED,)),
        _S.LATE: _IGNORE,  # An earlier confirm may have run: the row keeps the server's last statement.
        _S.NONE: Goto((_C.TTL_EXPIRED,), "not_there"),  # A server remembers every run for a day at least.
        _S.PLAIN: _IGNORE,
        _S.ACKNOWLEDGED: Goto((_C.PROCESSING,), "acknowledged"),
        _S.OTHER: Refuse(OTHER_INTENT),
        _S.GIVE_UP: Goto((_C.GIVEN_UP,), "given_up"),
        _S.GIVE_UP_LATE: Goto((_C.TTL_EXPIRED,), "given_up"),
        **_never("it was not acknowledged before", _S.ACKNOWLEDGED_AGAIN),
    },
    _C.GIVEN_UP: {
        _S.NOTE: _REPLAY,
        _S.WAITING: _REPLAY,
        # This client has not confirmed it, but the server's statement is true all the same.
        _S.PROCESSING: Goto((_C.PROCESSING,)),
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: Goto((_C.TTL_EXPIRED,)),
        _S.ACKNOWLEDGED: Goto((_C.PROCESSING,), "acknowledged"),
        _S.LATE: _IGNORE,
        _S.NONE: _IGNORE,  # The answer names no phase, and the call ends at its deadline.
        _S.PLAIN: _IGNORE,
        _S.OTHER: Refuse(OTHER_INTENT),
        _S.GIVE_UP: _REPLAY,
        _S.GIVE_UP_LATE: Goto((_C.TTL_EXPIRED,)),
        _S.DEADLINE: Goto((_C.TTL_EXPIRED,)),
        _S.RENEW: _IGNORE,
        _S.RELEASE: _IGNORE,
        _S.OVERTAKEN: Refuse(IS_OVERTAKEN),
        _S.IDLE: _IGNORE,  # Its deadline is to come.
        **_never("it was not acknowledged before", _S.ACKNOWLEDGED_AGAIN),
        **_never("only an open call is driven", _S.TAKE_OVER, _S.HELD),
        **_never("it has not ended", _S.FORGET),
    },
    _C.PROCESSING: {
        **_driven(_C.PROCESSING),
        _S.NOTE: _REPLAY,
        _S.WAITING: _IGNORE,
        _S.PROCESSING: _REPLAY,
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: _CONTRADICTION,  # The TTL binds only what is unconfirmed.
        _S.LATE: _IGNORE,
        _S.NONE: _IGNORE,
        _S.PLAIN: _IGNORE,
        _S.ACKNOWLEDGED: Goto((_C.PROCESSING,), "acknowledged"),
        _S.ACKNOWLEDGED_AGAIN: _REPLAY,
        _S.OTHER: Refuse(OTHER_INTENT),
        **_NOT_WAITING,
    },
    _C.COMMITTED: {
        **_ENDED,
        _S.PROCESSING: _IGNORE,
        _S.COMMITTED: _REPLAY,
        _S.FAILED: _CONTRADICTION,
        _S.INDETERMINATE: _CONTRADICTION,
        _S.EXPIRED: _IGNORE,  # A server with literal_ttl_reject.
        _S.ACKNOWLEDGED: Goto((_C.COMMITTED,), "acknowledged"),
    },
    _C.FAILED: {
        **_ENDED,
        _S.PROCESSING: _IGNORE,
        _S.COMMITTED: _CONTRADICTION,
        _S.FAILED: _REPLAY,
        _S.INDETERMINATE: _INDETERMINATE,  # The server says so now, and did not before.
        _S.EXPIRED: _IGNORE,
        _S.ACKNOWLEDGED: Goto((_C.FAILED,), "acknowledged"),
    },
    _C.TTL_EXPIRED: {
        **_ENDED,
        # a confirm that was on its way may still be let in during the grace; the server's statement is true.
        _S.PROCESSING: Goto((_C.PROCESSING,)),
        _S.COMMITTED: Goto((_C.COMMITTED,)),
        _S.FAILED: Goto((_C.FAILED,)),
        _S.INDETERMINATE: _INDETERMINATE,
        _S.EXPIRED: _REPLAY,
        _S.ACKNOWLEDGED: Goto((_C.PROCESSING,), "acknowledged"),
    },
}


class Care(msgspec.Struct, frozen=True, kw_only=True):
    """How long a driver may be silent, how long a call is kept, how far apart it is asked about."""

    lease_ms: int = 5 * SECOND_MS
    kept_ms: int = 30 * DAY_MS
    first_delay_ms: int = SECOND_MS
    longest_delay_ms: int = HOUR_MS

    def delay_ms(self, attempts: int) -> int:
        """How long to leave a call alone after so many attempts that could not learn its outcome."""
        doublings = min(attempts, 16)
        return int(min(self.first_delay_ms * 2**doublings, self.longest_delay_ms))


DEFAULT_CARE: Final = Care()


class CallDecision(msgspec.Struct, frozen=True, gc=False):
    """What ``decide`` found: the verdict, the call as it is to be stored, and the history to write with it."""

    verdict: Cell
    call: Call | None
    steps: tuple[JournalEvent, ...] = ()
    changed: bool = False

    @property
    def code(self) -> str | None:
        """The refusal's code, or None."""
        return self.verdict.code if type(self.verdict) is Refuse else None


def decide(call: Call | None, command: Command, now: Instant, care: Care = DEFAULT_CARE) -> CallDecision:
    """What ``command`` means for ``call`` at ``now``. Pure: the same arguments give the same decision."""
    before = Stage.ABSENT if call is None else call.stage
    cell = TABLE[before][_signal_of(call, command, now)]
    assert type(cell) is not Never, cell.why
    if type(cell) is not Goto:
        return CallDecision(cell, call)
    call = call or _opened(command)
    after = Stage(cell.path[-1])
    news = _facts_of(call, command) | _care_for(call, after, command, now, care)
    is_history = after is not before or cell.event is not None
    if is_history and after in IN_LEDGER:
        news["row_version"] = call.row_version + 1
    changed = msgspec.structs.replace(call, stage=after, version=call.version + 1, **news)
    steps = (_step(changed, cell, before, _true_from(call, command, now), now),) if is_history else ()
    return CallDecision(cell, changed, steps, changed=True)


_SIGNALS: Final = {
    Phase.WAITING_CONFIRM: _S.WAITING,
    Phase.PROCESSING: _S.PROCESSING,
    Phase.COMMITTED: _S.COMMITTED,
    Phase.FAILED: _S.FAILED,
    Phase.TTL_EXPIRED: _S.EXPIRED,
    Phase.ABANDONED: _S.EXPIRED,  # a client never learns the difference; A-21: no server of ours tells it.
}


def _signal_of(call: Call | None, command: Command, now: Instant) -> Signal:
    match command:
        case Note():
            return Signal.NOTE
        case ServerReply():
            return _signal_of_told(call, command)
        case NotThere():
            return Signal.PLAIN if command.plain else Signal.NONE
        case Tick():
            return _signal_of_attend(call, command, now)
    return _signal_of_driver(call, command)


def _signal_of_driver(call: Call | None, command: GiveUp | Renew | Release) -> Signal:
    if call is not None and call.fence != command.fence:
        return Signal.OVERTAKEN
    if isinstance(command, GiveUp):
        return Signal.GIVE_UP_LATE if command.late else Signal.GIVE_UP
    return Signal.RENEW if isinstance(command, Renew) else Signal.RELEASE


def _signal_of_told(call: Call | None, told: ServerReply) -> Signal:
    known = "" if call is None else call.server_correlation_id
    if known and told.server_correlation_id not in {"", known}:
        return Signal.OTHER
    if told.by == "callback":
        again = call is not None and call.acknowledged_at is not None
        return Signal.ACKNOWLEDGED_AGAIN if again else Signal.ACKNOWLEDGED
    signal = _SIGNALS[told.phase]
    if signal is Signal.EXPIRED:
        return signal if told.by == "status_read" or _is_first(call, told) else Signal.LATE
    if signal is Signal.FAILED and told.indeterminate and not (call is not None and call.indeterminate):
        signal = Signal.INDETERMINATE
    if not known and not told.server_correlation_id:
        return Signal.IDLE  # A row needs both ids (draft §5.2.3); it will be told again with both.
    return signal


def _is_first(call: Call | None, command: ServerReply | NotThere) -> bool:
    """Whether this answers the first request that could have made the call run.

    A driver that took the call over cannot know: the row is durable before Phase 2 is sent, so Phase 2 may have left
    (A-43).
    """
    return command.first and (call is None or call.fence == 1)


def _signal_of_attend(call: Call | None, command: Tick, now: Instant) -> Signal:
    if call is None:
        return Signal.IDLE
    is_due = call.due_at is not None and call.due_at <= now
    if call.stage in OPEN:
        return Signal.TAKE_OVER if is_due or call.owner == command.dead_driver else Signal.HELD
    if not is_due:
        return Signal.IDLE
    return Signal.DEADLINE if call.stage is Stage.GIVEN_UP else Signal.FORGET


def _opened(command: Command) -> Call:
    assert isinstance(command, (Note, ServerReply))
    opening = command.opening
    assert opening is not None, "a command about a new call brings its opening"
    return Call(
        opening.client_correlation_id,
        opening.parent_reference_id,
        opening.method,
        opening.url,
        opening.meant,
        opening.target,
        opening.service_endpoint,
        opening.mode,
        opening.sent_at,
        owner=opening.owner,
        fence=1,
    )


def _facts_of(call: Call, command: Command) -> dict[str, Any]:
    """The facts that a reply brings, beside the stage."""
    if not isinstance(command, ServerReply):
        return {}
    news: dict[str, Any] = {}
    if not call.server_correlation_id and command.server_correlation_id:
        news.update(server_correlation_id=command.server_correlation_id, registered_at=command.at)
        news.update(ttl_ms=command.ttl_ms, confirm_by=command.confirm_by)
    if command.by == "callback":
        return news | {"acknowledged_at": command.at}
    if command.by == "phase_2":
        news["confirmed_at"] = command.at
    if command.phase in {Phase.COMMITTED, Phase.FAILED} and command.by != "status_read":
        news["answered_at"] = command.at
    said = {"status": command.status, "resource_id": command.resource_id, "status_url": command.status_url}
    said["indeterminate"] = command.indeterminate and command.phase is Phase.FAILED
    return news | {name: value for name, value in said.items() if value}


def _care_for(call: Call, after: Stage, command: Command, now: Instant, care: Care) -> dict[str, Any]:
    """The owner of the call from here on, and the time of its next visit."""
    if after is Stage.ABSENT:
        return {"due_at": None}
    if isinstance(command, ServerReply) and call.stage is after and (command.by == "callback" or after not in OPEN):
        return {}  # An open call keeps its driver, and an ended one its end.
    if after not in OPEN:
        return {"owner": NOBODY} | _kept(call, after, command, now, care)
    match command:
        case Tick():
            return {
                "owner": command.owner,
                "fence": call.fence + 1,
                "attempts": call.attempts + 1,
                "due_at": now + care.lease_ms,
            }
        case Release():
            return {"owner": NOBODY, "last_error": command.error, "due_at": now + care.delay_ms(call.attempts)}
    return {"settled_at": None, "due_at": now + care.lease_ms}


def _kept(call: Call, after: Stage, command: Command, now: Instant, care: Care) -> dict[str, Any]:
    """A call without a driver is kept until its deadline if it was given up, and for a while after its end."""
    if after is Stage.GIVEN_UP:  # Without a deadline it can no longer be confirmed, so the next visit ends it.
        return {"last_error": "", "due_at": max(now, call.confirm_by or now)}
    ended_at = command.at if isinstance(command, ServerReply) else _true_from(call, command, now)
    last_error = UNPROVEN if after is Stage.TTL_EXPIRED and not _proves_that_nothing_ran(call, command) else ""
    return {"settled_at": ended_at, "last_error": last_error, "due_at": now + care.kept_ms}


def _true_from(call: Call, command: Command, now: Instant) -> Instant:
    """A deadline counts from its own instant, even if a visit notices it later (A-27)."""
    is_noticed = isinstance(command, Tick) and call.stage is Stage.GIVEN_UP
    return call.due_at if is_noticed and call.due_at is not None else now


def _proves_that_nothing_ran(call: Call, command: Command) -> bool:
    if call.never_ran or isinstance(command, GiveUp):
        return True
    return isinstance(command, (ServerReply, NotThere)) and _is_first(call, command)


def _step(call: Call, goto: Goto, before: Stage, at: Instant, now: Instant) -> JournalEvent:
    event, detail = goto.event or call.stage.value, call_facts(call)
    return JournalEvent(
        CALL, call.client_correlation_id, event, before.value, call.stage.value, at, now, call.fence, "", detail
    )
