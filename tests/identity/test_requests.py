"""What a head shows, and which scheme is believed."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from tests.identity.heads import head
from twophp.core.errors import ConfigError
from twophp.identity.head import NO_PROXIES, Headers, Tls, effective_scheme, proxies, tls_facts

OURS = proxies(["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"])
PROXY = ("10.1.2.3", 4711)
STRANGER = ("203.0.113.9", 4711)


def test_names_are_found_in_any_case() -> None:
    headers = head(("X-One", "1"), ("content-TYPE", " text/plain\t")).headers
    assert headers["x-one"] == headers["X-ONE"] == "1"
    assert headers.get("Content-Type") == "text/plain"
    assert (headers.get("x-two"), headers.get("x-two", "none")) == (None, "none")
    assert ("X-oNe" in headers, "x-two" in headers, len(headers)) == (True, False, 2)
    assert dict(headers) == {"x-one": "1", "content-type": "text/plain"}


def test_repeated_lines_are_joined_as_a_wsgi_server_joins_them() -> None:
    headers = head(("Via", "a"), ("X", "y"), ("VIA", "b")).headers
    assert headers["via"] == "a, b"
    assert headers.getall("via") == ["a", "b"]
    assert headers.getall("none") == []


def test_the_pairs_may_come_from_anything_that_can_be_read_once() -> None:
    headers = Headers((name, b"1") for name in (b"X", b"y"))
    assert (headers["x"], headers["X"], list(headers), headers["y"]) == ("1", "1", ["x", "y"], "1")


@STEADY
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.binary(max_size=4)), max_size=6))
def test_any_bytes_make_headers(raw: list[tuple[bytes, bytes]]) -> None:
    headers = Headers(raw)
    sought = {name: Headers(raw).getall(name) for name in headers}  # By a search, each in its own view ...
    assert sought == {name: headers.getall(name) for name in headers}  # ... and in the index of this one.
    assert sum(map(len, sought.values())) == len(raw)


def test_no_credential_is_in_a_repr() -> None:
    shown = head(("Authorization", "Bearer secret"), scope={"headers": [(b"authorization", b"Bearer secret")]})
    assert "secret" not in f"{shown!r} {shown} {shown.headers!r} {shown.headers}"
    assert "/orders" in repr(shown)


def test_the_facts_of_the_asgi_extension() -> None:
    full = {"client_cert_name": "CN=a", "client_cert_chain": ["pem"], "client_cert_error": "expired", "server_cert": ""}
    assert tls_facts(full) == Tls(subject="CN=a", chain=("pem",), error="expired")
    assert tls_facts({"client_cert_name": None, "client_cert_chain": (), "client_cert_error": None}) == Tls()
    assert tls_facts({}) == Tls()


@pytest.mark.req("A-64")
@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.255.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("2001:db8::5", True),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("11.0.0.1", False),
        ("::ffff:11.0.0.1", False),
        ("::10.0.0.1", False),
        ("10.0.0.1.example", False),
        ("testclient", False),
        ("010.0.0.1", False),
        ("", False),
    ],
)
def test_only_configured_addresses_are_proxies(address: str, trusted: bool) -> None:
    assert OURS.trust((address, 1)) is trusted
    assert NO_PROXIES.trust((address, 1)) is False


def test_a_unix_socket_is_trusted_only_by_name() -> None:
    assert [proxies(["unix"]).trust(peer) for peer in (None, ("", 0), PROXY)] == [True, True, False]
    assert (OURS.trust(None), proxies("10.1.2.3").trust(PROXY)) == (False, True)


@pytest.mark.req("A-64")
@pytest.mark.parametrize("wrong", ["proxy.internal", "10.0.0.1/8", "10.0.0.0/40", "", "*", "0.0.0.0/0", "::/0"])
def test_a_proxy_is_named_by_its_address_and_not_everybody_is_one(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        proxies([wrong])
    assert caught.value.code == "bad_proxy"
    assert repr(wrong) in str(caught.value)


@pytest.mark.req("A-64")
@pytest.mark.parametrize("ours", ["10.0.0.0/8", ip_network("10.0.0.0/8"), ip_address("10.1.2.3")])
def test_proxies_are_read_like_the_networks_of_the_egress_rules(ours: Any) -> None:
    for written in (ours, [ours], (ours, "unix"), {ours}):
        trusted = proxies(written)
        assert (trusted.trust(PROXY), trusted.trust(("192.0.2.1", 1))) == (True, False)


@pytest.mark.req("A-64")
@pytest.mark.parametrize(
    "wrong", [10, True, b"10.0.0.0/8", b"\x0a\x00\x00\x00", None, ["10.0.0.0/8"], ip_network("::/0")]
)
def test_what_is_no_text_and_no_network_is_no_proxy(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        proxies([wrong])
    assert caught.value.code == "bad_proxy"
    if not isinstance(wrong, list | IPv6Network):
        with pytest.raises(ConfigError, match="trusted_proxies must be a list of texts") as caught:
            proxies(wrong)
        assert caught.value.code == "bad_setting"


def test_an_address_with_the_length_of_a_network_is_no_proxy() -> None:
    with pytest.raises(ConfigError, match=r"'10\.0\.0\.1/8' is one address .* '10\.0\.0\.0/8' for all of it"):
        proxies("10.0.0.1/8")


@pytest.mark.req("A-64")
@pytest.mark.parametrize(
    ("lines", "secure"),
    [
        ([("X-Forwarded-Proto", "https")], True),
        ([("x-forwarded-proto", "HTTPS")], True),
        ([("X-Forwarded-Proto", "https, https")], True),
        ([("X-Forwarded-Proto", "http")], False),
        ([("X-Forwarded-Proto", "https,http")], False),  # The last hop, the one our proxy wrote, was plain.
        ([("X-Forwarded-Proto", "http, https")], False),  # A hop before it was.
        ([("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http")], False),
        ([("X-Forwarded-Proto", "http"), ("X-Forwarded-Proto", "https")], False),
        ([("X-Forwarded-Proto", "")], False),
        ([("X-Forwarded-Proto", "https,")], False),
        ([("X-Forwarded-Proto", "wss")], False),
        ([("X-Forwarded-Proto", "https;http")], False),
        ([("Forwarded", "proto=https")], True),
        ([("Forwarded", 'for="[2001:db8::1]:80";Proto="HTTPS";by=10.0.0.1')], True),
        ([("Forwarded", "for=192.0.2.1:80;proto=https, for=198.51.100.1;proto=https")], True),
        ([("Forwarded", "for=_hidden, for=198.51.100.1;proto=https")], True),
        ([("Forwarded", "proto=http")], False),
        ([("Forwarded", "proto=https, proto=http")], False),
        ([("Forwarded", "proto=http, proto=https")], False),
        ([("Forwarded", "proto=https, for=192.0.2.1")], False),  # The client says so, our proxy does not.
        ([("Forwarded", "proto=https"), ("Forwarded", "for=192.0.2.1")], False),
        ([("Forwarded", "proto=https;proto=http")], False),
        ([("Forwarded", "proto=http;proto=https")], False),
        ([("Forwarded", 'proto=https;x=", for=192.0.2.1;proto=http')], False),  # A quote to swallow what follows.
        ([("Forwarded", 'proto=https;x=", for="192.0.2.1";proto=http')], False),
        ([("Forwarded", r'proto=https;x="\", for="192.0.2.1;proto=http"')], False),
        ([("Forwarded", 'proto=""')], False),
        ([("Forwarded", "proto")], False),
        ([("Forwarded", "proto = https")], False),
        ([("Forwarded", f"for={'a' * 5000};proto=https")], False),
        ([("Forwarded", "x=proto=https")], False),
        ([("Forwarded", "for=192.0.2.1")], False),
        ([("Forwarded", "for=192.0.2.1"), ("X-Forwarded-Proto", "https")], True),
        ([("Forwarded", "proto=https"), ("X-Forwarded-Proto", "http")], False),
        ([("Forwarded", "proto=http"), ("X-Forwarded-Proto", "https")], False),
        ([("X-Forwarded-Scheme", "https"), ("X-Forwarded-Ssl", "on"), ("Front-End-Https", "on")], False),
        ([], False),
    ],
)
def test_what_a_trusted_proxy_says_of_a_plain_connection(lines: list[tuple[str, str]], secure: bool) -> None:
    assert effective_scheme(head(*lines, scheme="http", client=PROXY), OURS) == ("https" if secure else "http")
    for peer in (STRANGER, None, ("testclient", 50000)):  # From any other peer the same words mean nothing.
        assert effective_scheme(head(*lines, scheme="http", client=peer), OURS) == "http"
    assert effective_scheme(head(*lines, scheme="http", client=PROXY)) == "http"


@pytest.mark.req("A-64")
def test_the_servers_own_scheme_counts_unless_a_trusted_proxy_knows_better() -> None:
    assert effective_scheme(head(scheme="https", client=STRANGER)) == "https"
    assert effective_scheme(head(scheme="HTTPS", client=PROXY), OURS) == "https"
    plain = ("X-Forwarded-Proto", "http")
    assert effective_scheme(head(plain, scheme="https", client=STRANGER), OURS) == "https"
    # TLS between proxy and service, but not between client and proxy.
    assert effective_scheme(head(plain, scheme="https", client=PROXY), OURS) == "http"


HOPS = st.lists(st.sampled_from(["proto=https", "for=a", 'for="b, c"', "proto=http", '"', "=", ";", ""]), max_size=4)


@pytest.mark.req("A-64")
@STEADY
@given(forged=HOPS.map(", ".join), joined=st.booleans())
def test_nothing_a_client_sends_makes_a_plain_hop_secure(forged: str, joined: bool) -> None:
    """A proxy that appends, in the same line or in its own, always has the last word."""
    written = "for=203.0.113.9;proto=http"
    lines = [("Forwarded", f"{forged}, {written}")] if joined else [("Forwarded", forged), ("Forwarded", written)]
    lines += [("X-Forwarded-Proto", f"{forged}, http")]
    for some in (lines, lines[:-1], lines[-1:]):
        assert effective_scheme(head(*some, scheme="http", client=PROXY), OURS) == "http"


@STEADY
@given(st.text(st.characters(codec="latin-1"), max_size=40))
def test_any_field_is_read_without_an_error(value: str) -> None:
    request = head(("Forwarded", value), ("X-Forwarded-Proto", value), scheme="http", client=PROXY)
    assert effective_scheme(request, OURS) in ("http", "https")
