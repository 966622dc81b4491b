"""From both ids to the outcome: Phase 2, the status read, and what each answer proves.

    in time                 Phase 2, and again with the same ids while no answer comes (draft §8.1)
    late, or after a 202    the status read (A-04); where none is offered, Phase 2 again: the draft's only query
    late, nothing sent      nothing: a first confirm never leaves after the deadline (draft §5.3.1)

What an answer to Phase 2 proves depends on whether it answers the first confirm that can have reached the server. A
later one is a question about the first, and so is every confirm of a call that was taken over.

    answer                                first                         repeated
    COMMITTED, FAILED                     the outcome                   the outcome
    408 TTL_EXPIRED                       nothing ran: resubmit         nothing: ask the status, else check
    bare 500, bare 4xx                    failed (draft §5.3.2)         failed: the same answer (draft §8.1)
      but 401, 404, 409, ...              failed                        nothing: ask the status, else check
    refusal by twophp's middleware, 4xx   nothing ran: resubmit         nothing: check
    the same, 5xx; 502, 503, 504, ...     nothing: ask again            nothing: ask again
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Literal, TypeAlias

import msgspec

from twophp.client.exchange import Effect, Keep, Look, Lost, NotSent, Outcome, Pause, Read, Record, Reply, Send
from twophp.client.outgoing import own_headers
from twophp.client.recorder import ENDED, CallRecorder
from twophp.core.call import Stage
from twophp.core.call_commands import GiveUp, NotThere
from twophp.core.call_machine import CallDecision
from twophp.core.errors import Advice, PhaseError
from twophp.core.intent import SETTLED, Phase
from twophp.core.policy import DAY_MS
from twophp.wire import emit, response
from twophp.wire.parse import TwoPhaseAnswer

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 2.0
LONGEST_POLL_S: Final = 30.0
MAX_STATUS_BYTES: Final = 16 * 1024 * 1024
OK, ACCEPTED, REDIRECTED, FAILURE, NOT_FOUND, SERVER_ERROR, LAST_STATUS = 200, 202, 300, 400, 404, 500, 599
EXPIRED: Final = frozenset({Phase.TTL_EXPIRED, Phase.ABANDONED})
LATE: Final = "the server says that it was not confirmed in time"
GIVEN_UP: Final = "it was given up: it was not confirmed, and will not be"
DOUBTFUL: Final = "the server says that it expired, but a confirm may have been sent whose answer is not known"

Steps: TypeAlias = Generator[Effect, Any, Outcome]
Heard: TypeAlias = Generator[Effect, Any, Outcome | float | None]
"""The outcome; or how long to wait before asking again; or None if the answer says nothing of the outcome."""
Status: TypeAlias = Generator[Effect, Any, Outcome | float | Reply | None]
"""As ``Heard``; or an answer without a phase: that server offers no status read."""


class Resolution(CallRecorder):
    """One call, from the moment both of its ids are known."""

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
        command = GiveUp(fence=self._fence, late=self._is_late())
        decision: CallDecision = yield Record(client_correlation_id=self._id, command=command)
        if decision.code is None:
            self._call = decision.call
            raise self._failed(code, Advice.RESUBMIT, why)
        self._confirms += 1  # Another driver took it over and may have confirmed it.
        self._call = yield Look(client_correlation_id=self._id)
        if self._call is not None and self._call.stage is Stage.GIVEN_UP:  # Or has given it up.
            raise self._failed("ttl_expired", Advice.RESUBMIT, GIVEN_UP)

    def _confirm_once(self, *, status_was_read: bool = False) -> Heard:
        try:
            reply = yield from self._send_confirm()
        except NotSent:
            self._gateway = None
            return None
        except Lost as lost:
            self._gateway = None
            return (yield from self._from_head(lost))
        return (yield from self._after_phase_two(reply, status_was_read=status_was_read))

    def _from_head(self, lost: Lost) -> Heard:
        """An answer to Phase 2 that broke off: what its head says of the outcome holds, and its body is asked for."""
        answer = None if lost.head is None else self._parsed(lost.head)
        if lost.head is not None and answer is not None and answer.phase in SETTLED:
            yield from self._told(answer, lost.head, "phase_2")
        return None

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

    def _after_phase_two(self, reply: Reply, *, status_was_read: bool) -> Heard:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._without_phase_state(reply, status_was_read=status_was_read))
        yield from self._told(answer, reply, "phase_2", first=self._confirms == 1)
        if answer.phase in SETTLED:
            return self._outcome(reply, answer)
        if answer.phase is Phase.PROCESSING:
            self._is_async = self._is_async or reply.status == ACCEPTED
            yield Read(reply=reply)
            return bounded(response.retry_after_s(reply.headers))
        if answer.phase is Phase.WAITING_CONFIRM:
            raise (yield from self._unresolved("bad_answer"))
        if self._confirms == 1 and self._call is not None and self._call.never_ran:
            raise self._failed("ttl_expired", Advice.RESUBMIT, LATE, reply)
        return (yield from self._check("ttl_expired", reply, status_was_read=status_was_read))

    def _without_phase_state(self, reply: Reply, *, status_was_read: bool) -> Heard:
        """A failure as the draft draws it, a refusal, a redirect, or a gateway's answer; see the table above."""
        status, refused = reply.status, response.refusal(reply.headers) is not None
        is_first = self._confirms == 1
        if status in response.GATEWAY_ERRORS or (refused and status >= SERVER_ERROR):
            yield from self._said_nothing(reply, is_gateway=not refused)
            return None
        if status < FAILURE:  # A redirect too: to follow it would make a second call beside an open one.
            raise (yield from self._unresolved("bad_answer", reply))
        if refused and status == NOT_FOUND:
            raise (yield from self._not_there(reply, is_first=is_first))
        if refused and is_first:  # The guards stand before the intent, so nothing ran.
            yield from self._give_up("the server refused the confirm", "confirm_refused")
        if refused:  # The guards of a status read are the same.
            raise (yield from self._unresolved("confirm_refused", reply))
        if not is_first and status in response.ABOUT_THE_REQUEST:
            return (yield from self._check("confirm_refused", reply, status_was_read=status_was_read))
        answer = _failure()  # draft §5.3.2: "the client receives a definitive outcome in the Phase 2 response".
        yield from self._told(answer, reply, "phase_2")
        return self._outcome(reply, answer)

    def _said_nothing(self, reply: Reply, *, is_gateway: bool) -> Generator[Effect, Any, None]:
        """Keep an answer that says nothing of the outcome. Asking again is safe: same ids, same answer."""
        yield Keep(reply=reply)
        self._gateway = reply if is_gateway else None

    def _check(self, code: str, reply: Reply, *, status_was_read: bool) -> Heard:
        """Read the status: an earlier confirm may have run the call, and this answer does not say."""
        if not status_was_read:
            yield Keep(reply=reply)
            found = yield from self.read_status()
            if not isinstance(found, Reply):
                return found
        raise (yield from self._unresolved(code, reply))

    def _not_there(self, reply: Reply, *, is_first: bool) -> Generator[Effect, Any, PhaseError]:
        """The server says that there is no such intent. It remembers what ran for a day at least (A-83)."""
        call = self._call
        assert call is not None
        if self._settings.clock() - call.sent_at >= DAY_MS:
            return (yield from self._unresolved("forgotten", reply))
        yield from self._record(NotThere(first=is_first))
        advice = Advice.RESUBMIT if self._call is not None and self._call.never_ran else Advice.CHECK
        return self._failed("unknown_intent", advice, "the server has no such intent", reply)

    # Finding out.

    def _until_known(self, delay: float) -> Steps:
        """Ask with the same ids until the server says how it ended. Stop after ``patience_s`` without an answer."""
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
                    yield from self._give_up(NOT_REACHED, "unreachable")
                code = "no_answer" if self._gateway is None else "gateway_error"
                raise (yield from self._unresolved(code, self._gateway))

    def _ask(self) -> Heard:
        """Ask once; ask again with Phase 2 if the server offers no status read."""
        assert self._call is not None
        if self._call.stage in ENDED and not self._is_late():  # Only its answer is missing.
            return (yield from self._replayed())
        if self._call.stage is Stage.WAITING_CONFIRM:
            if not self._is_late():
                return (yield from self._confirm_once())
            if not self._confirms:
                yield from self._give_up(NOT_REACHED, "unreachable")
        found = yield from self.read_status()
        if not isinstance(found, Reply):
            return found
        return (yield from self._confirm_once(status_was_read=True))

    def read_status(self) -> Status:
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
            self._gateway = None
            return None
        return (yield from self._after_status_read(reply))

    def _after_status_read(self, reply: Reply) -> Status:
        answer = self._parsed(reply)
        if answer is None:
            return (yield from self._not_read(reply))
        if answer.phase is Phase.FAILED:
            return (yield from self._after_failure(answer, reply))
        yield from self._told(answer, reply, "status_read")
        if answer.phase is Phase.COMMITTED:
            return self._outcome(reply, answer)
        if answer.phase in EXPIRED:
            raise self._failed("ttl_expired", Advice.CHECK, DOUBTFUL, reply)
        yield Read(reply=reply)
        return bounded(response.retry_after_s(reply.headers))

    def _not_read(self, reply: Reply) -> Status:
        """The middleware refused, a gateway could not, or a server that offers no status read answered for itself."""
        refused = response.refusal(reply.headers) is not None
        if reply.status in response.GATEWAY_ERRORS or (refused and reply.status >= SERVER_ERROR):
            yield from self._said_nothing(reply, is_gateway=not refused)
            return None
        if not refused:
            yield Read(reply=reply)
            return reply
        if reply.status == NOT_FOUND:
            raise (yield from self._not_there(reply, is_first=False))
        raise (yield from self._unresolved("status_refused", reply))

    def _after_failure(self, answer: TwoPhaseAnswer, reply: Reply) -> Heard:
        """The failure as the server states it, with any status and body.

        twophp states it inside a successful read (A-04): there Phase 2 once more brings the failure's own answer (draft
        §8.1). If that answer is gone, it is rebuilt from what was read.
        """
        failure = None
        if reply.status == OK and _is_short_json(reply):
            body: bytes | None = yield Keep(reply=reply)
            if body is None:
                return None
            failure = _failure_in(body)
        if failure is None:
            yield from self._told(answer, reply, "status_read")
            return self._outcome(reply, answer)
        status = min(failure.status, SERVER_ERROR)  # The status that Phase 2 would have.
        yield from self._told(answer, Reply(status=status, headers=reply.headers), "status_read")
        replayed = yield from self._replayed()
        if replayed is not None:
            return replayed
        kept = [pair for pair in reply.headers if not pair[0].lower().startswith(b"content-")]
        rebuilt = Reply(status=status, headers=kept, body=failure.body.encode())
        return self._outcome(rebuilt, answer)

    def _replayed(self) -> Generator[Effect, Any, Outcome | None]:
        """The stored answer of a call that has ended, by the Phase 2 that every server must answer alike."""
        call = self._call
        assert call is not None
        try:
            reply = yield from self._send_confirm()
        except (NotSent, Lost):
            return None
        answer = self._parsed(reply)
        if answer is None and call.stage is Stage.FAILED and reply.status == call.status:
            answer = _failure()
        if answer is not None and answer.phase in SETTLED:
            yield from self._told(answer, reply, "phase_2")
            return self._outcome(reply, answer)
        yield Read(reply=reply)
        return None


NOT_REACHED: Final = "the server could not be reached to confirm"


def _failure() -> TwoPhaseAnswer:
    """What a bare 500 or 4xx to a confirm says (draft §5.3.2)."""
    return TwoPhaseAnswer(
        phase=Phase.FAILED,
        server_correlation_id=None,
        ttl_ms=None,
        deadline_at=None,
        resource_id=None,
        replay_policy=None,
        message=None,
    )


class _Failure(msgspec.Struct):
    phase: Literal["FAILED"]
    status: int
    body: str


def _is_short_json(reply: Reply) -> bool:
    media_type = (response.field(reply.headers, b"content-type") or b"").partition(b";")[0].strip().lower()
    length = response.field(reply.headers, b"content-length") or b"0"
    return media_type == b"application/json" and length.isdigit() and int(length[:12]) <= MAX_STATUS_BYTES


def _failure_in(body: bytes) -> _Failure | None:
    """The stored status and body that a status read of a failure holds (A-04); None if it is another server's JSON."""
    try:
        failure = msgspec.json.decode(body, type=_Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return failure if REDIRECTED <= failure.status <= LAST_STATUS else None  # A redirect has done nothing: it failed.


def bounded(retry_after_s: float | None) -> float:
    """A server may slow polls down, but not to a standstill."""
    return FIRST_DELAY_S if retry_after_s is None else min(max(retry_after_s, FIRST_DELAY_S), LONGEST_POLL_S)
