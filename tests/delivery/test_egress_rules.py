"""What an operator may write as rules: texts will do, and what cannot be meant is said at once."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from tests.delivery.test_egress import NAME, Names
from twophp.core.errors import ConfigError, EgressRefused
from twophp.delivery.egress import Rules, check_url, resolve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "networks",
    [
        "10.1.0.0/16",
        "10.1.2.3",
        ["10.1.0.0/16"],
        [IPv4Network("10.1.0.0/16")],
        IPv4Network("10.1.0.0/16"),  # Itself, and not its 65,536 addresses.
        IPv4Address("10.1.2.3"),
        {"192.0.2.0/24", "10.1.0.0/16"},
    ],
)
async def test_a_network_may_be_a_text(networks: Any) -> None:
    target = check_url(f"https://{NAME}/", rules=Rules(networks=networks))
    assert await resolve(target, resolver=Names(["10.1.2.3"])) == (IPv4Address("10.1.2.3"),)


def test_a_host_may_be_a_text_in_any_case() -> None:
    check_url(f"https://{NAME}/", rules=Rules(hosts=NAME.upper()))
    check_url("https://a.partner.example/", rules=Rules(hosts=["*.Partner.example"]))


def test_one_port_may_be_a_number() -> None:
    assert check_url(f"https://{NAME}:8443/", rules=Rules(ports=8443)).port == 8443
    with pytest.raises(EgressRefused):
        check_url(f"https://{NAME}/", rules=Rules(ports=8443))


@pytest.mark.parametrize(
    "wrong",
    [
        {"networks": ["10.0.0.0/33"]},
        {"networks": ["10.0.0.1/8"]},  # It is unclear whether one address or the network is meant.
        {"networks": ["internal"]},
        {"hosts": ["https://hooks.example"]},
        {"hosts": ["*"]},
        {"hosts": [""]},
        {"ports": [0]},
        {"ports": ["443"]},
        {"ports": "443"},
        {"ports": True},
        {"ports": [443.0]},
        {"ports": None},
        {"ports": 0},
        {"hosts": 5},
        {"hosts": [5]},
        {"hosts": b"hooks.example"},
        {"networks": None},
        {"networks": 10},  # To ip_network it is 0.0.0.10.
        {"networks": [["10.0.0.0/8"]]},
        {"networks": [10]},
        {"networks": ("10.0.0.0", 8)},
        {"networks": b"10.0.0.0/8"},
        {"networks": [b"\x0a\x00\x00\x00"]},
        {"allow_insecure_loopback": "no"},
    ],
)
def test_rules_that_cannot_be_meant_are_refused_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Rules(**wrong)
    assert refusal.value.code == "bad_egress"


def test_an_address_with_the_length_of_a_network_is_told_both_ways_to_write_it() -> None:
    with pytest.raises(ConfigError) as refusal:
        Rules(networks="10.0.0.1/8")
    assert refusal.value.message.startswith(
        "networks: '10.0.0.1/8' is one address with the length of a network;"
        " write '10.0.0.0/8' for all of it, or '10.0.0.1'"
    )
