"""The phase machine: every rule about an intent's state, and nothing else.

Theory. An intent is registered, confirmed, settled and remembered. Time moves it too: unconfirmed at its deadline it
is TTL_EXPIRED, at the end of the grace ABANDONED. Two things follow.

* Nothing outside this file changes an intent's phase. ``decide`` looks at the intent, a command and the time, names
  the *signal* they amount to (``_signal_of_...``: all guards live there), and looks the signal up in ``TABLE``.
* Time is lazy. A request or a sweep that finds an overdue intent ages it by the same two cells before anything else is
  decided, so behaviour never depends on how often the sweeper runs (A-27). The one exception is the confirm that
  arrived in time and waited in a queue: it finds the intent as it was (A-20).

``decide`` is a pure function. It returns the intent as it is to be stored and the steps to write into the journal; the
store runs it inside its transaction, so of two racing commands one sees the result of the other.

    Phase 1   REGISTER, REGISTER_AUTO, REGISTER_OTHER, REGISTER_OTHER_MODE, FOLLOW    (T2)
    Phase 2   CONFIRM, CONFIRM_LATE, CONFIRM_EXPIRED, CONFIRM_OTHER           (T1)
    time      EXPIRE, ABANDON, RECOVER, VOUCH, PURGE, FORGET, IDLE
    worker    SUCCEED, FAIL, INDETERMINATE, RENEW, STALE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from hmac import compare_digest
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from twophp.core.intent import CONFIRMED_BY_SERVER, INTENT, UNCONFIRMED, Intent, Phase, fixed_facts, outcome_facts
from twophp.core.intent_commands import Command, Confirm, Register, Renew, Settle, Tick
from twophp.core.machine import Cell, Goto, Ignore, Never, Refuse, Replay
from twophp.core.outcome import INDETERMINATE, is_followed_by
from twophp.core.policy import Policy
from twophp.core.records import Instant, JournalEvent
from twophp.core.registration import Binding, compare_bindings


class Signal(StrEnum):
    """What a command amounts to, once its guards have been weighed."""

    REGISTER = "REGISTER"  # Phase 1; a known id comes with the same fingerprint.
    REGISTER_AUTO = "REGISTER_AUTO"  # Phase 1 that the server confirms by itself (draft §5.5).
    REGISTER_OTHER = "REGISTER_OTHER"  # A known id with another fingerprint.
    REGISTER_OTHER_MODE = "REGISTER_OTHER_MODE"  # A known id in another mode or with another callback.
    FOLLOW = "FOLLOW"  # A known id at the Location to which its intent was redirected; that intent has done nothing.
    CONFIRM = "CONFIRM"  # Phase 2 that arrived before the deadline, or whose intent is past the PONR anyway.
    CONFIRM_LATE = "CONFIRM_LATE"  # Arrived inside the grace; REUSE and its guard let it in (draft §8.2).
    CONFIRM_EXPIRED = "CONFIRM_EXPIRED"  # Arrived too late.
    CONFIRM_OTHER = "CONFIRM_OTHER"  # Both ids are right and the identity is not (draft §13.2).
    EXPIRE = "EXPIRE"  # The deadline has passed.
    ABANDON = "ABANDON"  # The grace has passed as well.
    RECOVER = "RECOVER"  # The owner is dead, or its lease ran out and its state is unknown.
    VOUCH = "VOUCH"  # The lease ran out, and the owner is known to live.
    PURGE = "PURGE"  # The payload was kept long enough.
    FORGET = "FORGET"  # The tombstone's horizon has passed.
    IDLE = "IDLE"  # Looked at, and nothing was due.
    SUCCEED = "SUCCEED"  # The handler finished; said by the holder of the fence.
    FAIL = "FAIL"  # The handler failed; said by the holder of the fence.
    INDETERMINATE = "INDETERMINATE"  # The handler's effects are unknown; said by the holder of the fence.
    RENEW = "RENEW"  # The handler still lives; said by the holder of the fence.
    STALE = "STALE"  # Said by a worker whose fence was taken over.

    __hash__ = str.__hash__


# Codes of the refusals. The wire maps them to statuses; nothing here knows HTTP.
UNKNOWN: Final = "unknown_intent"
TTL_EXPIRED: Final = "ttl_expired"
OTHER_IDENTITY: Final = "other_identity"
FINGERPRINT_MISMATCH: Final = "fingerprint_mismatch"
MODE_MISMATCH: Final = "mode_mismatch"
NOT_PROCESSING: Final = "not_processing"
ALREADY_SETTLED: Final = "already_settled"
FENCE_LOST: Final = "fence_lost"

_S, _P = Signal, Phase
_ABSENT: Final = Phase.ABSENT  # Bound once: Python 3.11 takes ten times as long to find an enum's member.
_REPLAY, _IGNORE = Replay(), Ignore()
_UNKNOWN, _EXPIRED, _STRANGER = Refuse(UNKNOWN), Refuse(TTL_EXPIRED), Refuse(OTHER_IDENTITY)
_NOT_PROCESSING, _SETTLED, _FENCE_LOST = Refuse(NOT_PROCESSING), Refuse(ALREADY_SETTLED), Refuse(FENCE_LOST)


def _never(why: str, *signals: Signal) -> dict[Signal, Cell]:
    return dict.fromkeys(signals, Never(why))


# A known id with another request, and the right ids from another principal, are refused in every phase of the intent.
_STRANGERS: Final[dict[Signal, Cell]] = {
    _S.REGISTER_OTHER: Refuse(FINGERPRINT_MISMATCH),  # T2
    _S.REGISTER_OTHER_MODE: Refuse(MODE_MISMATCH),  # T2, last row
    _S.CONFIRM_OTHER: _STRANGER,  # T1 row 5, draft §13.2: the state stays.
}
_NO_WORKER: Final[dict[Signal, Cell]] = dict.fromkeys(
    (_S.SUCCEED, _S.FAIL, _S.INDETERMINATE, _S.RENEW, _S.STALE), _NOT_PROCESSING
)
_NOT_REDIRECTED: Final = _never("only a handler's redirect can be followed", _S.FOLLOW)
_AUTO_NEVER_WAITS: Final = _never("auto-confirm leaves WAITING_CONFIRM in the change that enters it", _S.REGISTER_AUTO)
# The cells that COMMITTED and FAILED share.
_OVER: Final[dict[Signal, Cell]] = {
    **_STRANGERS,
    _S.REGISTER: _REPLAY,  # T2 row 3
    _S.REGISTER_AUTO: _REPLAY,
    _S.CONFIRM: _REPLAY,  # T1 rows 6 and 7, draft §8.1: the same response, for the whole horizon.
    _S.CONFIRM_EXPIRED: _EXPIRED,  # Only with literal_ttl_reject.
    _S.FORGET: Goto((_P.ABSENT,), "forgotten"),
    _S.RENEW: _SETTLED,
    _S.STALE: _FENCE_LOST,
    _S.IDLE: _IGNORE,
    **_never("the TTL binds only what is unconfirmed (A-30)", _S.CONFIRM_LATE, _S.EXPIRE, _S.ABANDON),
    **_never("its lease ended with it", _S.RECOVER, _S.VOUCH),
}

TABLE: Final[dict[Phase, dict[Signal, Cell]]] = {
    _P.ABSENT: {
        _S.REGISTER: Goto((_P.WAITING_CONFIRM,)),  # draft §6
        # Two steps, one change: no reader ever sees the intent waiting (draft §5.5.7).
        _S.REGISTER_AUTO: Goto((_P.WAITING_CONFIRM, _P.PROCESSING)),
        _S.CONFIRM: _UNKNOWN,  # T1 row 4
        **dict.fromkeys((_S.SUCCEED, _S.FAIL, _S.INDETERMINATE, _S.RENEW), _UNKNOWN),
        _S.IDLE: _IGNORE,
        **_never("there is nothing to compare with", _S.REGISTER_OTHER, _S.REGISTER_OTHER_MODE, _S.CONFIRM_OTHER),
        **_NOT_REDIRECTED,
        **_never("there is no deadline", _S.CONFIRM_LATE, _S.CONFIRM_EXPIRED, _S.EXPIRE, _S.ABANDON),
        **_never("there is no lease, no payload, no tombstone", _S.STALE, _S.RECOVER, _S.VOUCH, _S.PURGE, _S.FORGET),
    },
    _P.WAITING_CONFIRM: {
        **_STRANGERS,
        **_NOT_REDIRECTED,
        **_NO_WORKER,
        **_AUTO_NEVER_WAITS,
        _S.REGISTER: _REPLAY,  # T2 row 1: the same registration again, its deadline never extended.
        _S.CONFIRM: Goto((_P.PROCESSING,)),  # T1 row 9: the point of no return.
        _S.EXPIRE: Goto((_P.TTL_EXPIRED,)),  # draft §6
        _S.ABANDON: Goto((_P.TTL_EXPIRED, _P.ABANDONED)),  # No visit during the grace: both steps, one change.
        _S.IDLE: _IGNORE,
        **_never("a late confirm has aged the intent before it is judged", _S.CONFIRM_LATE, _S.CONFIRM_EXPIRED),
        **_never("only what ran or ended has one", _S.RECOVER, _S.VOUCH, _S.PURGE, _S.FORGET),
    },
    _P.TTL_EXPIRED: {
        **_STRANGERS,
        **_NOT_REDIRECTED,
        **_NO_WORKER,
        **_AUTO_NEVER_WAITS,
        _S.REGISTER: _EXPIRED,  # T2 row 4: a new id is required (draft §8.2).
        # The confirm arrived in time and the sweeper was quicker: the grace is there for this very race.
        _S.CONFIRM: Goto((_P.PROCESSING,)),
        _S.CONFIRM_LATE: Goto((_P.PROCESSING,)),  # T1 row 10, A-22: the edge that REUSE implies.
        _S.CONFIRM_EXPIRED: _EXPIRED,  # T1 row 11
        _S.ABANDON: Goto((_P.ABANDONED,)),  # draft §6
        _S.IDLE: _IGNORE,
        **_never("it has expired already", _S.EXPIRE),
        **_never("only what ran or ended has one", _S.RECOVER, _S.VOUCH, _S.PURGE, _S.FORGET),
    },
    _P.ABANDONED: {
        **_STRANGERS,
        **_NOT_REDIRECTED,
        **_NO_WORKER,
        **_AUTO_NEVER_WAITS,
        _S.REGISTER: _EXPIRED,  # a client that could tell ABANDONED from TTL_EXPIRED would learn the grace.
        _S.CONFIRM: _EXPIRED,
        _S.CONFIRM_EXPIRED: _EXPIRED,  # T1 row 11
        _S.FORGET: Goto((_P.ABSENT,), "forgotten"),
        _S.IDLE: _IGNORE,
        **_never("the grace is over", _S.CONFIRM_LATE, _S.EXPIRE, _S.ABANDON),
        **_never("it never ran, and its payload went when it was abandoned", _S.RECOVER, _S.VOUCH, _S.PURGE),
    },
    _P.PROCESSING: {
        **_STRANGERS,
        **_NOT_REDIRECTED,
        _S.REGISTER: _REPLAY,  # T2 row 2
        _S.REGISTER_AUTO: _REPLAY,
        _S.CONFIRM: _REPLAY,  # T1 row 8: one runs, the others get its answer.
        _S.CONFIRM_EXPIRED: _EXPIRED,  # Only with literal_ttl_reject.
        _S.RECOVER: Goto((_P.PROCESSING,), "recovered"),  # A new fence: the old holder can no longer settle.
        _S.VOUCH: Goto((_P.PROCESSING,)),  # A new lease for the same owner: a second run would run beside it.
        _S.SUCCEED: Goto((_P.COMMITTED,)),  # draft §6
        _S.FAIL: Goto((_P.FAILED,)),  # draft §6
        _S.INDETERMINATE: Goto((_P.FAILED,), INDETERMINATE),  # the draft has no phase for it.
        _S.RENEW: Goto((_P.PROCESSING,)),
        _S.STALE: _FENCE_LOST,
        _S.IDLE: _IGNORE,
        **_never("the TTL binds only what is unconfirmed (A-30)", _S.CONFIRM_LATE, _S.EXPIRE, _S.ABANDON),
        **_never("it has not ended", _S.PURGE, _S.FORGET),
    },
    _P.COMMITTED: {
        **_OVER,
        **_NOT_REDIRECTED,
        _S.PURGE: Goto((_P.COMMITTED,), "payload_purged"),
        _S.SUCCEED: _REPLAY,  # Said again after a CommitUnknown: the same outcome.
        _S.FAIL: _SETTLED,
        _S.INDETERMINATE: _SETTLED,
    },
    _P.FAILED: {
        **_OVER,
        _S.FOLLOW: Goto((_P.ABSENT,), "followed"),  # T2 row 7: it has done nothing, and gives its client id up.
        _S.PURGE: Goto((_P.FAILED,), "payload_purged"),
        _S.SUCCEED: _SETTLED,
        _S.FAIL: _REPLAY,
        _S.INDETERMINATE: _REPLAY,
    },
}


class IntentDecision(msgspec.Struct, frozen=True, gc=False):
    """What ``decide`` found: the verdict, the intent as it is to be stored, and the history to write with it."""

    verdict: Cell
    intent: Intent | None
    steps: tuple[JournalEvent, ...] = ()
    changed: bool = False

    @property
    def code(self) -> str | None:
        """The refusal's code, or None."""
        return self.verdict.code if type(self.verdict) is Refuse else None


def decide(intent: Intent | None, command: Command, now: Instant, policy: Policy) -> IntentDecision:
    """What ``command`` means for ``intent`` at ``now``. Pure: the same arguments give the same decision."""
    if isinstance(command, Confirm):
        now = max(now, command.arrived_at)  # time never runs backwards between arrival and decision.
        if intent is not None and not intent.is_addressed_by(command.client_correlation_id, command.path):
            return IntentDecision(_UNKNOWN, None)  # T1 row 4, A-67: a wrong id or path looks like no intent at all.
        signal = _signal_of_confirm(intent, command, now, policy)
    elif isinstance(command, Register):
        now = max(now, command.arrived_at)
        signal = _signal_of_register(intent, command)
    elif isinstance(command, Tick):
        signal = _signal_of_attend(intent, command, now, policy)
    else:
        signal = _signal_of_worker(intent, command)
    if intent is not None and signal in _AGES_OR_FOLLOWS:
        if signal is _FOLLOW:
            return _follow(intent, command, now, policy)
        if intent.phase in UNCONFIRMED and now >= intent.deadline_at:
            return _age_then_take(intent, signal, command, now, policy)
    return _take(intent, signal, command, now, policy)


_FOLLOW, _CONFIRM, _SUCCEED = Signal.FOLLOW, Signal.CONFIRM, Signal.SUCCEED
_AGES_OR_FOLLOWS: Final = frozenset({Signal.REGISTER, Signal.CONFIRM_LATE, Signal.CONFIRM_EXPIRED, Signal.FOLLOW})


def _signal_of_register(intent: Intent | None, command: Register) -> Signal:
    if intent is not None:
        if compare_bindings(intent.replay_key, command.replay_key) is Binding.OTHER:  # The registrar's rule.
            return Signal.FOLLOW if is_followed_by(intent, command) else Signal.REGISTER_OTHER
        if intent.mode is not command.mode or intent.callback != command.callback:
            return Signal.REGISTER_OTHER_MODE
    return Signal.REGISTER_AUTO if command.mode in CONFIRMED_BY_SERVER else Signal.REGISTER


def _signal_of_confirm(intent: Intent | None, command: Confirm, now: Instant, policy: Policy) -> Signal:
    if intent is None:
        return _CONFIRM
    if not compare_digest(command.principal, intent.principal):
        return Signal.CONFIRM_OTHER
    in_time = command.arrived_at < intent.deadline_at  # judged by arrival. A-26: the deadline is exclusive.
    if intent.phase not in UNCONFIRMED:
        expired = policy.literal_ttl_reject and not in_time
        return Signal.CONFIRM_EXPIRED if expired else _CONFIRM
    if now >= intent.abandoned_at:
        return Signal.CONFIRM_EXPIRED
    if in_time:
        return _CONFIRM
    return Signal.CONFIRM_LATE if policy.replay == "REUSE" and command.guard_passed else Signal.CONFIRM_EXPIRED


def _signal_of_worker(intent: Intent | None, command: Settle | Renew) -> Signal:
    if intent is not None and intent.fence != command.fence:
        return Signal.STALE
    if isinstance(command, Renew):
        return Signal.RENEW
    return _SUCCEED if command.succeeded else Signal.INDETERMINATE if command.indeterminate else Signal.FAIL


def _signal_of_attend(intent: Intent | None, command: Tick, now: Instant, policy: Policy) -> Signal:
    if intent is not None and intent.phase is Phase.PROCESSING and intent.owner == command.dead_owner:
        return Signal.RECOVER
    if intent is None or intent.due_at is None or now < intent.due_at:
        return Signal.IDLE
    if intent.phase in UNCONFIRMED:
        return _ageing(intent, now)
    if intent.phase is Phase.PROCESSING:
        if intent.owner == command.live_owner:  # First the owner has one lease's time to resume it itself.
            turn_at = intent.due_at + (0 if intent.owner == command.owner else policy.lease_ms)
            return Signal.VOUCH if now >= turn_at else Signal.IDLE
        return Signal.RECOVER
    return Signal.PURGE if intent.has_payload else Signal.FORGET


def _ageing(intent: Intent, now: Instant) -> Signal:
    return Signal.ABANDON if now >= intent.abandoned_at else Signal.EXPIRE


def _age_then_take(intent: Intent, signal: Signal, command: Command, now: Instant, policy: Policy) -> IntentDecision:
    """Age the intent, then take the command, both in one change."""
    if intent.phase is Phase.TTL_EXPIRED and now < intent.abandoned_at:
        return _take(intent, signal, command, now, policy)
    aged = _take(intent, _ageing(intent, now), command, now, policy)
    taken = _take(aged.intent, signal, command, now, policy)
    assert taken.intent is not None
    merged = replace(taken.intent, version=intent.version + 1)
    return IntentDecision(taken.verdict, merged, aged.steps + taken.steps, changed=True)


def _follow(intent: Intent, command: Command, now: Instant, policy: Policy) -> IntentDecision:
    """The redirected intent is forgotten and the new one registered under the same client id, both in one change."""
    gone = _take(intent, Signal.FOLLOW, command, now, policy)
    if type(gone.verdict) is not Goto:
        return gone
    begun = decide(None, command, now, policy)
    return IntentDecision(begun.verdict, begun.intent, gone.steps + begun.steps, changed=True)


def _take(intent: Intent | None, signal: Signal, command: Command, now: Instant, policy: Policy) -> IntentDecision:
    """Look the cell up and, if it is a Goto, walk its path: one change, one new version, one step per state."""
    cell = TABLE[_ABSENT if intent is None else intent.phase][signal]
    if type(cell) is not Goto:
        assert type(cell) is not Never, cell.why
        return IntentDecision(cell, intent)
    if intent is None:
        assert type(command) is Register
        intent = _registered(command, policy)
    version = intent.version + 1
    steps: tuple[JournalEvent, ...] = ()
    for after in cell.path:
        before = intent.phase
        at, intent = _ENTER[after](intent, command, now, policy, (after, version))
        if after is not before or cell.event:
            steps += (_step(intent, before, cell.event or str(after), at, now, command),)
    return IntentDecision(cell, intent, steps, changed=True)


def _step(intent: Intent, before: Phase, event: str, at: Instant, now: Instant, command: Command) -> JournalEvent:
    """A line of history. A registration's binds the request, a settlement's the outcome: see ``verify``."""
    detail = ""
    if before is _ABSENT:
        detail = fixed_facts(intent)
    elif type(command) is Settle:
        detail = outcome_facts(intent)
    subject, after = intent.server_correlation_id, str(intent.phase)
    return JournalEvent(INTENT, subject, event, str(before), after, at, now, intent.fence, "", detail)


def _registered(command: Register, policy: Policy) -> Intent:
    wish = command.requested_ttl_ms
    return Intent(
        client_correlation_id=command.client_correlation_id,
        server_correlation_id=command.server_correlation_id,
        principal=command.principal,
        replay_key=command.replay_key,
        callback=command.callback,
        client_id_is_proxy=command.client_id_is_proxy,
        mode=command.mode,
        service_endpoint=command.service_endpoint,
        path=command.path,
        method=command.method,
        received_at=command.arrived_at,
        # an intent that the server confirms by itself never waits, so the client's TTL has no meaning for it.
        ttl_ms=policy.ttl_ms if wish is None or command.mode in CONFIRMED_BY_SERVER else policy.effective_ttl_ms(wish),
        delta_ms=policy.delta_ms,
        counted_bytes=command.counted_bytes,
        request_digest=command.request_digest,
    )


# Entering a state: the instant from which it is true, and the intent in it. Each function makes one copy only: a copy
# costs as much as the rest of the decision.
_Next: TypeAlias = tuple[Any, int]
"""The phase and the version to be entered."""
_Entered: TypeAlias = tuple[Instant, Intent]


def _enter_waiting(intent: Intent, _command: Command, now: Instant, _policy: Policy, to: _Next) -> _Entered:
    return now, replace(intent, phase=to[0], version=to[1], due_at=intent.deadline_at)


def _enter_processing(intent: Intent, command: Command, now: Instant, policy: Policy, to: _Next) -> _Entered:
    (phase, version), until = to, now + policy.lease_ms
    if type(command) is Confirm:
        return now, replace(
            intent,
            phase=phase,
            version=version,
            lease_until=until,
            due_at=until,
            owner=command.owner,
            fence=intent.fence + 1,
            settled_at=None,
            confirmed_at=command.arrived_at,
            resource_id=command.provisional_resource_id,
        )
    held = replace(intent, phase=phase, version=version, lease_until=until, due_at=until)
    is_vouched = type(command) is Tick and intent.owner == command.live_owner
    if type(command) is Renew or is_vouched:  # The holder keeps its fence; a new or other owner gets a new one.
        return now, held
    assert isinstance(command, (Register, Tick))
    return now, replace(held, owner=command.owner, fence=intent.fence + 1, settled_at=None)


def _enter_settled(intent: Intent, command: Command, now: Instant, policy: Policy, to: _Next) -> _Entered:
    phase, version = to
    if type(command) is Tick:  # PURGE: the payload goes, the outcome stays.
        assert intent.settled_at is not None
        due_at = max(now, intent.settled_at + policy.horizon_ms)
        return now, replace(intent, phase=phase, version=version, has_payload=False, due_at=due_at)
    assert type(command) is Settle
    return now, replace(
        intent,
        phase=phase,
        version=version,
        settled_at=now,
        status=command.status,
        resource_id=command.resource_id,
        transaction_reference=command.transaction_reference,
        indeterminate=command.indeterminate and not command.succeeded,
        owner=None,
        lease_until=None,
        due_at=now + policy.payload_retention_ms,
    )


def _enter_expired(intent: Intent, _command: Command, _now: Instant, _policy: Policy, to: _Next) -> _Entered:
    at = intent.deadline_at  # true from the deadline on, whenever it is noticed.
    return at, replace(intent, phase=to[0], version=to[1], settled_at=at, due_at=intent.abandoned_at)


def _enter_abandoned(intent: Intent, _command: Command, _now: Instant, policy: Policy, to: _Next) -> _Entered:
    at, due_at = intent.abandoned_at, intent.abandoned_at + policy.horizon_ms
    return at, replace(intent, phase=to[0], version=to[1], settled_at=at, has_payload=False, due_at=due_at)


def _enter_absent(intent: Intent, _command: Command, now: Instant, _policy: Policy, to: _Next) -> _Entered:
    return now, replace(intent, phase=to[0], version=to[1], due_at=None)


_ENTER: Final[Mapping[StrEnum, Callable[[Intent, Command, Instant, Policy, _Next], _Entered]]] = {
    Phase.WAITING_CONFIRM: _enter_waiting,
    Phase.PROCESSING: _enter_processing,
    Phase.COMMITTED: _enter_settled,
    Phase.FAILED: _enter_settled,
    Phase.TTL_EXPIRED: _enter_expired,
    Phase.ABANDONED: _enter_abandoned,
    Phase.ABSENT: _enter_absent,
}
