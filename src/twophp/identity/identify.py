"""From a request's head to the identity of its client, which an intent is bound to (draft §13.2, A-60, A-61).

A service says how its clients are identified with one callable, ``identify``. It takes the ``Head`` and returns the
identity, or raises; it may be a coroutine function. There is no default: a service without authentication must say
``anonymous``.

An identity is not a credential. What is bound is (scheme, issuer, subject, tenant), so a token that was refreshed
between the phases still owns its intent, and a revoked one fails like anywhere else. Phase 2 runs ``identify`` again:
"authenticated by the same mechanism as Phase 1" holds by construction.

No message here holds a part of a credential, and the cause of a refusal is cut off where a library might have quoted
one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec
from cryptography import x509

from twophp.core.errors import ConfigError, TwoPHPError, Unauthenticated
from twophp.core.identity import principal_digest
from twophp.core.networks import Networks
from twophp.core.settings import knows_its_settings
from twophp.identity.head import Head, Tls, proxies

if TYPE_CHECKING:
    from twophp.identity.bearer import BearerJwt


log: Final = logging.getLogger("twophp.identify")


class Principal(msgspec.Struct, frozen=True):
    """An identity, as A-60 has it. It cannot be made without a scheme and a subject."""

    scheme: str
    issuer: str
    subject: str
    tenant: str = ""

    def __post_init__(self) -> None:
        if not self.scheme or not self.subject:
            raise Unauthenticated("an identity needs a scheme and a subject")


Who: TypeAlias = Principal | str
Identify: TypeAlias = Callable[[Head], Who | Awaitable[Who]]

OWN_SCHEME: Final = "identify"
"""The scheme of a principal that a service's own callable names by a plain string."""


def authenticate(identify: Identify, head: Head) -> str | Awaitable[str]:
    """The digest of the client's identity, to be awaited where ``identify`` is; raises Unauthenticated without one.

    Any error of ``identify`` means no (DESIGN: "returns a principal string or raises"), and is the cause of the
    refusal. Only errors of our own tree stay what they are: a store that is away is no reason to doubt a client.
    """
    try:
        who = identify(head)
    except TwoPHPError:
        raise
    except Exception as error:
        raise _not_told(error) from error
    if type(who) is not Principal and inspect.isawaitable(who):
        return _awaited(who)
    return principal_of(who)


async def _awaited(who: Awaitable[Who]) -> str:
    try:
        found = await who
    except TwoPHPError:
        raise
    except Exception as error:
        raise _not_told(error) from error
    return principal_of(found)


def _not_told(error: Exception) -> Unauthenticated:
    """Log the error's type and place for the author of ``identify``: to a client a bug looks like a refusal.

    The error's own words are left out: they may quote a credential.
    """
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = ("?", 0) if where is None else (where.tb_frame.f_code.co_filename, where.tb_lineno)
    log.warning("identify raised %s in %s, line %d", type(error).__name__, *place)
    return Unauthenticated("identify raised")


def principal_of(who: object) -> str:
    """The digest that an intent keeps of an identity; anything that is not one is refused."""
    if isinstance(who, str):
        who = Principal(OWN_SCHEME, "", who)
    elif not isinstance(who, Principal):
        log.warning("identify returned neither a string nor a Principal: %s", type(who).__name__)
        raise Unauthenticated("identify returned neither a string nor a Principal")
    try:
        return principal_digest(who.scheme, who.issuer, who.subject, who.tenant)
    except UnicodeEncodeError:  # JSON can spell half a character; no identity has one.
        raise Unauthenticated("the identity is not text") from None


# Nobody in particular.

ANONYMOUS: Final = Principal("anonymous", "", "anonymous")


def anonymous(head: Head) -> Principal:  # noqa: ARG001 - The one helper that does not look.
    """Every client has the same identity: the two ids are the only secret (A-61). To be chosen, never a default."""
    return ANONYMOUS


# A user that an authentication middleware in front of us has found.

_USER_ATTRIBUTES: Final = ("identity", "pk", "id", "username")


@knows_its_settings()
def scope_user(*, key: str = "user", attributes: Iterable[str] = _USER_ATTRIBUTES) -> Callable[[Head], Principal]:
    """The user in the scope, as Starlette's and Django Channels' authentication middleware leave it there.

    That middleware has to stand outside of ours. The user must say ``is_authenticated``; it is known by the first of
    ``attributes`` that it has. A display name is none of them: two users may share one.
    """
    names = tuple(attributes)

    def identify(head: Head) -> Principal:
        user = head.scope.get(key)
        # ``is True``: a method by that name that was not called is truthy as well.
        if getattr(user, "is_authenticated", False) is not True:
            raise Unauthenticated("no authenticated user in the scope")
        for name in names:
            if subject := _user_attribute(user, name):
                return Principal("user", name, subject)
        raise Unauthenticated("the user in the scope has no identity")

    return identify


def _user_attribute(user: object, name: str) -> str:
    try:
        value = getattr(user, name, None)
    except NotImplementedError:  # Starlette's BaseUser promises an identity, and its SimpleUser has none.
        return ""
    # Anything else is not taken: the text of some object may hold its address, and would change with each request.
    return str(value) if isinstance(value, str | int | UUID) and not isinstance(value, bool) else ""


# A client certificate.

CertificateName: TypeAlias = Literal["subject", "uri", "dns", "email"]

_SAN_TYPES: Final[dict[str, Any]] = {
    "uri": x509.UniformResourceIdentifier,
    "dns": x509.DNSName,
    "email": x509.RFC822Name,
}


@knows_its_settings()
def mutual_tls(
    *,
    name: CertificateName = "subject",
    bind_issuer: bool = True,
    trusted_proxies: Networks = (),
    subject_header: str = "X-Client-Cert-Subject",
    verify_header: str | None = None,
) -> Callable[[Head], Principal]:
    """The client certificate: its subject's distinguished name, or the one ``uri``, ``dns`` or ``email`` it is for.

    The peer decides where we look. For a trusted proxy, ``subject_header`` is read, which the proxy must always set or
    remove. Where ``verify_header`` is named, that must say ``SUCCESS``, nginx's word. The certificate of the connection
    would be the proxy's own. Any other peer is identified by the certificate of the connection, and its headers are not
    read.

    ``bind_issuer`` keeps equal names from two authorities apart. Turn it off where the authority's own name changes
    more often than intents live, and only one authority is trusted.
    """
    if name not in ("subject", *_SAN_TYPES):
        raise ConfigError(f"a certificate has no {name!r} name", code="bad_identify")
    trusted = proxies(trusted_proxies)

    def identify(head: Head) -> Principal:
        if trusted.trust(head.client):
            return Principal("mtls", "proxy", _told_by_proxy(head, subject_header, verify_header))
        subject, issuer = _certified(head.tls, name)
        return Principal("mtls", issuer if bind_issuer else "", subject)

    return identify


def _told_by_proxy(head: Head, subject_header: str, verify_header: str | None) -> str:
    if verify_header is not None and head.headers.getall(verify_header) != ["SUCCESS"]:
        raise Unauthenticated("the proxy did not verify a client certificate")
    lines = head.headers.getall(subject_header)
    if len(lines) != 1:  # Two lines: the proxy added its own to the client's, and which is which is unknown.
        raise Unauthenticated("the proxy did not name one client certificate")
    return lines[0]


def _certified(tls: Tls | None, name: CertificateName) -> tuple[str, str]:
    """The subject and the issuer, the latter empty where the server passes on the name alone."""
    if tls is None or tls.error:
        raise Unauthenticated("no valid client certificate")
    if not tls.chain and name == "subject":
        return tls.subject, ""
    try:
        certificate = x509.load_pem_x509_certificate(tls.chain[0].encode())
        subject = _name_in(certificate, name)
        return subject, certificate.issuer.rfc4514_string()
    except (IndexError, ValueError, x509.ExtensionNotFound):
        raise Unauthenticated("the client certificate does not name its subject") from None


def _name_in(certificate: x509.Certificate, name: CertificateName) -> str:
    if name == "subject":
        return certificate.subject.rfc4514_string()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (only,) = names.get_values_for_type(_SAN_TYPES[name])  # ValueError for none, and for several: no guessing.
    return str(only)


# A JSON Web Token.

Jwks: TypeAlias = Mapping[str, Any]
Keys: TypeAlias = Jwks | Callable[[], Jwks] | str | bytes


@knows_its_settings()
def bearer_jwt(
    *,
    keys: Keys,
    algorithms: Collection[str],
    issuer: str,
    audience: str,
    tenant_claim: str | None = None,
    leeway_s: int = 0,
) -> BearerJwt:
    """The subject of a signed JSON Web Token in ``Authorization: Bearer`` (RFC 6750, RFC 7519, RFC 8725).

    ``keys`` is a JWK set, a callable that returns the set in force, a PEM, or a secret. The callable runs for every
    request and must not wait: fetch in the background, and hand out another object when the set has changed.
    ``algorithms`` has no default, since a token must not choose. A token needs ``iss``, ``sub``, ``aud`` and ``exp``;
    ``nbf`` and ``iat`` are checked where they are. With ``tenant_claim`` that claim is part of the identity.

    The result is an ``identify``, and its ``claims(head)`` returns the verified claims. Needs ``twophp[jwt]``.
    """
    try:
        from twophp.identity.bearer import BearerJwt  # noqa: PLC0415 - A service without tokens needs no joserfc.
    except ModuleNotFoundError as error:
        raise ConfigError("bearer_jwt needs the extra twophp[jwt]", code="missing_extra") from error
    return BearerJwt(
        keys=keys,
        algorithms=algorithms,
        issuer=issuer,
        audience=audience,
        tenant_claim=tenant_claim,
        leeway_s=leeway_s,
    )
