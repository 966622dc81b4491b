"""The identity of a client: anonymous, from a user in the scope, from a certificate, from a service's own callable."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from tests.identity.heads import NOW, head
from tests.identity.tokens import AUDIENCE, ISSUER, SECRET, bearing, sign_secret
from twophp.core.errors import ConfigError, StoreUnavailable, Unauthenticated
from twophp.core.identity import principal_digest
from twophp.identity.head import Head, Tls
from twophp.identity.identify import (
    Identify,
    Principal,
    anonymous,
    authenticate,
    bearer_jwt,
    mutual_tls,
    principal_of,
    scope_user,
)

PROXY = ("10.1.2.3", 4711)
STRANGER = ("203.0.113.9", 4711)


def who(identify: Identify, request: Head | None = None) -> str:
    async def found() -> str:
        principal = authenticate(identify, request or head())
        return principal if isinstance(principal, str) else await principal

    return asyncio.run(found())


def refused(identify: Any, request: Head | None = None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        who(identify, request)
    assert caught.value.code == "unauthenticated"
    return caught.value


def test_a_slip_in_a_services_own_identify_is_named_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    users: dict[str, str] = {}

    def slips(asked: Head) -> str:
        return users[asked.headers["authorization"]]

    refused(slips, head(("authorization", "Bearer secret")))
    assert "identify raised KeyError in " in caplog.text
    assert "test_identify.py, line " in caplog.text
    assert "secret" not in caplog.text
    refused(lambda _head: None)
    assert "neither a string nor a Principal: NoneType" in caplog.text


# The tuple and its digest.


@pytest.mark.req("A-60")
def test_the_digest_is_of_the_whole_tuple() -> None:
    alice = Principal("bearer", "https://i", "alice", "acme")
    assert principal_of(alice) == principal_digest("bearer", "https://i", "alice", "acme")
    assert principal_of("alice") == principal_digest("identify", "", "alice")


PARTS = st.text(st.sampled_from("ab:/ "), max_size=3)
PRINCIPALS = st.builds(Principal, PARTS.filter(bool), PARTS, PARTS.filter(bool), PARTS)


@pytest.mark.req("A-60")
@STEADY
@given(PRINCIPALS, PRINCIPALS)
def test_two_identities_never_share_a_digest(one: Principal, two: Principal) -> None:
    assert (principal_of(one) == principal_of(two)) == (one == two)


@pytest.mark.parametrize("nobody", [None, "", b"alice", 7, True, ("bearer", "i", "alice"), object(), "\ud800"])
def test_what_is_no_identity_is_refused(nobody: Any) -> None:
    refused(lambda _: nobody)


def test_an_identity_has_a_scheme_and_a_subject() -> None:
    for scheme, subject in (("", "alice"), ("bearer", "")):
        with pytest.raises(Unauthenticated):
            Principal(scheme, "https://i", subject)


# A service's own callable.


def test_a_callable_may_be_sync_or_async() -> None:
    async def slowly(request: Head) -> str:
        await asyncio.sleep(0)
        return request.headers["x-api-user"]

    def at_once(request: Head) -> str:
        return request.headers["x-api-user"]

    alice = head(("X-Api-User", "alice"))
    assert who(slowly, alice) == who(at_once, alice) == principal_of("alice")
    for identify in (slowly, at_once):
        assert isinstance(refused(identify).__cause__, KeyError)


def test_an_error_of_our_own_tree_stays_what_it_is() -> None:
    def away(_: Head) -> str:
        raise StoreUnavailable("the user table is away")

    with pytest.raises(StoreUnavailable):
        who(away)


@pytest.mark.req("A-61")
def test_anonymous_is_one_constant_and_nobody_else() -> None:
    assert who(anonymous, head(("Authorization", "x"))) == who(anonymous, head(client=STRANGER))
    assert who(anonymous) != principal_of("anonymous")


@pytest.mark.req("A-60")
def test_phase_two_without_a_credential_is_not_authenticated() -> None:
    """Each phase is judged by its own head: nothing is remembered of a credential that Phase 1 brought."""
    identify = bearer_jwt(keys=SECRET, algorithms=["HS256"], issuer=ISSUER, audience=AUDIENCE)
    registered = who(identify, bearing(sign_secret()))
    refused(identify, head(path="/orders/confirm"))
    assert who(identify, bearing(sign_secret(jti="2"), path="/orders/confirm")) == registered
    assert who(identify, bearing(sign_secret(sub="mallory"), path="/orders/confirm")) != registered


# A user in the scope.


class Starlette(SimpleNamespace):
    """As Starlette's SimpleUser: it promises an identity and has none."""

    is_authenticated = True

    @property
    def identity(self) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (Starlette(username="alice", display_name="A"), ("username", "alice")),
        (SimpleNamespace(is_authenticated=True, identity="alice", pk=7), ("identity", "alice")),
        (SimpleNamespace(is_authenticated=True, pk=7, username="alice"), ("pk", "7")),
        (SimpleNamespace(is_authenticated=True, id=0), ("id", "0")),
        (SimpleNamespace(is_authenticated=True, pk=UUID(int=7)), ("pk", str(UUID(int=7)))),
    ],
)
def test_an_authenticated_user_of_the_scope(user: Any, expected: tuple[str, str]) -> None:
    assert who(scope_user(), head(scope={"user": user})) == principal_digest("user", *expected)


@pytest.mark.parametrize(
    "user",
    [
        None,
        "alice",
        SimpleNamespace(identity="alice"),
        SimpleNamespace(is_authenticated=False, identity="alice"),
        SimpleNamespace(is_authenticated=lambda: False, identity="alice"),  # A method that was not called is truthy.
        SimpleNamespace(is_authenticated="yes", identity="alice"),
        SimpleNamespace(is_authenticated=True),
        SimpleNamespace(is_authenticated=True, identity="", pk=None),
        SimpleNamespace(is_authenticated=True, pk=object()),
        SimpleNamespace(is_authenticated=True, pk=True),
        SimpleNamespace(is_authenticated=True, display_name="alice"),
        Starlette(),
    ],
)
def test_any_other_user_of_the_scope_is_refused(user: Any) -> None:
    refused(scope_user(), head(scope={"user": user}))
    refused(scope_user(), head())


def test_the_place_and_the_attribute_can_be_named() -> None:
    account = SimpleNamespace(is_authenticated=True, email="a@example", pk=7)
    request = head(scope={"account": account})
    identify = scope_user(key="account", attributes=["email"])
    assert who(identify, request) == principal_digest("user", "email", "a@example")


# Certificates.

KEY = ec.generate_private_key(ec.SECP256R1())
AT = datetime.fromtimestamp(NOW / 1000, UTC)


def certificate(subject: str = "alice", issuer: str = "ca", *names: x509.GeneralName, serial: int = 7) -> str:
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else []),
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        public_key=KEY.public_key(),
        serial_number=serial,
        not_valid_before=AT - timedelta(days=1),
        not_valid_after=AT + timedelta(days=1),
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def with_certificate(*pem: str, **facts: Any) -> Head:
    return head(tls=Tls(chain=pem), **facts)


def test_a_certificate_is_known_by_its_subject_and_its_issuer() -> None:
    alice = who(mutual_tls(), with_certificate(certificate()))
    assert alice == principal_digest("mtls", "CN=ca", "CN=alice")
    assert alice == who(mutual_tls(), with_certificate(certificate(serial=8)))  # Renewed: the same identity.
    others = [with_certificate(certificate("bob")), with_certificate(certificate(issuer="evil"))]
    assert alice not in {who(mutual_tls(), other) for other in others}
    loose = mutual_tls(bind_issuer=False)
    assert who(loose, with_certificate(certificate())) == who(loose, with_certificate(certificate(issuer="ca2")))


def test_a_server_may_pass_on_the_name_alone() -> None:
    assert who(mutual_tls(), head(tls=Tls(subject="CN=alice"))) == principal_digest("mtls", "", "CN=alice")


SPIFFE = x509.UniformResourceIdentifier("spiffe://example/orders")


@pytest.mark.parametrize(
    ("name", "san", "subject"),
    [
        ("uri", SPIFFE, "spiffe://example/orders"),
        ("dns", x509.DNSName("a.example"), "a.example"),
        ("email", x509.RFC822Name("a@example"), "a@example"),
    ],
)
def test_a_certificate_is_known_by_the_one_alternative_name(name: Any, san: Any, subject: str) -> None:
    noise = x509.IPAddress(IPv4Address("192.0.2.1"))
    request = with_certificate(certificate("ignored", "ca", noise, san))
    assert who(mutual_tls(name=name), request) == principal_digest("mtls", "CN=ca", subject)


@pytest.mark.parametrize(
    ("name", "tls"),
    [
        ("subject", None),
        ("subject", Tls()),
        ("subject", Tls(subject="CN=alice", error="certificate has expired")),
        ("subject", Tls(chain=(certificate(),), error="self-signed certificate")),
        ("subject", Tls(chain=(certificate(""),))),
        ("subject", Tls(subject="CN=alice", chain=("not a PEM",))),
        ("subject", Tls(subject="CN=alice", chain=("\ud800",))),
        ("uri", Tls(subject="CN=alice")),
        ("uri", Tls(chain=(certificate(),))),
        ("dns", Tls(chain=(certificate("a", "ca", SPIFFE),))),
        ("dns", Tls(chain=(certificate("a", "ca", x509.DNSName("a.example"), x509.DNSName("b.example")),))),
    ],
)
def test_without_one_valid_name_nobody_is_known(name: Any, tls: Tls | None) -> None:
    refused(mutual_tls(name=name), head(tls=tls))


BEHIND = mutual_tls(trusted_proxies=["10.0.0.0/8"])
NAMED = ("X-Client-Cert-Subject", "CN=alice")


def test_a_trusted_proxy_names_the_subject() -> None:
    named = who(BEHIND, head(NAMED, client=PROXY))
    assert named == principal_digest("mtls", "proxy", "CN=alice")
    # The certificate of the connection is the proxy's own, and would be the same for every client.
    own = Tls(chain=(certificate("proxy"),))
    assert named == who(BEHIND, head(NAMED, client=PROXY, tls=own))
    refused(BEHIND, head(client=PROXY, tls=own))


@pytest.mark.parametrize("lines", [[], [("X-Client-Cert-Subject", "")], [NAMED, NAMED], [NAMED, (NAMED[0], "CN=root")]])
def test_a_proxy_names_exactly_one_subject(lines: list[tuple[str, str]]) -> None:
    refused(BEHIND, head(*lines, client=PROXY))


@pytest.mark.parametrize("client", [STRANGER, None, ("testclient", 1), ("", 0)])
def test_a_stranger_names_nobody(client: Any) -> None:
    refused(BEHIND, head(NAMED, client=client))
    refused(mutual_tls(), head(NAMED, client=PROXY))  # No proxy was configured.
    own = Tls(chain=(certificate("mallory"),))
    assert who(BEHIND, head(NAMED, client=client, tls=own)) == principal_digest("mtls", "CN=ca", "CN=mallory")


def test_a_proxy_that_verifies_optionally_has_to_say_so() -> None:
    identify = mutual_tls(trusted_proxies=["10.0.0.0/8"], verify_header="X-Client-Verify")
    verified = [[("x-client-verify", word)] for word in ("SUCCESS", "NONE", "FAILED:expired", "success", "")]
    good, *bad = [head(NAMED, *lines, client=PROXY) for lines in [*verified, [], verified[0] * 2]]
    assert who(identify, good) == who(BEHIND, good)
    for request in bad:
        refused(identify, request)


def test_a_setting_that_cannot_work_is_refused_at_the_start() -> None:
    settings: list[dict[str, Any]] = [{"name": "serial"}, {"trusted_proxies": ["*"]}]
    for wrong in settings:
        with pytest.raises(ConfigError):
            mutual_tls(**wrong)
