"""What a call writes down, and what it says of itself when it ends, well or not."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, Final

from twophp.client.exchange import CallInfo, CallRequest, Effect, Outcome, Record, RecordBehind, Reply, TransportContext
from twophp.client.settings import Settings
from twophp.core.call import ASKABLE, OPEN, Call, Stage, meant_by
from twophp.core.call_commands import Command, NotThere, Opening, Release, ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.errors import OUTCOME_INDETERMINATE, Advice, PhaseError, StoreError, WireError
from twophp.core.identity import digest
from twophp.core.intent import SETTLED, Mode, Phase
from twophp.core.policy import Policy
from twophp.core.records import Instant
from twophp.wire import response
from twophp.wire.parse import TwoPhaseAnswer, parse_response

log: Final = logging.getLogger("twophp.client")

STAND_IN_TTL_MS: Final = Policy.standard().ttl_ms
"""A final answer carries no TTL, and a ledger row must have one."""

MAY_HAVE_HAPPENED: Final = "it failed, and may have had effects all the same"
REQUEST_TAG: Final = b"twophp:client-request:1"

ENDED: Final = frozenset({Stage.COMMITTED, Stage.FAILED})

# What was left open, and why: the code, what may be done, and the sentence for people.
UNRESOLVED: Final[dict[str, tuple[Advice, str]]] = {
    "answer_lost": (
        Advice.CHECK,
        "the answer to Phase 1 is missing, and it was not sent again: the endpoint is not known to recognise the id",
    ),
    "no_answer": (Advice.WAIT, "the server does not answer; the reconciler finds out how the call ended"),
    "gateway_error": (
        Advice.CHECK,
        "only a gateway answers, and its error does not say how the call ended; the reconciler asks again",
    ),
    "ttl_expired": (
        Advice.CHECK,
        "the server says that it is too late, but an earlier request, whose answer is not known, may have run it",
    ),
    "still_processing": (Advice.WAIT, "the server is still processing it; the reconciler finds out how it ends"),
    "confirm_refused": (Advice.CHECK, "the server refused a repeated confirm"),
    "status_refused": (Advice.CHECK, "the server refused the status read"),
    "forgotten": (
        Advice.CHECK,
        "the server no longer has the intent, and it is too old for that to mean anything",
    ),
    "bad_answer": (Advice.CHECK, "the answer is not one of the protocol's"),
}


class CallRecorder:
    """One call under one client correlation id: what is known of it, and how it is made durable."""

    def __init__(self, asked: CallRequest, around: TransportContext) -> None:
        settings = around.settings
        self._asked = asked
        self._settings = settings
        self._known = around.known
        self._owner = around.owner
        self._steady = settings.steady
        self._id = asked.options.client_correlation_id or _redirected_id(asked, settings) or settings.mint()
        self._target = asked.target
        self._mode = Mode.STANDARD if settings.callback is None else Mode.AUTO_CONFIRM
        self._callback = None
        if settings.callback is not None:
            self._callback = f"{settings.callback.rstrip('/')}/{around.callback_token(self._id)}"
        self._call: Call | None = None
        self._deadline: Instant | None = None  # By the steady clock.
        self._sent_at: Instant | None = None  # By the wall clock.
        self._opened: Opening | None = None
        self._fence = 0  # The one this driver holds: 0 before it has one.
        self._confirms = 0  # Phase 2s that may have reached the server.
        self._is_async = False  # The server answered 202: it processes out of band (draft §5.3.3).
        self._gateway: Reply | None = None  # What a gateway said instead of an answer to the last question.

    @property
    def id(self) -> str:
        """The client correlation id."""
        return self._id

    @property
    def call(self) -> Call | None:
        """What is recorded of it."""
        return self._call

    def _speaks(self) -> bool:
        """Whether the endpoint is known to speak 2PHP."""
        return self._settings.require_2php or self._known.has(self._asked.method, self._target)

    # Writing down.

    def _told(
        self, answer: TwoPhaseAnswer, reply: Reply, by: Any, *, first: bool = False
    ) -> Generator[Effect, Any, None]:
        """Record what the server said. Only Phase 2 must wait for it: a settled intent stays settled without a row."""
        begins = by == "phase_1"
        location = response.location(reply.headers) if answer.phase is Phase.PROCESSING else None
        is_final = answer.phase in SETTLED and not (begins and self._mode is Mode.STANDARD)
        told = ServerReply(
            phase=answer.phase,
            by=by,
            at=self._settings.clock(),
            opening=self._opening(),
            server_correlation_id=answer.server_correlation_id or "",
            ttl_ms=answer.ttl_ms or STAND_IN_TTL_MS,
            confirm_by=self._confirm_by() if begins else None,
            status=reply.status if is_final else None,
            resource_id=answer.resource_id,
            status_url=location or "",
            first=first,
            indeterminate=response.is_indeterminate(answer),
        )
        try:
            yield from self._record(told)
        except StoreError as error:
            if begins and answer.phase is Phase.WAITING_CONFIRM:
                raise
            log.warning("a call is %s, and its ledger could not record it: %s", answer.phase, error, extra=self._ids())

    def _confirm_by(self) -> Instant | None:
        """The deadline on the wall clock, for the reconciler that finds the call after a restart."""
        if self._deadline is None:
            return None
        return self._settings.clock() + self._deadline - self._steady()

    def _record(self, command: Command, *, request: bytes | None = None) -> Generator[Effect, Any, bool]:
        """Make it durable; whether it changed anything."""
        decision: CallDecision
        known = self._call
        if (
            isinstance(command, ServerReply)
            and command.phase in SETTLED
            and known is not None
            and known.stage in ASKABLE
        ):
            # If this write is lost, nothing is: the row has both ids, and the server gives the same answer.
            decision = yield RecordBehind(known=known, told=command)
        else:
            decision = yield Record(client_correlation_id=self._id, command=command, request=request)
        if decision.code is not None:
            raise self._failed(decision.code, Advice.CHECK, "the server contradicts what it said before")
        self._call = decision.call if decision.call is not None and decision.call.stage is not Stage.ABSENT else None
        if known is None and decision.changed and self._call is not None:
            self._fence = self._call.fence
        return decision.changed

    def _forget(self, *, plain: bool = False) -> Generator[Effect, Any, None]:
        """Nothing is registered: delete the note, if there is one."""
        if self._mode is Mode.AUTO_CONFIRM:
            yield from self._record(NotThere(plain=plain))

    def _unresolved(self, code: str, reply: Reply | None = None) -> Generator[Effect, Any, PhaseError]:
        """Leave the call open for the reconciler, and return the error for the caller."""
        call = self._call
        advice, text = UNRESOLVED[code]
        if call is not None and call.indeterminate:
            return self._failed(OUTCOME_INDETERMINATE, Advice.CHECK, MAY_HAVE_HAPPENED, reply)
        if call is not None and call.stage in ENDED:
            return self._failed("answer_gone", Advice.DONE, "it has ended, and its answer does not come whole", reply)
        if call is not None and call.stage in OPEN:
            try:
                yield Record(client_correlation_id=self._id, command=Release(fence=self._fence, error=code))
            except StoreError as error:  # Its lease ends by itself.
                log.warning("a call could not be released: %s", error, extra=self._ids())
        return self._failed(code, advice, text, reply)

    def _opening(self) -> Opening:
        """What the call is from the beginning: the same value, however often it is recorded."""
        if self._opened is None:
            self._opened = self._begun()
        return self._opened

    def _begun(self) -> Opening:
        service = self._settings.target_of(self._target)
        return Opening(
            client_correlation_id=self._id,
            parent_reference_id=self._asked.options.parent or self._id,  # draft §5.2.3: a root is its own parent.
            method=self._asked.method,
            url=self._target.resource,
            meant=self._meant(),
            target=service,
            service_endpoint=self._target.endpoint_of(service),
            mode=self._mode,
            sent_at=self._settings.clock() if self._sent_at is None else self._sent_at,
            owner=self._owner,
        )

    def _meant(self) -> str:
        return meant_of(self._asked)

    # Saying.

    def _parsed(self, reply: Reply) -> TwoPhaseAnswer | None:
        try:
            return parse_response(reply.headers)
        except WireError as error:
            raise self._failed(
                "bad_answer", Advice.CHECK, f"the answer cannot be read: {error.message}", reply
            ) from error

    def _outcome(self, reply: Reply, answer: TwoPhaseAnswer | None, mode: str | None = None) -> Outcome:
        call = self._call
        is_async = self._is_async or (call is not None and bool(call.status_url))
        info: CallInfo = {
            "client_correlation_id": self._id,
            "server_correlation_id": (call.server_correlation_id or None) if call else None,
            "phase": answer.phase.value if answer else (call.phase or call.stage).value if call else None,
            "mode": mode or (Mode.ASYNC if is_async else self._mode).value,
            "resource_id": answer.resource_id if answer else None,
            "indeterminate": self._is_indeterminate(answer),
        }
        return Outcome(reply=reply, info=info)

    def _is_indeterminate(self, answer: TwoPhaseAnswer | None) -> bool:
        is_noted = self._call is not None and self._call.indeterminate
        return is_noted or (answer is not None and response.is_indeterminate(answer))

    def _failed(
        self, code: str, advice: Advice, text: str, reply: Reply | None = None, *, phase: Phase | None = None
    ) -> PhaseError:
        call = self._call
        reached = phase or (call.phase if call else None)
        where = f"{self._asked.method} {self._target.resource}"
        return PhaseError(
            f"{where}: {text} ({code}; {advice}; client correlation id {self._id})",
            code=code,
            advice=advice,
            phase=reached.value if reached else None,
            client_correlation_id=self._id,
            server_correlation_id=(call.server_correlation_id or None) if call else None,
            response=reply.native if reply else None,
        )

    def _ids(self) -> dict[str, str]:
        call = self._call
        return {
            "client_correlation_id": self._id,
            "server_correlation_id": call.server_correlation_id if call else "",
        }


def _redirected_id(asked: CallRequest, settings: Settings) -> str | None:
    """The id of a call that a redirect brought here. An auto-confirmed one was noted under its first URL: it is new."""
    return asked.hop.client_correlation_id if asked.hop and settings.callback is None else None


def meant_of(asked: CallRequest) -> str:
    """The digest of what a caller asked for, wherever it was redirected to since."""
    content_type = response.field(asked.headers, b"content-type") or b""
    url = asked.hop.first_url if asked.hop else asked.target.url
    return meant_by(asked.method, url, content_type.decode("latin-1"), asked.body)


def request_of(asked: CallRequest, around: TransportContext) -> str:
    """The digest of all that makes two requests the same: what is asked for and, if it has no name, for whom."""
    what = around.ledger.encode(), meant_of(asked).encode()
    if asked.options.client_correlation_id is not None:
        return digest(REQUEST_TAG, *what)
    parent, authorization = asked.options.parent or "", response.field(asked.headers, b"authorization") or b""
    return digest(REQUEST_TAG, *what, parent.encode(), authorization)
