"""From decisions to responses: tables T1 and T2 as a client sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from twophp.asgi.messages import PATH_SAFE, Answer, Scope
from twophp.core.errors import StoreError, StoreUnavailable, TwoPHPError, Unauthenticated, WireError
from twophp.core.intent import SETTLED, Intent, Mode, Phase
from twophp.core.outcome import has_succeeded
from twophp.core.policy import ReplayPolicy
from twophp.core.records import Instant
from twophp.engine.exchange import OF_THE_MOMENT, RawHeaders, StoredResponse, lowered
from twophp.engine.running import NameResource, Settled, Work
from twophp.observability.conditions import ids_of, named
from twophp.wire import emit, fields, grammar, idempotency
from twophp.wire.problem import PROBLEMS, Problem, problem

log: Final = logging.getLogger("twophp.server")

OK: Final = 200
ACCEPTED: Final = 202
INTERNAL_ERROR: Final = 500
RETRY_AFTER_S: Final = 1
_RESOURCE_ID: Final = fields.RESOURCE_ID.key
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_WAITING, _AUTO_CONFIRM, _TRANSPARENT = Phase.WAITING_CONFIRM, Mode.AUTO_CONFIRM, Mode.TRANSPARENT
STATUS_PATH: Final = "/_2php/intents/"
_CACHING: Final = frozenset({b"cache-control", b"expires", b"pragma", b"age"})
_LOOKED_AT: Final = OF_THE_MOMENT | _CACHING | fields.BY_KEY.keys()  # Any other field is passed on as it is.
_NAMING: Final = frozenset({b"location", _RESOURCE_ID})
_MESSAGES: Final = frozenset((fields.MESSAGE.key, kind.title.encode()) for kind in PROBLEMS.values())

ResourceId: TypeAlias = Callable[[StoredResponse], str | None]
"""Finds the resource's id in an answer: its ``status``, ``headers`` and ``body``."""


def of_problem(found: Problem) -> Answer:
    """A refusal."""
    return Answer(found.status, found.headers, found.body)


def of_error(error: TwoPHPError) -> Answer:
    """The answer to a request that could not be served. It says when to try again, if the client may."""
    code = error.code
    if isinstance(error, StoreUnavailable) and code not in PROBLEMS:
        code = StoreUnavailable.default_code  # The log has the reason; the client need not know it.
    field = error.field if isinstance(error, WireError) else None
    status = error.status if isinstance(error, WireError) else None
    retry_after_s = 1 if isinstance(error, StoreError) else None
    answer = of_problem(problem(code, field=field, retry_after_s=retry_after_s, status=status))
    if isinstance(error, Unauthenticated) and error.challenge:
        challenge = (b"www-authenticate", error.challenge.encode())
        return Answer(answer.status, (*answer.headers, challenge), answer.body)
    return answer


def closing(answer: Answer, scope: Scope) -> Answer:
    """The same answer, and the connection closes: the server does not wait for the rest. HTTP/2 has no such field."""
    if not scope.get("http_version", "1.1").startswith("1"):
        return answer
    return Answer(answer.status, (*answer.headers, (b"connection", b"close")), answer.body)


def refused(code: str, *, retry_after_s: int | None = None) -> Answer:
    """A refusal by its code; every late confirm gets the very same bytes (A-21)."""
    return of_problem(problem(code, retry_after_s=retry_after_s))


_OF_KEYS: Final = {
    "fingerprint_mismatch": "idempotency_key_reused",
    "mode_mismatch": "idempotency_key_reused",  # Used as the client id of a handshake.
    "still_processing": "idempotency_key_in_use",
}


def refused_to_key(code: str, *, retry_after_s: int | None = None) -> Answer:
    """A refusal to a client that has sent an Idempotency-Key, in the words of its draft."""
    return refused(_OF_KEYS.get(code, code), retry_after_s=retry_after_s)


def repeated_to_key(answer: Answer) -> Answer:
    """The stored answer to a repeated Idempotency-Key."""
    return Answer(answer.status, (*answer.headers, idempotency.REPLAYED), answer.body, answer.framed)


def registered(
    intent: Intent, ttl_ms: int, deadline_at: Instant, *, expose_policy: ReplayPolicy | None = None
) -> Answer:
    """Phase 1 (draft §5.2.2). A repeat gets what is left of the time, and how far the intent has come (T2).

    ``deadline_at`` is by the machine's clock: a client compares it with the answer's Date (A-25).
    """
    waiting = intent.phase is _WAITING
    if waiting and expose_policy is None:
        return Answer(OK, emit.waiting_answer(intent.server_correlation_id, ttl_ms, deadline_at), framed=True)
    headers = emit.phase_one_answer(
        server_correlation_id=intent.server_correlation_id,
        ttl_ms=ttl_ms if waiting else None,
        deadline_at=deadline_at if waiting else None,
        phase=intent.phase,
        replay_policy=expose_policy,
    )
    return Answer(OK, headers)


def final(settled: Settled, *, passthrough: bool) -> Answer:
    """The end of the call (draft §5.3.2): 200 or the application's 4xx, or 500, with the stored body (A-08)."""
    intent, response = settled.intent, settled.response
    if intent.mode is _TRANSPARENT:
        return as_it_is(response)
    status = response.status
    if intent.mode is _AUTO_CONFIRM:  # It looks like plain HTTP, so what the application says of caching holds.
        return _settled(settled, status, server_correlation_id=intent.server_correlation_id, keeps_caching=True)
    if status != OK:
        status = wire_status(status, passthrough=passthrough)
    return _settled(settled, status)


def as_it_is(response: StoredResponse, *, server_correlation_id: str | None = None) -> Answer:
    """The application's answer and nothing else (draft §5.5.6), but for the id that a service may choose to show."""
    own = emit.transparent_answer(server_correlation_id=server_correlation_id)
    return Answer(response.status, (*response.headers, *own), response.body, framed=True)


def _settled(
    settled: Settled, status: int, *, server_correlation_id: str | None = None, keeps_caching: bool = False
) -> Answer:
    """The application's own fields, then ours: those are written by us alone, and so is the message of a failure."""
    intent, response = settled.intent, settled.response
    headers, names, caches = response.headers, lowered(response.headers), False
    if not _LOOKED_AT.isdisjoint(names):
        headers, caches = _sifted(headers, keeps_caching=keeps_caching)
    own = emit.final_answer(
        phase=intent.phase,
        resource_id=intent.resource_id,
        server_correlation_id=server_correlation_id,
        app_sets_caching=caches,
    )
    framed = b"content-length" in names
    return Answer(status, (*headers, *own), response.body, framed)  # No list: it is kept for every replay.


def _sifted(headers: RawHeaders, *, keeps_caching: bool) -> tuple[RawHeaders, bool]:
    """The fields that only the application sets, and whether it says how its answer may be cached."""
    left, caches = [], False
    for pair in headers:
        key = pair[0].lower()
        if key in OF_THE_MOMENT or (key in fields.BY_KEY and pair not in _MESSAGES):  # the message was stored.
            continue
        if key in _CACHING:
            if not keeps_caching:
                continue
            caches = caches or key == b"cache-control"
        left.append(pair)
    return tuple(left), caches


def wire_status(status: int, *, passthrough: bool = False) -> int:
    """A-08: success is 200 unless the service prefers its own; a 3xx or 4xx stays, and any other failure is 500."""
    if has_succeeded(status):
        return status if passthrough else OK
    return min(INTERNAL_ERROR, status)


def accepted(intent: Intent, root_path: str) -> Answer:
    """Still running (draft §5.3.3): a provisional id, which is the server's own (A-05), and where to look (A-04)."""
    location = f"{quote(root_path, safe=PATH_SAFE)}{STATUS_PATH}{quote(intent.server_correlation_id, safe='')}"
    headers = emit.accepted_answer(
        resource_id=intent.server_correlation_id, location=location, retry_after_s=RETRY_AFTER_S
    )
    return Answer(ACCEPTED, headers)


class _Failure(msgspec.Struct, frozen=True):
    phase: str
    status: int
    body: str


def status_read(intent: Intent, settled: Settled | None, root_path: str, now: Instant) -> Answer:
    """The answer to a poll (A-04). A poll reads Phase-State alone, so a failure is a successful read of a failure."""
    if intent.phase is Phase.PROCESSING:
        return accepted(intent, root_path)
    if settled is None:  # expired from the deadline on, whether or not the sweeper has been here.
        overdue = intent.phase is _WAITING and now >= intent.deadline_at
        return Answer(OK, (emit.state(Phase.TTL_EXPIRED if overdue else intent.phase), emit.NO_STORE))
    if intent.phase is Phase.COMMITTED:
        return _settled(settled, OK)
    text = settled.response.body.decode("utf-8", "replace")
    body = msgspec.json.encode(_Failure(intent.phase, settled.response.status, text))
    message = (pair for pair in settled.response.headers if pair in _MESSAGES)  # Indeterminate, or simply failed.
    return Answer(OK, (emit.state(intent.phase), emit.NO_STORE, (b"content-type", b"application/json"), *message), body)


def is_about(intent: Intent, path: str) -> bool:
    """Whether a status read at ``path`` asks for this intent: our own address names it, the application's does not."""
    prefix, found, named = path.partition(STATUS_PATH)
    return bool(prefix) or not found or compare_digest(unquote(named).encode(), intent.server_correlation_id.encode())


def has_outcome(intent: Intent) -> bool:
    """Whether there is a stored answer to give."""
    return intent.phase in SETTLED


def naming(extract: ResourceId | None) -> NameResource:
    """How resources get their ids. ``extract`` looks at an answer in place of its JSON ``id`` (A-05)."""
    return partial(name_resource, extract or _json_id)


def name_resource(extract: ResourceId, work: Work, response: StoredResponse) -> str:
    """The resource's id (A-05): the first of several places that has one the wire can carry.

    What the handler named, the answer's own Resource-ID, its Location, what ``extract`` finds, and the path.
    """
    named = location = None
    if not _NAMING.isdisjoint(lowered(response.headers)):
        named, location = _named_by(response)
    said = work.running.resource_id
    if said is not None and (found := _fitting(said)):
        return found
    if named is not None and (found := _fitting(named)):
        return found
    if location is not None and (found := _fitting(_last_segment(location))):
        return found
    if found := _fitting(_extracted(extract, work, response)):
        return found
    if work.request.method != "POST" and (found := _fitting(_last_segment(work.request.raw_path.decode("latin-1")))):
        return found
    return work.intent.server_correlation_id


def _named_by(response: StoredResponse) -> tuple[str | None, str | None]:
    """The Resource-ID of an answer and its Location, the first of each that says something."""
    named = location = None
    for name, value in response.headers:
        key = name.lower()
        if key == b"location":
            location = location or value.decode("latin-1").strip()
        elif key == _RESOURCE_ID:
            named = named or value.decode("latin-1").strip()
    return named, location


def _fitting(found: object) -> str | None:
    """A name, if the wire can carry it. Handlers and extractors are the service's own, so it may be anything."""
    name = str(found) if isinstance(found, int) else found
    if isinstance(name, str) and name and grammar.matches_resource_id(name.encode("utf-8", "replace")):
        return name
    return None


def _extracted(extract: ResourceId, work: Work, response: StoredResponse) -> object:
    """An extractor that fails finds nothing: what the handler did is done, and the id comes from elsewhere (A-05)."""
    try:
        return extract(response)
    except (Exception, SystemExit):
        log.exception("resource_id failed (%s)", named(work.intent), extra=ids_of(work.intent))
        return None


def _last_segment(path: str) -> str | None:
    return path.partition("?")[0].rstrip("/").rpartition("/")[2] or None


class _WithId(msgspec.Struct):
    id: str | int | None = None


_decode_id: Final = msgspec.json.Decoder(_WithId).decode


def _json_id(response: StoredResponse) -> str | None:
    if not response.body.lstrip().startswith(b"{"):
        return None
    try:
        found = _decode_id(response.body).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if found is None else str(found)
