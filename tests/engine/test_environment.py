"""What the environment says of settings that the code did not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import docs
from twophp import Policy, anonymous
from twophp.asgi import Outgoing, TwoPhaseMiddleware
from twophp.asgi.settings import Settings
from twophp.client import TwoPhaseTransport
from twophp.client.settings import Settings as ClientSettings
from twophp.client.settings import settings_of
from twophp.core.errors import ConfigError
from twophp.engine.environment import CLIENT, SERVER, number_in, secret_in, with_environment

SAID: dict[str, Any] = {"identify": anonymous, "policies": Policy.standard()}


SECRET = "whsec_" + "A" * 32


async def app(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("nobody asks")


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SERVER, *CLIENT):
        monkeypatch.delenv(name, raising=False)


def test_a_service_is_what_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TWOPHP_SERVICE": "orders",
        "TWOPHP_STORE": "memory:",
        "TWOPHP_TRUSTED_PROXIES": "10.0.0.0/8, unix",
        "TWOPHP_ALLOW_INSECURE": "1",
        "TWOPHP_MAX_BODY_BYTES": "2048",
        "TWOPHP_MAX_RESULT_BYTES": "",
        "TWOPHP_SWEEP_INTERVAL_S": "0.5",
        "TWOPHP_DRAIN_TIMEOUT_S": "3",
        "TWOPHP_TUNE_COLLECTOR": "0",
        "TWOPHP_LEDGER_RETENTION_MS": "60000",
    }.items():
        monkeypatch.setenv(name, value)
    found = TwoPhaseMiddleware(app, **SAID)
    settings = found.settings
    assert (settings.service, found.store_url, settings.allow_insecure) == ("orders", "memory:", True)
    assert (len(settings.proxies.networks), settings.proxies.unix) == (1, True)
    assert (settings.max_body_bytes, settings.max_result_bytes) == (2048, 4 * 1024 * 1024)
    assert (settings.sweep_interval_s, settings.drain_timeout_s, settings.ledger_retention_ms) == (0.5, 3, 60_000)
    assert settings.tune_collector is False


def test_what_the_code_says_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SERVER:
        monkeypatch.setenv(name, "1")
    found = TwoPhaseMiddleware(
        app,
        service="orders",
        store="memory:",
        trusted_proxies=[],
        allow_insecure=False,
        max_body_bytes=7,
        ledger_retention_ms=None,
        **SAID,
    )
    settings = found.settings
    assert (settings.service, found.store_url, settings.allow_insecure) == ("orders", "memory:", False)
    assert (settings.max_body_bytes, settings.ledger_retention_ms, settings.proxies.networks) == (7, None, ())


def test_a_client_is_what_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TWOPHP_LEDGER": "memory:",
        "TWOPHP_SOURCE": "checkout",
        "TWOPHP_PATIENCE_S": "2.5",
        "TWOPHP_ALLOW_INSECURE": "0",
    }.items():
        monkeypatch.setenv(name, value)
    found = settings_of(None, None, {})
    assert (found.ledger, found.source, found.patience_s, found.allow_insecure) == ("memory:", "checkout", 2.5, False)
    assert settings_of(None, "billing", {"patience_s": 1.0}).source == "billing"
    TwoPhaseTransport().close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TWOPHP_MAX_BODY_BYTES", "1 MiB"), ("TWOPHP_SWEEP_INTERVAL_S", "often"), ("TWOPHP_ALLOW_INSECURE", "yes")],
)
def test_what_cannot_be_read_stops_the_start_and_is_named(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable}.*{value}"):
        TwoPhaseMiddleware(app, service="orders", store="memory:", **SAID)
    with pytest.raises(ConfigError, match="HOW_OFTEN"):
        number_in({"HOW_OFTEN": value}, "HOW_OFTEN", 1.0)


def test_what_nobody_says_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="say service=, or set TWOPHP_SERVICE"):
        TwoPhaseMiddleware(app, store="memory:", **SAID)
    with pytest.raises(ConfigError, match="say ledger=, or set TWOPHP_LEDGER"):
        TwoPhaseTransport(source="checkout")
    assert with_environment({"service": ""}, SERVER, ("service",), {"TWOPHP_SERVICE": "x"}) == {"service": ""}


def test_a_secret_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text(f"{SECRET}, {SECRET}\n")
    monkeypatch.setenv("TWOPHP_WEBHOOK_SECRETS_FILE", str(tmp_path / "secrets"))
    assert len(Outgoing().secrets()) == 2
    assert len(Outgoing(webhook_secrets=(SECRET,)).secrets()) == 1
    with pytest.raises(ConfigError, match="TOKEN_FILE"):
        secret_in({"TOKEN_FILE": str(tmp_path / "gone")}, "TOKEN")


def test_every_variable_is_for_a_setting_and_on_its_page() -> None:
    own = {"store", "trusted_proxies"}  # The middleware's own keywords.
    assert {one.setting for one in SERVER.values()} - own <= set(Settings.__struct_fields__)
    assert {one.setting for one in CLIENT.values()} <= set(ClientSettings.__struct_fields__)
    for variables, page in ((SERVER, "server.md"), (CLIENT, "client.md")):
        text = (docs.ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
        assert [name for name in variables if f"`{name}" not in text] == []
