"""What a service says when it adds the middleware: a slip is said at once, by the name of the setting."""

from __future__ import annotations

import base64
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.asgi.driver import AUTO, CLIENT, OUTGOING, Orders, by_header, serving
from twophp import Policy, Quota, anonymous
from twophp.asgi import EgressRules, Hooks, Outgoing, TwoPhaseMiddleware
from twophp.core.errors import ConfigError
from twophp.stores.vault import KeyRing

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def made(**said: Any) -> TwoPhaseMiddleware:
    """The middleware, made and not opened."""
    known: dict[str, Any] = {
        "service": "shop",
        "store": "memory:",
        "identify": anonymous,
        "policies": Policy.standard(),
    }
    return TwoPhaseMiddleware(Orders(), **(known | said))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"service": 5}, "service must be a text, not 5"),
        ({"store": 5}, "store must be a text, memory:, .* not of type int"),
        ({"store": b"postgres://me:hush@db"}, "store must be a text, memory:, .* not of type bytes"),
        ({"clock": None}, "clock must be a callable, not None"),
        ({"methods": None}, "methods must be a list of texts, not of type NoneType"),
        ({"methods": [5]}, "methods must be a list of texts"),
        ({"methods": "post"}, "methods are names in upper case"),
        ({"stored_headers": None}, "stored_headers must be a list of texts, not of type NoneType"),
        ({"stored_headers": [b"x-tenant"]}, "stored_headers: b'x-tenant' is no header's name"),
        ({"stored_headers": ["X Tenant"]}, "stored_headers: 'X Tenant' is no header's name"),
        ({"trusted_proxies": 5}, "trusted_proxies must be a list of texts, not of type int"),
        ({"max_body_bytes": "1000"}, "max_body_bytes must be a whole number, not '1000'"),
        ({"max_body_bytes": True}, "max_body_bytes must be a whole number, not True"),
        ({"confirm_suffix": "/confirm/"}, "confirm_suffix starts with a slash and does not end with one"),
        ({"confirm_suffix": "/"}, "confirm_suffix starts with a slash and does not end with one"),
        ({"drain_timeout_s": -1}, "drain_timeout_s must not be negative"),
        ({"drain_timeout_s": float("nan")}, "drain_timeout_s must not be negative"),
        ({"drain_timeout_s": float("inf")}, "drain_timeout_s must be at most a year"),
        ({"sweep_interval_s": float("inf")}, "sweep_interval_s must be at most a year"),
        ({"ledger_retention_ms": 10**30}, r"ledger_retention_ms must be at most 2\*\*53"),
        ({"replay_wait_ms": -1}, "replay_wait_ms must not be negative"),
        ({"central": 5}, "central must be a text, or None, not 5"),
        ({"central_events": "yes"}, "central_events must be True, False or None, not 'yes'"),
        ({"central_interval_s": "1"}, "central_interval_s must be a number of seconds, or None, not '1'"),
        ({"management_token": b"hush"}, "central_token and management_token are texts, or None$"),
        ({"central_token": b"hush"}, "central_token and management_token are texts, or None$"),
    ],
)
def test_a_wrong_setting_is_said_when_the_middleware_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        made(**wrong)
    assert refusal.value.code == "bad_setting"
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"store": "mysql://me:hush@db"}, "unknown_store"),
        ({"store": ""}, "unknown_store"),
        ({"keys": "hush"}, "bad_key_ring"),
        ({"keys": b"hush"}, "bad_key_ring"),
    ],
)
def test_a_store_or_keys_that_nobody_knows_are_said_before_anything_is_opened(wrong: Any, code: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        made(**wrong)
    assert refusal.value.code == code
    assert "hush" not in str(refusal.value)


@pytest.mark.req("A-64", "A-65")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("10.0.0.1/8", "is one address with the length of a network; write '10.0.0.0/8' for all of it, or '10.0.0.1'"),
        (["proxy.internal"], "not an address or network: 'proxy.internal'"),
        ([10], "not an address or network: 10; write it as a text"),
    ],
)
def test_networks_are_read_alike_wherever_they_are_asked_for(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigError) as of_proxies:
        made(trusted_proxies=wrong)
    with pytest.raises(ConfigError) as of_egress:
        EgressRules(networks=wrong)
    assert (of_proxies.value.code, of_egress.value.code) == ("bad_proxy", "bad_egress")
    for refusal, name in ((of_proxies, "trusted_proxies: "), (of_egress, "networks: ")):
        assert refusal.value.message.startswith(name)
        assert said in refusal.value.message
    for one in ("10.0.0.0/8", ip_network("10.0.0.0/8"), ip_address("10.0.0.1")):
        made(trusted_proxies=one)
        assert len(EgressRules(networks=one).networks) == 1  # type: ignore[arg-type]


def test_keys_of_the_environment_are_read_as_early_unless_the_code_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_KEYS", "hush")
    with pytest.raises(ConfigError, match="TWOPHP_KEYS") as refusal:
        made()
    assert (refusal.value.code, "hush" in str(refusal.value)) == ("bad_key_ring", False)
    made(keys=KeyRing.generate())


def test_nothing_is_opened_and_nobody_asked_for_keys_when_the_middleware_is_made(tmp_path: Path) -> None:
    def keys() -> str:
        raise AssertionError("asked for keys")

    made(store=f"sqlite:///{tmp_path}/shop.db", keys=keys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"open_intents": "5"}, {"open_bytes": None}, {"open_intents": 2.5}])
def test_a_quota_is_of_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"a quota's {next(iter(wrong))} must be a whole number") as refusal:
        Quota(**wrong)
    assert refusal.value.code == "bad_quota"


async def test_one_text_is_one_header_and_one_method() -> None:
    async with serving(stored_headers="X-Tenant", methods="POST") as service:
        registered = await service.register(more={"X-Tenant": "t-1", "X": "no name of one letter is kept"})
        await service.confirm(registered)
        [seen] = service.orders.seen
        assert (seen.header("x-tenant"), seen.header("x")) == (["t-1"], [])


# What leaves by itself.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rules": None}, r"rules must be an EgressRules\(\.\.\.\), not None"),
        ({"tries": 5}, r"tries must be a Tries\(\.\.\.\), not 5"),
        ({"hooks": None}, r"hooks must be a Hooks\(\), not None"),
        ({"ssl_context": "x"}, "ssl_context must be an ssl.SSLContext, or None, not of type str"),
        ({"resolver": None}, "resolver must be a callable, not None"),
        ({"fire_barrier": "foo"}, "fire_barrier is 'started' or 'sent'"),
        ({"hosts_of": None}, "hosts_of must be a mapping of identities to hosts, not None"),
        ({"hosts_of": {"": ["cb.example"]}}, "hosts_of: '' is no identity"),
        ({"hosts_of": {5: ["cb.example"]}}, "hosts_of: 5 is no identity"),
        ({"hosts_of": {"checkout": None}}, "hosts_of: say which hosts 'checkout' may name"),
        ({"webhook_secrets": None}, "webhook_secrets must be a list of texts, not of type NoneType"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_outgoing_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        Outgoing(**wrong)
    assert refusal.value.code == "bad_setting"


@pytest.mark.req("A-65")
@pytest.mark.parametrize("url", ["http://cb.example/", "https://localhost/", "https://cb.example:8443/", "cb.example"])
async def test_a_webhook_that_the_gate_would_never_let_out_stops_the_start(url: str) -> None:
    hooks = Hooks()
    hooks.webhook(url, phases=["FAILED"], name="ops.failed")
    with pytest.raises(ConfigError, match=r"does not let out the webhook 'ops\.failed'") as refusal:
        await made(outgoing=Outgoing(hooks=hooks)).start()
    assert refusal.value.code == "bad_hook"


def test_an_identitys_hosts_are_checked_like_those_of_the_rules() -> None:
    with pytest.raises(ConfigError, match="not a name") as refusal:
        Outgoing(hosts_of={"checkout": "https://cb.example"})
    assert refusal.value.code == "bad_egress"


@pytest.mark.req("A-65")
@pytest.mark.parametrize("hosts", ["*.Checkout.example", ["*.checkout.example"]])
async def test_an_identitys_hosts_are_read_like_those_of_the_rules(hosts: Any) -> None:
    own = replace(OUTGOING, hosts_of={"checkout": hosts})
    async with serving(identify=by_header, headers={"x-user": "checkout"}, outgoing=own) as service:
        for host, status in (("cb.checkout.example", 201), ("elsewhere.example", 400)):
            asked = {**AUTO, CLIENT: host, "DTT-2PHP-Callback": f"https://{host}/cb"}
            assert (await service.request("POST", "/orders", asked, b"{}")).status == status


@pytest.mark.req("A-66")
@pytest.mark.parametrize("wrong", ["hush", ["hush"], [SECRET, b"hush"], [SECRET] * 17])
def test_a_bad_secret_is_refused_when_outgoing_is_made_and_not_quoted(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        Outgoing(webhook_secrets=wrong)
    assert refusal.value.code == "bad_webhook_secret"
    assert "hush" not in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.req("A-66")
def test_one_text_is_one_secret() -> None:
    assert len(Outgoing(webhook_secrets=SECRET).secrets()) == 1


@pytest.mark.req("A-66")
def test_a_bad_secret_of_the_environment_is_said_when_the_middleware_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_WEBHOOK_SECRETS", f"{SECRET},hush")
    with pytest.raises(ConfigError) as refusal:
        made()
    assert refusal.value.code == "bad_webhook_secret"


@pytest.mark.parametrize(
    "wrong",
    [{"outgoing": {"webhook_secrets": ["whsec_c2VjcmV0"]}}, {"central": ["https://u:c2VjcmV0@central.example"]}],
)
async def test_what_may_hold_a_secret_is_not_quoted(wrong: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError) as refusal:
        async with serving(**wrong):
            pass
    assert "c2VjcmV0" not in str(refusal.value) + caplog.text
