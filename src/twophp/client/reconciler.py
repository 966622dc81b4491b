"""The reconciler: it takes every open call without a driver to its outcome, with the ids it was made under.

After a crash a call is in one of three places. Without a row, nothing was confirmed and nothing ran: its intent
expires. With a row and in time, it is confirmed as its maker was about to, or had just done; the server answers both
alike. With a row and too late, the server is asked. A call whose outcome cannot be found out is left as it is
and asked about again, less and less often. Several processes may share a ledger: a lease keeps them from each other's
live calls, and a process that takes one over does no harm (see core.call_machine).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from twophp.client.exchange import CallRequest, Effect, Outcome, Read, Record, Reply, TransportContext, Unseal
from twophp.client.flow import Conversation
from twophp.client.options import CallOptions
from twophp.client.outgoing import unsealed_request
from twophp.core.call import OPEN, UNCONFIRMED, Call, Stage
from twophp.core.call_commands import Release, Tick
from twophp.core.call_machine import CallDecision
from twophp.core.errors import OUTCOME_INDETERMINATE, Advice, PhaseError, TwoPHPError
from twophp.wire import response
from twophp.wire.targets import target_of

log: Final = logging.getLogger("twophp.client")

NOT_ASKED: Final = "not_asked"
PAGE: Final = 64
MOST: Final = 10_000

ReconciledOutcome: TypeAlias = Literal["committed", "failed", "indeterminate", "expired", "open"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many calls were looked at, and how many of them have come to their outcome."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one call.

    ``phase`` is what its row says by now, and ``outcome`` what that means. It is ``failed`` only if the server knows
    that it failed, ``expired`` if the server says that it was not confirmed in time or this run gave it up, ``open``
    while it will be asked about again. A call that has ended, and of whose effects nothing certain is known, is
    ``indeterminate``. ``code`` says why, unless it was committed or its handler refused it; ``advice`` says what may be
    done.
    """

    client_correlation_id: str
    server_correlation_id: str
    service_endpoint: str
    phase: str
    outcome: ReconciledOutcome
    advice: Advice
    code: str | None = None
    status: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it will be asked about again."""
        return self.outcome == "open"


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did: the calls that have ended, and those that will be asked about again."""

    settled: tuple[Resolved, ...] = ()
    left: tuple[Resolved, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many calls had each outcome; every outcome is there."""
        found = [call.outcome for call in (*self.settled, *self.left)]
        return {outcome: found.count(outcome) for outcome in get_args(ReconciledOutcome)}


def asking_once(around: TransportContext) -> TransportContext:
    """The same transport, asking once: the reconciler comes back anyway."""
    settings = msgspec.structs.replace(around.settings, patience_s=0.0, poll_limit_s=0.001)
    return msgspec.structs.replace(around, settings=settings)


def reconciling(client_correlation_id: str, around: TransportContext) -> Generator[Effect, Any, Resolved | None]:
    """Resolve one call; None if there is nothing to find out, as for a call that its caller has given up."""
    attend = Tick(owner=around.owner)
    decision: CallDecision = yield Record(client_correlation_id=client_correlation_id, command=attend)
    call = decision.call
    if not decision.changed or call is None or call.stage not in OPEN:
        return None
    try:
        return (yield from _finding_out(call, around))
    except Exception as error:  # noqa: BLE001 - one call that cannot be asked about must not stop the others.
        # A sealed request that does not open, a ledger that cannot be written, credentials that cannot be had.
        code = error.code if isinstance(error, TwoPHPError) else NOT_ASKED
        ids = {"client_correlation_id": client_correlation_id, "server_correlation_id": call.server_correlation_id}
        log.warning("a call could not be asked about (%s): %r", code, error, extra=ids)
        yield Record(client_correlation_id=client_correlation_id, command=Release(fence=call.fence, error=code))
        return _resolved(call, code, Advice.WAIT)


def _finding_out(call: Call, around: TransportContext) -> Generator[Effect, Any, Resolved]:
    asked = yield from _as_asked(call, around)
    conversation = Conversation(asked, around)
    try:
        outcome: Outcome = yield from conversation.after_restart(call)
    except PhaseError as error:
        return _resolved(conversation.call or call, error.code, error.advice)
    yield Read(reply=outcome.reply)
    found = conversation.call or call
    # Without a row there is only the answer: a server may send its outcome and never its id (draft §5.5.7).
    noted = (found.phase or found.stage).value
    phase = noted if conversation.call is not None else outcome.info["phase"] or noted
    return _ended(found, phase, outcome.reply)


def _as_asked(call: Call, around: TransportContext) -> Generator[Effect, Any, CallRequest]:
    """What is needed to go on: two ids and a URL, or, before the server's id was known, the whole request."""
    options = CallOptions(client_correlation_id=call.client_correlation_id, parent=call.parent_reference_id)
    bare = CallRequest(method=call.method, target=target_of(call.url), headers=[], body=b"", options=options)
    if call.stage is not Stage.SENT:
        return bare
    sealed: bytes | None = yield Unseal(call=call)
    if sealed is None:
        return bare
    return msgspec.structs.replace(unsealed_request(sealed, around.settings), options=options)


def _ended(call: Call, phase: str, reply: Reply) -> Resolved:
    """By the server's own answer."""
    if phase in OPEN:
        return _resolved(call, "bad_answer", Advice.WAIT)
    code = response.failure_code(reply.headers) if phase == Stage.FAILED else None
    is_known = code != OUTCOME_INDETERMINATE
    ended: ReconciledOutcome = "committed" if phase == Stage.COMMITTED else "failed" if is_known else "indeterminate"
    advice = Advice.DONE if is_known else Advice.CHECK
    return _told(call, phase=phase, outcome=ended, advice=advice, code=code, status=reply.status)


def _resolved(call: Call, code: str, advice: Advice) -> Resolved:
    """Without an answer, by what is recorded; an end that the server contradicts is not certain."""
    outcome: ReconciledOutcome = "indeterminate"
    if call.stage in OPEN:
        outcome = "open"
    elif call.stage in UNCONFIRMED:
        outcome = "expired"
    elif advice is Advice.DONE:
        outcome = "committed" if call.stage is Stage.COMMITTED else "failed"
    return _told(call, phase=(call.phase or call.stage).value, outcome=outcome, advice=advice, code=code)


def _told(call: Call, **found: Any) -> Resolved:
    return Resolved(
        client_correlation_id=call.client_correlation_id,
        server_correlation_id=call.server_correlation_id,
        service_endpoint=call.service_endpoint,
        **found,
    )


class Tally:
    """The run as it goes."""

    def __init__(self, progress: Progress | None, limit: int) -> None:
        self._progress = progress
        self._limit = min(limit, MOST)
        self._seen: set[str] = set()
        self._settled: list[Resolved] = []
        self._left: list[Resolved] = []

    def fresh(self, ids: list[str]) -> list[str]:
        """Those of a page that this run has not met, up to its limit."""
        new = [id_ for id_ in ids if id_ not in self._seen][: self._limit - len(self._seen)]
        self._seen.update(new)
        return new

    def add(self, found: Resolved | None) -> None:
        """One more was looked at."""
        if found is not None:
            (self._left if found.is_open else self._settled).append(found)
        if self._progress is not None:
            self._progress(len(self._seen), len(self._settled))

    def result(self) -> Reconciliation:
        """What was done."""
        return Reconciliation(settled=tuple(self._settled), left=tuple(self._left))
