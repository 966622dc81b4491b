"""From header fields to values: what a request asks for, and what an answer says.

``parse`` stands in front of every request of a service, so a request that does not opt in costs one scan. The rest is
decided in this order; the first match answers:

    no ``true`` opt-in                                     Plain       draft §5.1, A-11; every other field is ignored
    GET or HEAD with both ids                              StatusRead  A-04
    GET, HEAD, OPTIONS, a method outside the set           Plain       A-15
    a field has differing values                           refused     A-12
    server id with auto-confirm                            refused     A-36
    server id on POST to a confirm path                    PhaseTwo    A-02
    server id anywhere else                                refused     A-02
    otherwise                                              PhaseOne    draft §5.2.1; standard, callback or transparent

Repeats are judged the way intermediaries treat them: a field sent twice and the same two values joined by a comma are
one and the same thing (RFC 9110 §5.3). No value of a request field needs a comma; inside a callback URL it has to be
written %2C. Only the two ids are opaque and may hold one (A-13). An id never holds white space, so a comma beside white
space separates values. A comma without it belongs to the id, unless all parts are the same: that is a repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn, TypeAlias

import msgspec

from twophp.core.errors import WireError
from twophp.core.intent import Mode, Phase
from twophp.core.policy import ReplayPolicy
from twophp.core.records import Instant
from twophp.wire import fields, grammar
from twophp.wire.fields import Field
from twophp.wire.grammar import OWS
from twophp.wire.instant import parse_instant
from twophp.wire.paths import CONFIRM_SUFFIX, bound_path, confirmed_path

RawHeaders: TypeAlias = Iterable[tuple[bytes, bytes]]

MUTATIONS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The methods that can be registered; a service may name others (A-15)."""


class Plain(msgspec.Struct, frozen=True):
    """Not for us: the request goes to the application untouched (draft §5.1)."""


class PhaseOne(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An intent to register. ``path`` is bound: see ``wire.paths``."""

    path: str
    mode: Mode  # STANDARD, AUTO_CONFIRM (always with a callback) or TRANSPARENT. ASYNC is the endpoint's choice.
    client_correlation_id: str | None  # None in TRANSPARENT only: the server makes one up.
    callback: str | None
    requested_ttl_ms: int | None


class PhaseTwo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The go-ahead. ``path`` is what the intent must be bound to, else there is no such intent (A-01, A-67)."""

    path: str
    client_correlation_id: str
    server_correlation_id: str


class StatusRead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A poll for the outcome (A-04). Any path will do: the two ids name the intent."""

    client_correlation_id: str
    server_correlation_id: str


Request: TypeAlias = Plain | PhaseOne | PhaseTwo | StatusRead


class TwoPhaseAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a server's answer says about an intent."""

    phase: Phase
    server_correlation_id: str | None
    ttl_ms: int | None
    deadline_at: Instant | None
    resource_id: str | None
    replay_policy: ReplayPolicy | None
    message: str | None

    @property
    def awaits_confirm(self) -> bool:
        """Only this may be answered with a Phase 2; any other answer is final, or not the server's (A-06)."""
        return self.phase is Phase.WAITING_CONFIRM and self.server_correlation_id is not None


PLAIN: Final = Plain()

# Names bound to this module: the scan below runs for every request.
_COMMA: Final = ord(",")  # Looking for a byte is ten times as quick as looking for bytes.
_ENABLED: Final = fields.ENABLED.key
_ENABLED_LENGTH: Final = len(_ENABLED)
_CLIENT_ID: Final = fields.CLIENT_CORRELATION_ID.key
_SERVER_ID: Final = fields.SERVER_CORRELATION_ID.key
_AUTO_CONFIRM: Final = fields.AUTO_CONFIRM.key
_REQUESTED_TTL: Final = fields.REQUESTED_TTL.key
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_STANDARD, _TRANSPARENT = Mode.STANDARD, Mode.TRANSPARENT
_READS: Final = frozenset({"GET", "HEAD"})
_NAMES: Final = frozenset(fields.BY_KEY)
# for a flag ``TRUE`` and ``true`` are the same value, so sending both is no contradiction.
_FLAGS: Final = frozenset({_ENABLED, _AUTO_CONFIRM})
_IDS: Final = frozenset({_CLIENT_ID, _SERVER_ID})
# Free text, sent by servers only: its commas are its own.
_TEXTS: Final = frozenset({fields.RESOURCE_ID.key, fields.MESSAGE.key})


def opted_in(headers: RawHeaders) -> bool:
    """Whether anything says ``true`` (draft §5.1).

    A request that says ``true`` and ``false`` counts as opted in, and ``parse`` then refuses it: A-11 lets *doubtful
    values* fall back to plain HTTP, but here one sender, or one hop on the way, did ask for a registration. Running
    the mutation unregistered would break that promise, and A-12 wants mixed values to fail closed.
    """
    for name, value in headers:
        # Length first: nine of ten names are ruled out without a copy.
        if len(name) == _ENABLED_LENGTH and name.lower() == _ENABLED and (value == grammar.TRUE or _says_true(value)):
            return True
    return False


def asks_for_status(headers: RawHeaders) -> bool:
    """Whether a GET or HEAD that opted in names both ids (A-04). They are parsed after the client is identified."""
    names = {name.lower() for name, _value in headers}
    return _SERVER_ID in names and _CLIENT_ID in names


def _says_true(value: bytes) -> bool:
    if _COMMA not in value:
        return grammar.is_true(value.strip(OWS))
    return any(grammar.is_true(part.strip(OWS)) for part in value.split(b","))


def parse(
    method: str,
    path: str,
    headers: RawHeaders,
    *,
    suffix: str = CONFIRM_SUFFIX,
    methods: frozenset[str] = MUTATIONS,
    strict_uuid: bool = False,
) -> Request:
    """What this request asks for; raises WireError (always a 400) when it opted in and breaks the contract.

    ``path`` is the raw path without the query. ``strict_uuid`` refuses client ids that are no UUID (A-13); server
    ids are ours, so the store knows them or does not.
    """
    if type(headers) is not list:
        headers = list(headers)  # ASGI promises an iterable only, and we may look twice.
    values, conflicts = _collect(headers)
    if values.get(_ENABLED) != grammar.TRUE and not (conflicts and opted_in(headers)):
        return PLAIN
    if method in _READS:
        return _status_read(values, conflicts, strict_uuid=strict_uuid)
    if method == "OPTIONS" or not (method in methods or method == "POST"):
        return PLAIN  # the header is defined for mutations only. POST stays: it may confirm any method.
    confirms = _SERVER_ID in values
    if not confirms and method not in methods:
        return PLAIN
    if conflicts:
        _refuse_conflict(conflicts[0])
    if confirms:
        return _phase_two(method, path, values, suffix=suffix, strict_uuid=strict_uuid)
    return _phase_one(path, values, strict_uuid=strict_uuid)


def parse_ordinary(
    method: str,
    path: str,
    client_id: bytes,
    server_id: bytes | None,
    *,
    suffix: str,
    methods: frozenset[str],
    strict_uuid: bool,
) -> PhaseOne | PhaseTwo | None:
    """What ``parse`` says of a request that opted in and has the ids and no other field of ours, each once.

    None where it is not plainly valid: whether that is refused, and how, ``parse`` says alone.
    """
    if not (grammar.matches_uuid(client_id) if strict_uuid else grammar.matches_plain_id(client_id)):
        return None
    if server_id is None:
        if method not in methods:
            return None
        return PhaseOne(
            path=path.removesuffix("/"),  # ``bound_path``, without its call.
            mode=_STANDARD,
            client_correlation_id=client_id.decode("ascii"),
            callback=None,
            requested_ttl_ms=None,
        )
    if method != "POST" or not path.endswith(suffix) or not grammar.matches_plain_id(server_id):
        return None
    return PhaseTwo(
        path=path.removesuffix(suffix),
        client_correlation_id=client_id.decode("ascii"),
        server_correlation_id=server_id.decode("ascii"),
    )


def _status_read(values: dict[bytes, bytes], conflicts: list[bytes], *, strict_uuid: bool) -> StatusRead | Plain:
    if _SERVER_ID not in values or _CLIENT_ID not in values:
        return PLAIN  # a GET without both ids reaches the application untouched.
    if conflicts:
        _refuse_conflict(conflicts[0])
    _refuse_auto_confirm(values)
    return StatusRead(
        client_correlation_id=_client_id(values, strict_uuid=strict_uuid),
        server_correlation_id=_server_id(values),
    )


def _phase_two(method: str, path: str, values: dict[bytes, bytes], *, suffix: str, strict_uuid: bool) -> PhaseTwo:
    _refuse_auto_confirm(values)
    target = confirmed_path(path, suffix)
    if method != "POST" or target is None:
        # the server id is the one thing a Phase 1 can never carry, so this is a confirm gone astray.
        _refuse("wrong_place", fields.SERVER_CORRELATION_ID, "Only a POST to the confirm path carries a server id.")
    return PhaseTwo(
        path=target,
        client_correlation_id=_client_id(values, strict_uuid=strict_uuid),
        server_correlation_id=_server_id(values),
    )


def _phase_one(path: str, values: dict[bytes, bytes], *, strict_uuid: bool) -> PhaseOne:
    mode, callback = _STANDARD, None  # a callback alone is ignored, the standard mode has none.
    if values.get(_AUTO_CONFIRM) == grammar.TRUE:
        mode, callback = _confirmed_by_server(values)
    client_id: str | None = None
    if mode is not _TRANSPARENT or _CLIENT_ID in values:
        client_id = _client_id(values, strict_uuid=strict_uuid)  # A-14; sent in transparent mode it is used.
    requested = values.get(_REQUESTED_TTL)
    return PhaseOne(
        path=bound_path(path),
        mode=mode,
        client_correlation_id=client_id,
        callback=callback,
        # the wish is advisory, so a malformed one is no reason to fail a mutation.
        requested_ttl_ms=grammar.read_milliseconds(requested) if requested is not None else None,
    )


def _confirmed_by_server(values: dict[bytes, bytes]) -> tuple[Mode, str | None]:
    """Which column of the mode table (draft §5.5.8), and the callback if that column has one."""
    raw = values.get(fields.CALLBACK.key)
    if raw is None:
        return _TRANSPARENT, None  # draft §5.5.2: "If omitted, the server proceeds in Transparent Mode".
    callback = grammar.read_callback(raw)
    if callback is None:  # no silent fall-back to transparent.
        _refuse("bad_callback", fields.CALLBACK, "The callback is not an https URL without userinfo and fragment.")
    return Mode.AUTO_CONFIRM, callback


def _client_id(values: dict[bytes, bytes], *, strict_uuid: bool) -> str:
    raw = values.get(_CLIENT_ID)
    if raw is None:  # draft §5.2.1: "The client MUST include"; A-14.
        _refuse("missing_field", fields.CLIENT_CORRELATION_ID, "The client correlation id is missing.")
    client_id = grammar.read_id(raw)
    if client_id is None or (strict_uuid and not grammar.is_uuid(raw)):
        _refuse("bad_field", fields.CLIENT_CORRELATION_ID, "The client correlation id is malformed.")
    return client_id


def _server_id(values: dict[bytes, bytes]) -> str:
    server_id = grammar.read_id(values[_SERVER_ID])
    if server_id is None:
        _refuse("bad_field", fields.SERVER_CORRELATION_ID, "The server correlation id is malformed.")
    return server_id


def _refuse_auto_confirm(values: dict[bytes, bytes]) -> None:
    if values.get(_AUTO_CONFIRM) == grammar.TRUE:  # there is nothing left to confirm or to poll for.
        _refuse("wrong_place", fields.AUTO_CONFIRM, "Auto-confirm and a server correlation id exclude each other.")


def _refuse_conflict(name: bytes) -> NoReturn:
    # all twelve are singletons.
    _refuse("duplicate_field", fields.BY_KEY[name], "The field has more than one value.")


def _refuse(code: str, field: Field, message: str) -> NoReturn:
    """Never with anything of the input in the message: it may end up in a log or on a page (A-69)."""
    raise WireError(message, code=code, field=field.name)


def _collect(headers: RawHeaders) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Gather the twelve, stripped of SP and HTAB: one value each, and the names that had several (A-12)."""
    values: dict[bytes, bytes] = {}
    conflicts: list[bytes] = []
    names = _NAMES
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name not in names:
            continue
        value = raw_value.strip(OWS)
        if name in _FLAGS:
            value = value.lower()  # A reader of a flag compares it with ``TRUE``.
        if _COMMA in value and name not in _TEXTS:
            first, *others = [part.strip(OWS) for part in value.split(b",")]
            if others.count(first) == len(others):
                value = first
            elif name not in _IDS or _separates(value):
                conflicts.append(name)
                value = first
        if values.setdefault(name, value) != value:
            conflicts.append(name)
    return values, conflicts


def _separates(value: bytes) -> bool:
    """Whether one of its commas stands beside white space."""
    return b", " in value or b",\t" in value or b" ," in value or b"\t," in value


def parse_response(headers: RawHeaders) -> TwoPhaseAnswer | None:
    """What an answer says, None if it is a plain one: the server does not speak 2PHP and has just executed (A-06).

    Without a Phase-State there is no two-phase answer. A Phase-State or server id that is *there* and cannot be read
    raises WireError, and so does a TTL or a deadline without a Phase-State, which only a registration has: calling it
    plain would report a mutation as done that may only be registered. Fields that only advise (TTL, deadline, resource
    id, replay policy, message) are dropped when they are unreadable or contradict themselves; no answer is lost for
    their sake.
    """
    values, conflicts = _collect(headers)
    raw_phase = values.get(fields.PHASE_STATE.key)
    if raw_phase is None:
        for field in (fields.TTL, fields.PONR_DEADLINE):
            if field.key in values:
                _refuse("missing_field", fields.PHASE_STATE, "The answer tells a time to confirm and no phase.")
        return None
    for field in (fields.PHASE_STATE, fields.SERVER_CORRELATION_ID):
        if field.key in conflicts:
            _refuse("duplicate_field", field, "The answer contradicts itself.")
    for name in conflicts:
        values.pop(name, None)
    phase = grammar.read_phase(raw_phase)
    if phase is None:  # draft §7 has six names.
        _refuse("bad_field", fields.PHASE_STATE, "The answer names an unknown phase.")
    return _answer(phase, values)


def _answer(phase: Phase, values: dict[bytes, bytes]) -> TwoPhaseAnswer:
    return TwoPhaseAnswer(
        phase=phase,
        server_correlation_id=_server_id(values) if _SERVER_ID in values else None,
        # An absent field reads like an empty one, and no grammar admits the empty value.
        ttl_ms=grammar.read_milliseconds(values.get(fields.TTL.key, b"")),
        deadline_at=parse_instant(values.get(fields.PONR_DEADLINE.key, b"")),
        resource_id=grammar.read_resource_id(values.get(fields.RESOURCE_ID.key, b"")),
        replay_policy=grammar.read_replay_policy(values.get(fields.REPLAY_POLICY.key, b"")),
        message=grammar.read_message(values.get(fields.MESSAGE.key, b"")),
    )
