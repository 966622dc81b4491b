"""The deny list: what is inside an address is judged too, and nothing is public that the standard library doubts."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.delivery import ssrf_vectors
from twophp.delivery.egress_addresses import DENIED_V4, DENIED_V6, denied, is_loopback, read_address

V4 = st.ip_addresses(v=4)
SPECIAL_V4 = st.sampled_from(list(DENIED_V4)).flatmap(lambda network: st.ip_addresses(network=network))
SPECIAL_V6 = st.sampled_from(list(DENIED_V6)).flatmap(lambda network: st.ip_addresses(network=network))
ANY_V4 = V4 | SPECIAL_V4
ANY_V6 = st.ip_addresses(v=6) | st.ip_addresses(network="2000::/3")
LOW_80 = st.integers(0, 2**80 - 1)


def bad(address: IPv4Address | IPv6Address) -> bool:
    return denied(address) is not None


@pytest.mark.req("A-65")
@given(ANY_V4)
def test_another_spelling_of_an_ipv4_address_is_judged_as_the_address(inner: IPv4Address) -> None:
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        outer = IPv6Address(int(IPv6Address(prefix)) | int(inner))
        assert denied(outer) == denied(inner)
        assert is_loopback(outer) == is_loopback(inner)


@pytest.mark.req("A-65")
@given(ANY_V4, LOW_80)
def test_a_tunnel_to_a_bad_address_is_bad(inner: IPv4Address, rest: int) -> None:
    value = int(inner)
    for tunnel in (
        value,  # ::a.b.c.d, IPv4-compatible
        0xFFFF << 48 | value,  # ::ffff:0:a.b.c.d, translated
        0x2002 << 112 | value << 80 | rest,  # 6to4
        0x2001_0000 << 96 | rest & ~0xFFFF_FFFF | value ^ 0xFFFF_FFFF,  # Teredo, its client's address inverted
        0x2001_0000 << 96 | value << 64 | rest & (2**64 - 1),  # Teredo, its server's address
        0x0064_FF9B_0001 << 80 | rest,  # NAT64 of a network's own
    ):
        assert bad(IPv6Address(tunnel))


@pytest.mark.req("A-65")
@given(ANY_V4, st.ip_addresses(network="2600::/16"), st.sampled_from([0x5EFE, 0x0200_5EFE]))
def test_isatap_is_judged_by_both(inner: IPv4Address, prefix: IPv6Address, marker: int) -> None:
    high = int(prefix) >> 64 << 64
    assert bad(IPv6Address(high | marker << 32 | int(inner))) == bad(inner)
    assert bad(IPv6Address(0xFD00 << 112 | marker << 32 | int(inner)))


@given(ANY_V4 | ANY_V6)
def test_what_we_call_public_the_standard_library_does_too(address: IPv4Address | IPv6Address) -> None:
    embeds = isinstance(address, IPv6Address) and address.ipv4_mapped is not None
    assert bad(address) or embeds or address.is_global


@given(SPECIAL_V4 | SPECIAL_V6)
def test_every_block_is_denied_from_end_to_end(address: IPv4Address | IPv6Address) -> None:
    assert bad(address)


@pytest.mark.parametrize("text", [*ssrf_vectors.V4, *ssrf_vectors.V6])
def test_a_bad_address_is_denied(text: str) -> None:
    assert bad(ip_address(text))


@pytest.mark.parametrize("text", ssrf_vectors.PUBLIC)
def test_a_public_address_is_not(text: str) -> None:
    assert denied(ip_address(text)) is None


@given(ANY_V6, st.text(min_size=1))
def test_a_zone_makes_it_no_address(address: IPv6Address, zone: str) -> None:
    assert read_address(f"{address}%{zone}") is None
    assert read_address(str(address)) == address
