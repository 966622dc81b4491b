"""What an operator may write as rules: texts will do, and what cannot be meant is said at once."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from tests.engine.test_egress import NAME, Names
from twophp.core.errors import ConfigError
from twophp.engine.egress import Rules, check_url, resolve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("networks", ["10.1.0.0/16", ["10.1.0.0/16"], [IPv4Network("10.1.0.0/16")]])
async def test_a_network_may_be_a_text(networks: Any) -> None:
    target = check_url(f"https://{NAME}/", rules=Rules(networks=networks))
    assert await resolve(target, resolver=Names(["10.1.2.3"])) == (IPv4Address("10.1.2.3"),)


def test_a_host_may_be_a_text_in_any_case() -> None:
    check_url(f"https://{NAME}/", rules=Rules(hosts=NAME.upper()))
    check_url("https://a.partner.example/", rules=Rules(hosts=["*.Partner.example"]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"networks": ["10.0.0.0/33"]},
        {"networks": ["10.0.0.1/8"]},  # Whoever means one address or the whole network says so.
        {"networks": ["internal"]},
        {"hosts": ["https://hooks.example"]},
        {"hosts": ["*"]},
        {"hosts": [""]},
        {"ports": [0]},
        {"ports": ["443"]},
    ],
)
def test_rules_that_cannot_be_meant_are_refused_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Rules(**wrong)
    assert refusal.value.code == "bad_egress"
