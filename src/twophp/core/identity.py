"""The identities of the one model, and the digests that bind them.

The registrar contract separates three identities that an idempotency key mixes up. 2PHP plays them like this (A-82):

    logical_request_key    (principal, Client-Correlation-ID)     what may happen once
    authorization_nonce    Server-Correlation-ID                  what allows it, once, until the deadline
    attempt_id             one HTTP delivery                      what is merely logged; it keys nothing
    replay_key             digest over everything requested       what tells a retry from another request

Every digest here is SHA-256 over a domain tag and length-prefixed fields. The prefix makes ``("ab", "c")`` and
``("a", "bc")`` different inputs, and the tag keeps one kind of digest from ever standing for another. Test vectors
are published in ``docs/vectors/replay_key.json``.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Protocol

from twophp.core.errors import Refused

PROTOCOL_VERSION = "2PHP/00"

REPLAY_KEY_TAG = b"twophp:replay-key:1"
PRINCIPAL_TAG = b"twophp:principal:1"
PAYLOAD_TAG = b"twophp:payload:1"
CALLBACK_TAG = b"twophp:callback:1"


def digest(tag: bytes, *fields: bytes) -> str:
    """Lower-case hex SHA-256 over the tag and the fields, each behind its length as four big-endian bytes."""
    parts = [len(tag).to_bytes(4, "big"), tag]
    for field in fields:
        parts += len(field).to_bytes(4, "big"), field
    return sha256(b"".join(parts)).hexdigest()  # In one call: most fields are short, and each ``update`` costs a call.


def replay_key(
    *,
    protocol_version: str,
    logical_request_key: str,
    canonical_operation: str,
    canonical_target: str,
    deployed_artifact_hash: str,
    owner_or_approval_binding: str,
    run_id: str,
) -> str:
    """The canonical binding digest (REG-1-14). Neither attempt nor nonce enters it (REG-1-15)."""
    fields = (
        protocol_version,
        logical_request_key,
        canonical_operation,
        canonical_target,
        deployed_artifact_hash,
        owner_or_approval_binding,
        run_id,
    )
    if not all(fields):  # a missing field must not silently widen what the digest covers.
        message = "every field of a replay key must be present and not empty"
        raise Refused(message, code="incomplete_binding")
    return digest(REPLAY_KEY_TAG, *map(str.encode, fields))


@lru_cache(maxsize=1_024)  # The same few callers come again and again.
def principal_digest(scheme: str, issuer: str, subject: str, tenant: str = "") -> str:
    """An identity, not a credential (A-60): tokens rotate, and the intent must stay its owner's."""
    return digest(PRINCIPAL_TAG, scheme.encode(), issuer.encode(), subject.encode(), tenant.encode())


# The two digests of every registration are written out: the same bytes as ``digest`` makes, in a third of the time.
_PAYLOAD_HEAD = len(PAYLOAD_TAG).to_bytes(4, "big") + PAYLOAD_TAG
_REPLAY_KEY_HEAD = b"".join(len(part).to_bytes(4, "big") + part for part in (REPLAY_KEY_TAG, PROTOCOL_VERSION.encode()))
_NO_RUN = (0).to_bytes(4, "big")
_length, _lengths = Struct(">I").pack, Struct(">5I").pack


def payload_digest(content_type: str, body: bytes) -> str:
    """The digest of the content, for the fingerprint of A-32."""
    kind = content_type.encode()
    return sha256(b"%b%b%b%b%b" % (_PAYLOAD_HEAD, _length(len(kind)), kind, _length(len(body)), body)).hexdigest()


def callback_digest(url: str) -> str:
    """The digest kept in place of a callback's URL, which may hold a token (A-66): a retry must name the same URL."""
    return digest(CALLBACK_TAG, url.encode())


def intent_replay_key(*, principal: str, client_correlation_id: str, method: str, target: str, payload: str) -> str:
    """The replay key of an HTTP intent (A-82): there is no run, so that field alone is empty."""
    logical, verb, where = f"{principal}/{client_correlation_id}".encode(), method.encode(), target.encode()
    what, who = payload.encode(), principal.encode()
    sizes = _lengths(len(logical), len(verb), len(where), len(what), len(who))  # Of all five at once: half the time.
    fields = (
        _REPLAY_KEY_HEAD,
        sizes[:4],
        logical,
        sizes[4:8],
        verb,
        sizes[8:12],
        where,
        sizes[12:16],
        what,
        sizes[16:],
        who,
        _NO_RUN,
    )
    return sha256(b"".join(fields)).hexdigest()


def seal_context(service: str, subject: str, part: str) -> bytes:
    """The context that binds sealed bytes (A-62): the service, the record's own id and the part of it."""
    return f"{len(service)}:{service}{len(subject)}:{subject}{part}".encode()


class Bound(Protocol):
    """The fields of an intent that never change after its registration."""

    @property
    def principal(self) -> str: ...  # noqa: D102
    @property
    def client_correlation_id(self) -> str: ...  # noqa: D102
    @property
    def server_correlation_id(self) -> str: ...  # noqa: D102
    @property
    def method(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102


def intent_seal_context(service: str, intent: Bound, part: str) -> bytes:
    """The context that binds the sealed parts of an intent (A-62): its principal, both ids, method and path.

    If the principal, method or path of a row was edited, its parts do not open: no payload runs for another caller or
    at another endpoint, and no stored answer is sent to another caller.
    """
    who, client_id, server_id = intent.principal, intent.client_correlation_id, intent.server_correlation_id
    method, path = intent.method, intent.path
    return (
        f"{len(service)}:{service}{len(who)}:{who}{len(client_id)}:{client_id}{len(server_id)}:{server_id}"
        f"{len(method)}:{method}{len(path)}:{path}{len(part)}:{part}"
    ).encode()
