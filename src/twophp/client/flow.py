"""One call, from the caller's request to its final answer, as a generator: no second copy of any rule.

The generator yields what to send, to record and to wait for, and is told what came of it. A blocking and an awaiting
loop drive the same code (``driver.py``), as httpx does with its authentication flows.

The order is the protocol's: Phase 1, the client's own row made durable, then Phase 2 and not before (draft §5.2.3).
What may be sent a second time, and what may not:

    Phase 1, unanswered     only to an endpoint that is known to speak 2PHP: a plain server has just done it (A-06)
    Phase 2, unanswered     the same ids again before the deadline, a status read after it (A-42)
    anything, answered      never: 408 asks for a new id, and that is the caller's decision (A-28, draft §8.2)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias

import msgspec

from twophp.client.exchange import Around, Asked, Effect, Look, Lost, NotSent, Outcome, Pause, Read, Record, Reply, Send
from twophp.client.notebook import STAND_IN_TTL_MS, Notebook
from twophp.client.outgoing import own_headers, phase_one_headers, sealed_request
from twophp.core.call import OPEN, Call, Stage
from twophp.core.call_machine import IS_HELD, Attend, Decision, GiveUp, Note, NotThere
from twophp.core.errors import Advice, PhaseError, StoreError, StoreUnavailable
from twophp.core.intent import SETTLED, Mode, Phase
from twophp.core.policy import DAY_MS
from twophp.core.records import Instant
from twophp.wire import emit, response
from twophp.wire.parse import TwoPhaseAnswer
from twophp.wire.targets import target_of

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 2.0
LONGEST_POLL_S: Final = 30.0
MAX_STATUS_BYTES: Final = 16 * 1024 * 1024
REDIRECTS: Final = frozenset({307, 308})
LATE: Final = "the server says that it was not confirmed in time"
SERVER_ERROR: Final = 500
NOT_FOUND: Final = 404

Steps: TypeAlias = Generator[Effect, Any, Outcome]
Heard: TypeAlias = Generator[Effect, Any, Outcome | float | None]
"""The end; or how long to wait before asking again; or nothing that says anything."""


def calling(asked: Asked, around: Around) -> Steps:
    """Make the call; made anew under a new id as often as ``resubmit`` allows, and only if nothing ran (draft §8.2)."""
    wanted = asked.options.resubmit
    left = around.settings.resubmit if wanted is None else wanted
    while True:
        conversation = Conversation(asked, around)
        try:
            return (yield from conversation.run())
        except StoreError as error:
            raise conversation.left_open(error) from error
        except PhaseError as error:
            fixed = asked.options.client_correlation_id is not None  # A new id would be another call.
            if error.code != "ttl_expired" or error.advice is not Advice.RESUBMIT or fixed or left < 1:
                raise
            left -= 1
            asked = msgspec.structs.replace(asked, hop=None)


class Conversation(Notebook):
    """One call under one client correlation id."""

    # The beginning.

    def run(self) -> Steps:
        """From Phase 1, or from where an earlier life of this call stopped."""
        if self._asked.options.client_correlation_id is not None:
            self._call = yield Look(client_correlation_id=self._id)
            if self._call is not None:
                return (yield from self._go_on(self._call))
        if self._mode is Mode.AUTO_CONFIRM:
            yield from self._note()
        return (yield from self._phase_one())

    def _go_on(self, call: Call) -> Steps:
        if call.meant != self._meant():
            raise self._failed("id_reused", Advice.FIX, "this client correlation id was used for another request")
        self._target = target_of(call.url)
        if call.stage in OPEN:
            yield from self._take_over()
        if self._call is None or self._call.stage is Stage.SENT:
            return (yield from self._phase_one(again=True))
        return (yield from self.resume())

    def after_restart(self, call: Call) -> Steps:
        """For the reconciler, which has just taken it over."""
        self._call = call
        self._mode = call.mode
        if call.stage is Stage.SENT:
            return (yield from self._phase_one(again=True))
        return (yield from self.resume())

    def resume(self) -> Steps:
        """From what is recorded: both ids are known, so the server can be asked."""
        call = self._call
        assert call is not None
        if call.stage is Stage.TTL_EXPIRED:
            raise self._failed("ttl_expired", Advice.RESUBMIT, "it was not confirmed in time")
        if call.stage in OPEN:
            left_ms = (call.confirm_by or 0) - self._settings.clock()
            self._deadline = self._steady() + left_ms
            self._confirms = 1  # Nobody knows whether an earlier life had confirmed.
            return (yield from self._until_known(0.0))
        found = yield from self._replayed()
        if found is None:
            raise self._failed("answer_gone", Advice.DONE, "it has ended, and the server no longer has its answer")
        return found

    def _take_over(self) -> Generator[Effect, Any, None]:
        """Become the driver, or wait for whoever is: two must not decide about one call (see core.call_machine)."""
        until = self._steady() + round(self._settings.patience_s * 1_000)
        while True:
            decision: Decision = yield Record(client_correlation_id=self._id, command=Attend(owner=self._owner))
            self._call = decision.call
            if decision.code != IS_HELD:
                return
            if self._steady() >= until:
                raise self._failed("in_progress", Advice.WAIT, "another caller is still making this very call")
            yield Pause(min(self._settings.lease_s / 4, LONGEST_DELAY_S))

    def _note(self) -> Generator[Effect, Any, None]:
        """Nothing that the server confirms by itself leaves before it is written down (A-43)."""
        request = sealed_request(self._asked)
        try:
            yield from self._record(Note(opening=self._opening()), request=request)
        except StoreError as error:
            raise self._not_recorded(error) from error

    def _not_recorded(self, error: StoreError) -> PhaseError:
        """A-43. A row that may have been written after all may still be confirmed, by whoever finds it."""
        nothing_written = isinstance(error, StoreUnavailable)
        advice = Advice.RESUBMIT if nothing_written else Advice.WAIT
        return self._failed("ledger_unavailable", advice, f"the client's ledger cannot be written: {error}")

    def left_open(self, error: StoreError) -> PhaseError:
        """The ledger failed where something may have been sent, or may be by whoever finds the call."""
        return self._failed("ledger_unavailable", Advice.WAIT, f"the client's ledger cannot be used: {error}")

    # Phase 1.

    def _phase_one(self, *, again: bool = False) -> Steps:
        until = self._steady() + round(self._settings.poll_limit_s * 1_000)
        silent_until = self._steady() + round(self._settings.patience_s * 1_000)
        delay = FIRST_DELAY_S
        while True:
            if again:
                yield from self._may_repeat()
            sent_at = self._steady()
            self._sent_at = self._sent_at or self._settings.clock()
            found: Outcome | float | None
            try:
                reply = yield from self._send_phase_one()
            except NotSent:
                if not again:
                    yield from self._forget()
                    raise
                found = None
            except Lost as lost:
                found = yield from self._after_lost_phase_one(lost)
            else:
                silent_until = self._steady() + round(self._settings.patience_s * 1_000)
                found = yield from self._after_phase_one(reply, sent_at)
            if isinstance(found, Outcome):
                return found
            again = True
            if self._steady() >= min(until, silent_until):
                raise (yield from self._unresolved("no_answer"))
            yield Pause(delay if found is None else found)
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _send_phase_one(self) -> Generator[Effect, Any, Reply]:
        headers = phase_one_headers(self._asked, self._settings, self._id, self._callback)
        reply: Reply = yield Send(
            step="phase_1", method=self._asked.method, target=self._target, headers=headers, body=self._asked.body
        )
        return reply

    def _may_repeat(self) -> Generator[Effect, Any, None]:
        """A-06: a server that may be a plain one is never sent the same thing twice."""
        if not self._speaks():
            raise (yield from self._unresolved("answer_lost"))

    def _after_lost_phase_one(self, lost: Lost) -> Heard:
        """Draft §5.5.5: the callback may have come where the answer did not."""
        if self._mode is Mode.AUTO_CONFIRM:
            self._call = yield Look(client_correlation_id=self._id)
            if self._call is not None and self._call.stage is not Stage.SENT:
                return (yield from self._until_known(0.0))
        if lost.head is not None and self._parsed(lost.head) is not None:  # It broke off, and yet it says who speaks.
            self._known.add(self._asked.method, self._target)
        if not self._speaks():
            raise (yield from self._unresolved("answer_lost")) from lost.native
        return None

    def _after_phase_one(self, reply: Reply, sent_at: Instant) -> Heard:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._without_phase(reply))
        self._known.add(self._asked.method, self._target)
        if answer.phase in {Phase.TTL_EXPIRED, Phase.ABANDONED}:
            yield Read(reply=reply)
            yield from self._told(answer, reply, "phase_1")
            raise self._failed("ttl_expired", Advice.RESUBMIT, "this id has expired", phase=Phase.TTL_EXPIRED)
        if answer.server_correlation_id is None:
            return (yield from self._without_server_id(answer, reply))
        if self._mode is Mode.AUTO_CONFIRM and answer.phase in SETTLED:
            yield from self._told(answer, reply, "phase_1")
            return self._outcome(reply, answer)
        yield Read(reply=reply)
        self._set_deadline(answer, reply, sent_at)
        try:
            yield from self._told(answer, reply, "phase_1")
        except StoreError as error:  # no durable row, no Phase 2; the intent is left to expire.
            raise self._not_recorded(error) from error
        if answer.phase is Phase.PROCESSING:
            return (yield from self._until_known(FIRST_DELAY_S))
        return (yield from self._confirm())

    def _without_phase(self, reply: Reply) -> Heard:
        """A refusal of the middleware, or an answer of a server that does not speak 2PHP."""
        if reply.status in REDIRECTS:  # Nothing was done. Whether to go there is the caller's to say.
            yield from self._forget()
            return self._outcome(reply, None, mode="redirected")
        refused = response.is_refusal(reply.headers)
        if self._mode is Mode.AUTO_CONFIRM and reply.status >= SERVER_ERROR and (refused or self._speaks()):
            yield Read(reply=reply)  # Nobody can tell whether it ran; the same id finds out.
            return None
        yield from self._forget(plain=not refused)
        if self._settings.require_2php and not refused and reply.status < SERVER_ERROR:
            raise self._failed("not_two_phase", Advice.CHECK, "the server answered without 2PHP: it has done it", reply)
        return self._outcome(reply, None, mode="refused" if refused else "plain")

    def _without_server_id(self, answer: TwoPhaseAnswer, reply: Reply) -> Heard:
        """Auto-confirm, still running (T2): the same request again brings the stored answer."""
        if self._mode is Mode.AUTO_CONFIRM and answer.phase is Phase.PROCESSING:
            yield Read(reply=reply)
            return _bounded(response.retry_after_s(reply.headers))
        raise self._failed("bad_answer", Advice.CHECK, "the answer names a phase and no server correlation id", reply)

    def _set_deadline(self, answer: TwoPhaseAnswer, reply: Reply, sent_at: Instant) -> None:
        """A-25: counted from the moment of sending, so it is never later than the server's, whatever the clocks say."""
        ttl_ms = answer.ttl_ms or STAND_IN_TTL_MS
        margin_ms = self._settings.margin_of(ttl_ms)
        deadline = sent_at + ttl_ms - margin_ms
        made_at = response.made_at(reply.headers)
        if answer.deadline_at is not None and made_at is not None:  # Advisory, on the server's own clock.
            deadline = min(deadline, self._steady() + answer.deadline_at - made_at - margin_ms)
        self._deadline = deadline

    # Phase 2.

    def _confirm(self) -> Steps:
        if self._call is not None and self._call.stage is Stage.WAITING_CONFIRM and self._is_late():
            yield from self._give_up("the client was too slow to confirm in time")
            return (yield from self._until_known(0.0))
        found = yield from self._confirm_once()
        if isinstance(found, Outcome):
            return found
        return (yield from self._until_known(FIRST_DELAY_S if found is None else found))

    def _is_late(self) -> bool:
        return self._deadline is not None and self._steady() >= self._deadline

    def _give_up(self, why: str, code: str = "ttl_expired") -> Generator[Effect, Any, None]:
        """No Phase 2 has reached the server, and none will (A-49). Only the holder of the fence may say so."""
        call = self._call
        assert call is not None
        decision: Decision = yield Record(client_correlation_id=self._id, command=GiveUp(fence=call.fence))
        if decision.code is None:
            self._call = decision.call
            raise self._failed(code, Advice.RESUBMIT, why)
        self._confirms += 1  # Somebody took it over and may have confirmed it.
        self._call = yield Look(client_correlation_id=self._id)

    def _confirm_once(self) -> Heard:
        try:
            reply = yield from self._send_confirm()
        except (NotSent, Lost):
            return None
        return (yield from self._after_phase_two(reply))

    def _send_confirm(self) -> Generator[Effect, Any, Reply]:
        call = self._call
        assert call is not None
        headers = own_headers(self._asked, self._settings, self._target.url)
        headers += emit.phase_two_request(
            client_correlation_id=self._id, server_correlation_id=call.server_correlation_id
        )
        target = self._target.confirms_at(self._settings.confirm_suffix)
        self._confirms += 1
        try:
            reply: Reply = yield Send(step="phase_2", method="POST", target=target, headers=headers)
        except NotSent:
            self._confirms -= 1
            raise
        return reply

    def _after_phase_two(self, reply: Reply) -> Heard:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._unconfirmed(reply))
        if answer.phase in SETTLED:
            yield from self._told(answer, reply, "phase_2")
            return self._outcome(reply, answer)
        yield from self._told(answer, reply, "phase_2")
        if answer.phase is Phase.PROCESSING:
            yield Read(reply=reply)
            return _bounded(response.retry_after_s(reply.headers))
        if answer.phase is Phase.WAITING_CONFIRM:
            raise (yield from self._unresolved("bad_answer"))
        raise self._failed("ttl_expired", Advice.RESUBMIT, LATE, reply)

    def _unconfirmed(self, reply: Reply) -> Heard:
        """An answer to Phase 2 that names no phase: a refusal, a redirect, or somebody in between."""
        if reply.status >= SERVER_ERROR:
            yield Read(reply=reply)
            return None
        refused = response.is_refusal(reply.headers)
        if reply.status == NOT_FOUND and refused:
            advice = Advice.RESUBMIT if self._confirms == 1 else Advice.CHECK
            raise (yield from self._not_there(advice, reply))
        if refused and self._confirms == 1:  # The guards stand before the intent, so nothing ran.
            yield from self._give_up("the server refused the confirm", "confirm_refused")
        raise (yield from self._unresolved("confirm_refused" if refused else "bad_answer", reply))

    def _not_there(self, advice: Advice, reply: Reply) -> Generator[Effect, Any, PhaseError]:
        """The server says that there is no such intent. It remembers for a day at least whatever ran (A-83)."""
        call = self._call
        assert call is not None
        if self._settings.clock() - call.sent_at >= DAY_MS:
            return (yield from self._unresolved("forgotten", reply))
        yield from self._record(NotThere())
        return self._failed("unknown_intent", advice, "the server has no such intent", reply)

    # Finding out.

    def _until_known(self, delay: float) -> Steps:
        """Ask with the same ids until the server says how it ended. Silence is borne for less long than patience."""
        began = heard_at = self._steady()
        backoff = FIRST_DELAY_S
        while True:
            if delay:
                yield Pause(delay)
            found = yield from self._ask()
            now = self._steady()
            if isinstance(found, Outcome):
                return found
            if found is not None:
                delay, heard_at, backoff = found, now, FIRST_DELAY_S
                if now - began >= self._settings.poll_limit_s * 1_000:
                    raise (yield from self._unresolved("still_processing"))
                continue
            delay, backoff = backoff, min(2 * backoff, LONGEST_DELAY_S)
            if now - heard_at >= self._settings.patience_s * 1_000:
                if not self._confirms:
                    yield from self._give_up("the server could not be reached to confirm", "unreachable")
                raise (yield from self._unresolved("no_answer"))

    def _ask(self) -> Heard:
        assert self._call is not None
        if self._call.stage is Stage.WAITING_CONFIRM and not self._is_late():
            return (yield from self._confirm_once())
        return (yield from self.read_status())

    def read_status(self) -> Heard:
        """One status read (A-04): it changes nothing, so it may be made at any time."""
        call = self._call
        assert call is not None
        headers = own_headers(self._asked, self._settings, self._target.url)
        headers += emit.status_read_request(
            client_correlation_id=self._id, server_correlation_id=call.server_correlation_id
        )
        target = self._target.status_at(self._asked.method, call.status_url, call.resource_id or "")
        try:
            reply: Reply = yield Send(step="status_read", method="GET", target=target, headers=headers)
        except (NotSent, Lost):
            return None
        return (yield from self._after_status_read(reply))

    def _after_status_read(self, reply: Reply) -> Heard:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._not_read(reply))
        if answer.phase is Phase.COMMITTED:
            yield from self._told(answer, reply, "status_read")
            return self._outcome(reply, answer)
        if answer.phase is Phase.FAILED:
            body = yield Read(reply=reply, limit=MAX_STATUS_BYTES)
            return (yield from self._after_failure(answer, reply, body))
        yield from self._told(answer, reply, "status_read")
        if answer.phase in {Phase.TTL_EXPIRED, Phase.ABANDONED}:
            raise self._failed("ttl_expired", Advice.RESUBMIT, LATE, reply)
        yield Read(reply=reply)
        return _bounded(response.retry_after_s(reply.headers))

    def _not_read(self, reply: Reply) -> Heard:
        if reply.status >= SERVER_ERROR:
            yield Read(reply=reply)
            return None
        if reply.status == NOT_FOUND and response.is_refusal(reply.headers):
            raise (yield from self._not_there(Advice.CHECK, reply))
        raise (yield from self._unresolved("status_refused", reply))

    def _after_failure(self, answer: TwoPhaseAnswer, reply: Reply, body: bytes) -> Heard:
        """A failure is told inside a successful read; Phase 2 once more brings its own answer (draft §8.1)."""
        failure = _failure_in(body)
        said = Reply(status=failure.status, headers=reply.headers)
        yield from self._told(answer, said, "status_read")
        replayed = yield from self._replayed()
        if replayed is not None:
            return replayed
        kept = [pair for pair in reply.headers if not pair[0].lower().startswith(b"content-")]
        rebuilt = Reply(status=failure.status, headers=kept, body=failure.body.encode())
        return self._outcome(rebuilt, answer)

    def _replayed(self) -> Generator[Effect, Any, Outcome | None]:
        """The stored answer of a call that has ended, by the Phase 2 that every server must answer alike."""
        try:
            reply = yield from self._send_confirm()
        except (NotSent, Lost):
            return None
        answer = self._parsed(reply)
        if answer is not None and answer.phase in SETTLED:
            yield from self._told(answer, reply, "phase_2")
            return self._outcome(reply, answer)
        yield Read(reply=reply)
        return None


class _Failure(msgspec.Struct):
    status: int = SERVER_ERROR
    body: str = ""


def _failure_in(body: bytes) -> _Failure:
    """The stored status and body that a status read of a failure holds (A-04)."""
    try:
        failure = msgspec.json.decode(body, type=_Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Failure()
    return msgspec.structs.replace(failure, status=min(max(failure.status, 400), SERVER_ERROR))


def _bounded(retry_after_s: float | None) -> float:
    """A server may slow polls down, but not to a standstill."""
    return FIRST_DELAY_S if retry_after_s is None else min(max(retry_after_s, FIRST_DELAY_S), LONGEST_POLL_S)
