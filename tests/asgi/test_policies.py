"""What an endpoint may say for itself: replay, literal expiry, callbacks, and nothing that leaves the machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.asgi.driver import AUTO, CLIENT, OUTGOING, RESOURCE, SERVER, STATE, by_header, serving
from twophp import Policy
from twophp.core.errors import ConfigError, DeliveryFailed

pytestmark = pytest.mark.anyio

POLICY = "DTT-2PHP-Replay-Policy"

KNOWN: dict[str, Any] = {"identify": by_header, "headers": {"x-user": "u-1"}}


@pytest.mark.req("P-8.2-a", "P-8.2-e", "P-14.1-k", "A-21")
async def test_the_replay_policy_is_each_endpoints_own_and_told_only_on_request() -> None:
    policies = {"*": Policy.standard(), "POST /orders": Policy.standard(replay="REUSE")}
    for told in (False, True):
        async with serving(policies=policies, expose_replay_policy=told, **KNOWN) as service:
            reuse = await service.register()
            reject = await service.register("c-2", path="/invoices")
            assert [reuse.get(POLICY), reject.get(POLICY)] == (["REUSE", "REJECT"] if told else [None, None])
            service.clock.now += 31_000
            assert (await service.confirm(reuse)).status == 200
            assert (await service.confirm(reject, "c-2", path="/invoices/confirm")).status == 408


@pytest.mark.req("A-30")
async def test_literal_expiry_refuses_late_replays_and_still_tells_the_outcome() -> None:
    async with serving(policies=Policy.standard(literal_ttl_reject=True)) as service:
        registered, done = await service.both()
        assert await service.confirm(registered) == done
        service.clock.now += 30_000
        late = await service.confirm(registered)
        assert (late.status, late.get(STATE)) == (408, "TTL_EXPIRED")
        read = await service.read(registered.get(SERVER) or "")
        assert (read.get(STATE), read.get(RESOURCE)) == ("COMMITTED", "7")
        assert service.orders.runs == 1


@pytest.mark.req("T2-6", "P-5.5.3-f", "P-5.5.7-b")
async def test_another_callback_is_another_request() -> None:
    async def nowhere(*_asked: object) -> list[str]:
        raise DeliveryFailed("no such host", reason="dns")

    outgoing = msgspec.structs.replace(OUTGOING, resolver=nowhere)
    async with serving(outgoing=outgoing) as service:
        here = {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": "https://client.example/cb"}
        there = {**here, "DTT-2PHP-Callback": "https://client.example/other"}
        first = await service.request("POST", "/orders", here, b"{}")
        assert (first.status, first.get(STATE), first.get(RESOURCE)) == (201, "COMMITTED", "7")
        assert await service.request("POST", "/orders", here, b"{}") == first
        assert (await service.request("POST", "/orders", there, b"{}")).status == 422
        assert (await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}")).status == 422
        assert service.orders.runs == 1


@pytest.mark.req("P-1-d", "P-9.3-b", "P-9.7-a")
async def test_a_handshake_speaks_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("a handshake reached for the network")

    async with serving(store=f"sqlite:///{tmp_path}/shop.db") as service:
        for name in ("connect", "connect_ex", "sendto"):
            monkeypatch.setattr(socket.socket, name, refuse, raising=False)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        registered, done = await service.both()
        assert done.get(STATE) == "COMMITTED"
        assert len(await service.journal(registered.get(SERVER) or "")) == 3


@pytest.mark.parametrize(
    "wrong", [{"confirm_suffix": "go"}, {"success_status": "201"}, {"max_body_bytes": 0}, {"nonsense": 1}]
)
async def test_a_setting_that_cannot_work_is_refused_at_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with serving(**wrong):
            pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"quota": 5}, r"quota must be a Quota\(\.\.\.\), or None, not 5"),
        ({"outgoing": None}, r"outgoing must be an Outgoing\(\.\.\.\), not None"),
        ({"obligations": {}}, "obligations must be"),
        ({"allow_insecure": "no"}, "allow_insecure must be True or False, not 'no'"),
        ({"max_body_bytes": "1M"}, "max_body_bytes must be a whole number, not '1M'"),
        ({"sweep_interval_s": None}, "sweep_interval_s must be a number of seconds, not None"),
        ({"prevalidate": "module.function"}, "prevalidate, .* are callables, or None"),
    ],
)
async def test_a_setting_of_the_wrong_kind_is_said_by_its_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        async with serving(**wrong):
            pass
    assert refusal.value.code == "bad_setting"


async def test_a_key_whose_method_is_never_registered_is_misspelled(caplog: pytest.LogCaptureFixture) -> None:
    """Its endpoint would run unprotected. A server may swallow the error, so the log has it, too."""
    with pytest.raises(ConfigError, match="PSOT /orders"):
        async with serving(policies={"PSOT /orders": Policy.standard(), "/invoices/{id}": Policy.standard()}):
            pass
    assert "the service cannot start: [bad_setting] a policy's key names a method" in caplog.text
