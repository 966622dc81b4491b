"""Networks as an operator writes them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network

import pytest

from twophp.core.errors import ConfigError
from twophp.core.networks import entries_of, network_of

TEN = IPv4Network("10.0.0.0/8")


@pytest.mark.parametrize("entry", ["10.0.0.0/8", TEN])
def test_a_network_is_read_from_its_text_or_its_object(entry: object) -> None:
    assert network_of("proxies", entry, code="bad_proxy") == TEN


@pytest.mark.parametrize("entry", ["10.0.0.1", IPv4Address("10.0.0.1")])
def test_an_address_is_a_network_of_one(entry: object) -> None:
    assert network_of("proxies", entry, code="bad_proxy") == ip_network("10.0.0.1/32")


@pytest.mark.parametrize("entry", [10, b"\x0a\x00\x00\x01", None, 10.0])
def test_a_number_is_no_network(entry: object) -> None:
    with pytest.raises(ConfigError, match=r"proxies: not an address or network: .*; write it as a text") as refusal:
        network_of("proxies", entry, code="bad_proxy")
    assert refusal.value.code == "bad_proxy"


def test_an_address_with_the_length_of_a_network_is_told_what_was_meant() -> None:
    with pytest.raises(ConfigError) as refusal:
        network_of("proxies", "10.0.0.1/8", code="bad_proxy")
    assert refusal.value.code == "bad_proxy"
    assert refusal.value.message == (
        "proxies: '10.0.0.1/8' is one address with the length of a network; "
        "write '10.0.0.0/8' for all of it, or '10.0.0.1'"
    )


def test_a_name_is_no_network() -> None:
    with pytest.raises(ConfigError, match="proxies: not an address or network: 'localhost'; 'localhost' does not"):
        network_of("proxies", "localhost", code="bad_proxy")


@pytest.mark.parametrize("one", [TEN, IPv6Network("fd00::/8"), ip_address("::1"), ip_address("10.0.0.1"), "10.0.0.0/8"])
def test_one_stands_for_a_list_of_one(one: object) -> None:
    assert entries_of("proxies", one, code="bad_proxy") == (one,)


def test_several_are_taken_as_they_stand() -> None:
    assert entries_of("proxies", ["10.0.0.0/8", TEN], code="bad_proxy") == ("10.0.0.0/8", TEN)
    with pytest.raises(ConfigError) as refusal:
        entries_of("proxies", 10, code="bad_proxy")
    assert refusal.value.code == "bad_proxy"
