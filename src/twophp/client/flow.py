"""One call, from the caller's request to its final answer, as a generator: no second copy of any rule.

The generator yields what to send, to record and to wait for, and receives the result of each. A blocking and an
awaiting loop drive the same code (``driver.py``), as httpx does with its authentication flows.

The order is the protocol's: Phase 1, the client's own row made durable, then Phase 2 and not before (draft §5.2.3).
What may be sent a second time, and what may not:

    Phase 1, unanswered     only to an endpoint that is known to speak 2PHP: a plain server may have done it (A-06)
    the same, auto-confirm  only to one that also recognises the id, and after waiting for the callback (A-42)
    Phase 2, unanswered     the same ids again; see resolution.py
    anything, answered      never: 408 asks for a new id, and that is the caller's decision (A-28, draft §8.2)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from twophp.client import repeats
from twophp.client.exchange import (
    CallRequest,
    Effect,
    Look,
    Lost,
    NotSent,
    Outcome,
    Pause,
    Read,
    Record,
    Reply,
    Send,
    TransportContext,
)
from twophp.client.outgoing import own_headers, phase_one_headers, sealed_request
from twophp.client.recorder import MAY_HAVE_HAPPENED, STAND_IN_TTL_MS, request_of
from twophp.client.resolution import (
    ACCEPTED,
    EXPIRED,
    FIRST_DELAY_S,
    GIVEN_UP,
    LONGEST_DELAY_S,
    REDIRECTED,
    SERVER_ERROR,
    Heard,
    Resolution,
    Steps,
    bounded,
)
from twophp.core.call import OPEN, UNCONFIRMED, Call, Stage
from twophp.core.call_commands import Note, Tick
from twophp.core.call_machine import IS_HELD, NOBODY, CallDecision
from twophp.core.errors import OUTCOME_INDETERMINATE, Advice, PhaseError, StoreError, StoreUnavailable
from twophp.core.intent import SETTLED, Mode, Phase
from twophp.core.policy import DAY_MS
from twophp.core.records import Instant
from twophp.wire import emit, fields, response
from twophp.wire.parse import TwoPhaseAnswer
from twophp.wire.targets import target_of

REDIRECTS: Final = frozenset({307, 308})


def calling(asked: CallRequest, around: TransportContext) -> Steps:
    """Make the call; make it anew under a new id, at most ``resubmit`` times, and only if nothing ran (draft §8.2)."""
    request, steady, id_ = request_of(asked, around), around.settings.steady, asked.options.client_correlation_id
    if id_ is not None:  # A new id would be another call.
        asked = msgspec.structs.replace(asked, is_repeat=repeats.named_before(request, id_))
        return (yield from _made(Conversation(asked, around), request))
    left = around.settings.resubmit if asked.options.resubmit is None else asked.options.resubmit
    id_ = repeats.made_before(request, steady())
    while True:
        conversation = Conversation(asked if id_ is None else _under(id_, asked), around)
        try:
            return (yield from _made(conversation, request, steady))
        except PhaseError as error:
            if error.code != "ttl_expired" or error.advice is not Advice.RESUBMIT or left < 1:
                raise
            left, id_ = left - 1, None
            asked = msgspec.structs.replace(asked, hop=None)


def _made(conversation: Conversation, request: str, steady: Callable[[], Instant] | None = None) -> Steps:
    """Make one call, and remember whether its caller knows its outcome. Without a clock: remember it by its name."""
    is_known = False
    try:
        outcome = yield from conversation.run()
        is_known = True
    except NotSent:
        is_known = True
        raise
    except PhaseError as error:
        is_known = error.advice in {Advice.RESUBMIT, Advice.FIX}  # Nothing ran.
        raise
    except StoreError as error:
        raise conversation.left_open(error) from error
    finally:  # Also where the caller's own time limit ended it.
        if steady is None:
            repeats.left_named(request, conversation.id, has_ended=is_known)
        else:
            repeats.left(request, conversation.id, steady(), has_ended=is_known)
    return outcome


def _under(client_correlation_id: str, asked: CallRequest) -> CallRequest:
    """The same request, continued under the id of its call."""
    options = msgspec.structs.replace(asked.options, client_correlation_id=client_correlation_id)
    return msgspec.structs.replace(asked, options=options, is_repeat=True)


class Conversation(Resolution):
    """One call under one client correlation id."""

    # The beginning.

    def run(self) -> Steps:
        """From Phase 1, or from where an earlier life of this call stopped."""
        if self._asked.options.client_correlation_id is not None:
            self._call = yield Look(client_correlation_id=self._id)
            if self._call is not None:
                return (yield from self._go_on(self._call))
        if self._mode is Mode.AUTO_CONFIRM and not (yield from self._note()):
            assert self._call is not None
            return (yield from self._go_on(self._call))  # Another caller of this id has just noted it.
        return (yield from self._phase_one(again=self._asked.is_repeat))

    def _go_on(self, call: Call) -> Steps:
        if call.meant != self._meant():
            raise self._failed("id_reused", Advice.FIX, "this client correlation id was used for another request")
        self._target, self._mode = target_of(call.url), call.mode  # As it was made, not as this transport is set.
        if call.stage in OPEN or call.stage is Stage.GIVEN_UP:
            yield from self._take_over()
        if self._call is None or self._call.stage is Stage.SENT:
            return (yield from self._phase_one(again=True))
        return (yield from self.resume())

    def after_restart(self, call: Call) -> Steps:
        """Continue a call that the reconciler has just taken over."""
        self._call = call
        self._fence = call.fence
        self._mode = call.mode
        if call.stage is Stage.SENT:
            return (yield from self._phase_one(again=True))
        return (yield from self.resume())

    def resume(self) -> Steps:
        """From what is recorded: both ids are known, so the server can be asked."""
        call = self._call
        assert call is not None
        if call.stage in UNCONFIRMED:
            advice = Advice.RESUBMIT if call.never_ran else Advice.CHECK
            text = (
                GIVEN_UP if call.stage is Stage.GIVEN_UP else "it was not confirmed in time, as far as the server said"
            )
            raise self._failed("ttl_expired", advice, text)
        if call.stage in OPEN:
            left_ms = (call.confirm_by or 0) - self._settings.clock()
            self._deadline = self._steady() + left_ms
            self._confirms = 1  # An earlier process may have confirmed: its row was durable before that.
            self._is_async = call.stage is Stage.PROCESSING and call.mode is Mode.STANDARD
            return (yield from self._until_known(0.0))
        found = yield from self._replayed()
        if found is None and call.indeterminate:
            raise self._failed(OUTCOME_INDETERMINATE, Advice.CHECK, MAY_HAVE_HAPPENED)
        if found is None:
            raise self._failed("answer_gone", Advice.DONE, "it has ended, and the server no longer has its answer")
        return found

    def _take_over(self) -> Generator[Effect, Any, None]:
        """Become the driver, or wait for the present one: two must not decide about one call (see core.call_machine).

        A call that was given up has no driver; there the visit ends it, if its deadline has passed.
        """
        until = self._steady() + round(self._settings.patience_s * 1_000)
        attend = Tick(owner=self._owner, dead_driver=NOBODY)  # Only the reconciler visits less and less often.
        while True:
            decision: CallDecision = yield Record(client_correlation_id=self._id, command=attend)
            self._call = decision.call
            if decision.code != IS_HELD:
                if decision.changed and decision.call is not None:
                    self._fence = decision.call.fence
                return
            if self._steady() >= until:
                raise self._failed("in_progress", Advice.WAIT, "another caller is still making this very call")
            yield Pause(min(self._settings.lease_s / 4, LONGEST_DELAY_S))

    def _note(self) -> Generator[Effect, Any, bool]:
        """Write down an auto-confirmed call before its Phase 1 leaves (A-43). True if the ledger did not know it."""
        request = sealed_request(self._asked)
        try:
            return (yield from self._record(Note(opening=self._opening()), request=request))
        except StoreError as error:
            raise self._not_recorded(error) from error

    def _not_recorded(self, error: StoreError) -> PhaseError:
        """A-43. If the row may have been written after all, another driver may find it and confirm it: so WAIT."""
        nothing_written = isinstance(error, StoreUnavailable)
        advice = Advice.RESUBMIT if nothing_written else Advice.WAIT
        return self._failed("ledger_unavailable", advice, f"the client's ledger cannot be written: {error.message}")

    def left_open(self, error: StoreError) -> PhaseError:
        """The ledger failed where something may have been sent, or may be by whoever finds the call."""
        return self._failed("ledger_unavailable", Advice.WAIT, f"the client's ledger cannot be used: {error.message}")

    # Phase 1.

    def _phase_one(self, *, again: bool = False) -> Steps:
        until = self._steady() + round(self._settings.poll_limit_s * 1_000)
        silent_until = self._steady() + round(self._settings.patience_s * 1_000)
        delay = FIRST_DELAY_S
        while True:
            found: Outcome | float | None = None
            if not again or (yield from self._may_repeat()):
                sent_at = self._steady()
                self._sent_at = self._sent_at or self._settings.clock()
                try:
                    reply = yield from self._send_phase_one()
                except NotSent:
                    if not again:
                        yield from self._forget()
                        raise
                except Lost as lost:
                    found = yield from self._after_lost_phase_one(lost)
                else:
                    silent_until = self._steady() + round(self._settings.patience_s * 1_000)
                    found = yield from self._after_phase_one(reply, sent_at, again=again)
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

    def _may_repeat(self) -> Generator[Effect, Any, bool]:
        """Whether the same Phase 1 may leave once more; False: not known yet. Raises where it never may."""
        if not self._speaks():  # a server that may be a plain one is never sent the same thing twice.
            raise (yield from self._unresolved("answer_lost"))
        if self._mode is not Mode.AUTO_CONFIRM:
            return True  # Without a Phase 2 nothing runs, however often it is registered.
        call = self._call
        if call is not None and self._settings.clock() - call.sent_at >= DAY_MS:  # No server has to remember it.
            raise (yield from self._unresolved("forgotten"))
        if self._known.recognises_ids(self._asked.method, self._target):
            return True
        return (yield from self._recognised())

    def _recognised(self) -> Generator[Effect, Any, bool]:
        """Find out which server answers, with a status read of an intent that cannot exist: it changes nothing (A-04).

        Only twophp's middleware is known to take the same id for the same intent (A-32); the draft does not require it.
        """
        headers = own_headers(self._asked, self._settings, self._target.url)
        headers += emit.status_read_request(client_correlation_id=self._id, server_correlation_id=self._id)
        try:
            target = self._target._replace(query="")
            reply: Reply = yield Send(step="status_read", method="GET", target=target, headers=headers)
        except (NotSent, Lost):
            return False
        yield Read(reply=reply)
        if response.refusal(reply.headers) is not None:
            self._known.add(self._asked.method, self._target, recognises_ids=True)
            return True
        if reply.status in response.GATEWAY_ERRORS:
            return False
        raise (yield from self._unresolved("answer_lost"))

    def _after_lost_phase_one(self, lost: Lost) -> Heard:
        """Draft §5.5.5: the callback may have come, or be on its way, although the answer is lost."""
        answer = None if lost.head is None else self._parsed(lost.head)
        if lost.head is not None and answer is not None:  # The body broke off; the head says what it is.
            self._known.add(self._asked.method, self._target)
            if self._mode is Mode.AUTO_CONFIRM and answer.server_correlation_id is not None:
                yield from self._told(answer, lost.head, "phase_1")
                return (yield from self.resume())
        if self._mode is Mode.AUTO_CONFIRM and (yield from self._acknowledged()):
            return (yield from self.resume())
        if not self._speaks():
            raise (yield from self._unresolved("answer_lost")) from lost.native
        return None

    def _acknowledged(self) -> Generator[Effect, Any, bool]:
        """Wait for the callback: it brings the server's id, with which the outcome can be read without a repeat."""
        wait_s = min(self._settings.callback_wait_s, self._settings.patience_s)
        until = self._steady() + round(wait_s * 1_000)
        delay = FIRST_DELAY_S
        while True:
            self._call = yield Look(client_correlation_id=self._id)
            if self._call is not None and self._call.stage is not Stage.SENT:
                return True
            if self._steady() >= until:
                return False
            yield Pause(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _after_phase_one(self, reply: Reply, sent_at: Instant, *, again: bool) -> Heard:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._without_phase(reply, again=again))
        self._known.add(self._asked.method, self._target)
        if answer.phase in EXPIRED:
            yield from self._told(answer, reply, "phase_1", first=not again)
            if again and self._mode is Mode.AUTO_CONFIRM:
                raise (yield from self._unresolved("ttl_expired", reply))
            raise self._failed("ttl_expired", Advice.RESUBMIT, "this id has expired", reply, phase=Phase.TTL_EXPIRED)
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
        if not self._fence and self._call is not None:
            return (yield from self._go_on(self._call))  # Another caller of this id drives it, and may have confirmed.
        self._is_async = reply.status == ACCEPTED
        if answer.phase is not Phase.WAITING_CONFIRM:
            self._confirms += 1  # Something made it run already, so no confirm of ours is the first.
        if answer.phase is Phase.PROCESSING:
            return (yield from self._until_known(FIRST_DELAY_S))
        return (yield from self._confirm())

    def _without_phase(self, reply: Reply, *, again: bool) -> Heard:
        """A refusal of the middleware, or an answer of a server that does not speak 2PHP."""
        refused = response.refusal(reply.headers) is not None
        if response.field(reply.headers, fields.SERVER_CORRELATION_ID.key) is not None:
            text = "the answer names a server correlation id and no phase"
            raise self._failed("bad_answer", Advice.CHECK, text, reply)
        if self._mode is Mode.AUTO_CONFIRM:
            recognises = refused or self._known.recognises_ids(self._asked.method, self._target)
            if reply.status >= SERVER_ERROR and recognises:
                yield Read(reply=reply)  # The answer does not say whether it ran; the same id finds out.
                return None
            if again:  # This request registered nothing, but an earlier one may have.
                raise (yield from self._unresolved("answer_lost", reply))
        if reply.status in REDIRECTS:  # Nothing was done. The caller decides whether to follow.
            yield from self._forget()
            return self._outcome(reply, None, mode="redirected")
        yield from self._forget(plain=not refused)
        # A server that answers with a redirect, a 4xx or a 5xx says that it has not done it.
        if self._settings.require_2php and reply.status < REDIRECTED and not refused:
            raise self._failed("not_two_phase", Advice.CHECK, "the server answered without 2PHP: it has done it", reply)
        return self._outcome(reply, None, mode="refused" if refused else "plain")

    def _without_server_id(self, answer: TwoPhaseAnswer, reply: Reply) -> Heard:
        if self._mode is Mode.AUTO_CONFIRM and answer.phase is Phase.PROCESSING:
            yield Read(reply=reply)  # Still running (T2): the same request again brings the stored answer.
            return bounded(response.retry_after_s(reply.headers))
        if self._mode is Mode.AUTO_CONFIRM and answer.phase in SETTLED:
            return (yield from self._ended_without_server_id(answer, reply))
        raise self._failed("bad_answer", Advice.CHECK, "the answer names a phase and no server correlation id", reply)

    def _ended_without_server_id(self, answer: TwoPhaseAnswer, reply: Reply) -> Heard:
        """The answer is the outcome (draft §5.5.7). A row exists only if the callback brought the server's id."""
        self._call = yield Look(client_correlation_id=self._id)
        yield from self._told(answer, reply, "phase_1")
        if self._call is not None and self._call.stage is Stage.SENT:
            yield from self._forget()
        return self._outcome(reply, answer)

    def _set_deadline(self, answer: TwoPhaseAnswer, reply: Reply, sent_at: Instant) -> None:
        """A-25: counted from the moment of sending, so it is never later than the server's, even if clocks differ."""
        ttl_ms = answer.ttl_ms or STAND_IN_TTL_MS
        margin_ms = self._settings.margin_of(ttl_ms)
        deadline = sent_at + ttl_ms - margin_ms
        made_at = response.made_at(reply.headers)
        if answer.deadline_at is not None and made_at is not None:  # Advisory, on the server's own clock.
            deadline = min(deadline, self._steady() + answer.deadline_at - made_at - margin_ms)
        self._deadline = deadline
