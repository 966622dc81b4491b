"""Whatever takes settings refuses one that nobody knows, and names the one that was probably meant."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twophp import Policy, Quota, anonymous, bearer_jwt, fresh_credential, hmac_guard, mutual_tls, scope_user
from twophp.asgi import EgressRules, Hooks, Outgoing, Tries, TwoPhaseMiddleware, obligation_rules
from twophp.client import AsyncTwoPhaseTransport, CallbackReceiver, TwoPhaseTransport, calling
from twophp.client.options import options_of
from twophp.client.requests import TwoPhaseAdapter
from twophp.core.errors import ConfigError
from twophp.engine.environment import KNOWN, warn_of_unknown
from twophp.obligations import AsyncObligationTracker, ObligationTracker
from twophp.registrar import AsyncRegistrar, Registrar
from twophp.shipping.shipper import Shipping

SRC = Path(__file__).parents[2] / "src"
CLIENT: dict[str, Any] = {"ledger": "memory:", "source": "checkout"}
SERVER: dict[str, Any] = {
    "service": "orders",
    "store": "memory:",
    "identify": anonymous,
    "policies": {"*": Policy.standard()},
}


async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...


# Who takes settings, with what it needs; a misspelt setting, what was meant, and the code.
TAKERS: list[tuple[Callable[..., Any], dict[str, Any], str, str, str]] = [
    (TwoPhaseTransport, CLIENT, "patience", "patience_s", "bad_setting"),
    (AsyncTwoPhaseTransport, CLIENT, "Resubmit", "resubmit", "bad_setting"),
    (TwoPhaseAdapter, CLIENT, "target", "targets", "bad_setting"),
    (CallbackReceiver, CLIENT, "webhook_secret", "webhook_secrets", "bad_setting"),
    (lambda **said: TwoPhaseMiddleware(app, **said), SERVER, "reconsile", "reconcile", "bad_setting"),
    (lambda **said: TwoPhaseMiddleware(app, **said), SERVER, "policy", "policies", "bad_setting"),
    (Policy, {"ttl_ms": 5_000, "delta_ms": 1_000}, "max_ttl", "max_ttl_ms", "bad_policy"),
    (Policy.low_latency, {}, "reply", "replay", "bad_policy"),
    (Policy.standard, {}, "oncrash", "on_crash", "bad_policy"),
    (Policy.long_running, {}, "modus", "mode", "bad_policy"),
    (Quota, {}, "open_intent", "open_intents", "bad_quota"),
    (Tries, {}, "attempt", "attempts", "bad_tries"),
    (Outgoing, {}, "hook", "hooks", "bad_setting"),
    (EgressRules, {}, "host", "hosts", "bad_egress"),
    (obligation_rules, {}, "effect", "effects", "bad_setting"),
    (lambda **said: ObligationTracker("memory:", **said), {}, "effect", "effects", "bad_setting"),
    (lambda **said: AsyncObligationTracker("memory:", **said), {}, "leak_timeout", "leak_timeout_secs", "bad_setting"),
    (lambda **said: Registrar("memory:", **said), {}, "verifer", "verifier", "bad_setting"),
    (lambda **said: AsyncRegistrar("memory:", **said), {}, "surfaces", "surface", "bad_setting"),
    (Shipping, {"url": "https://central", "token": "hush"}, "interval", "interval_s", "bad_setting"),
    (calling, {}, "requested_ttl", "requested_ttl_ms", "bad_option"),
    (lambda **said: options_of(said), {}, "parents", "parent", "bad_option"),
    (lambda **said: Hooks().webhook("https://a.example", **said), {"phases": ["FAILED"]}, "nam", "name", "bad_hook"),
    (lambda **said: Hooks().command(["true"], **said), {"phases": ["FAILED"]}, "timeout", "timeout_s", "bad_hook"),
    (scope_user, {}, "attribute", "attributes", "bad_setting"),
    (mutual_tls, {}, "subject_heder", "subject_header", "bad_setting"),
    (bearer_jwt, {}, "audienc", "audience", "bad_setting"),
    (fresh_credential, {"max_age_ms": 1}, "claim", "claims", "bad_setting"),
    (hmac_guard, {}, "secrt", "secret", "bad_setting"),
]


@pytest.mark.parametrize(
    ("take", "needs", "misspelt", "meant", "code"), TAKERS, ids=[f"{row[2]}-{row[4]}" for row in TAKERS]
)
def test_a_setting_that_nobody_knows_is_refused_by_name(
    take: Callable[..., Any], needs: dict[str, Any], misspelt: str, meant: str, code: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        take(**needs, **{misspelt: None})
    assert raised.value.code == code
    assert f"unknown setting: {misspelt} (did you mean {meant}?)" in str(raised.value)


@pytest.mark.parametrize("take", [Policy.standard, Quota, TwoPhaseTransport], ids=["policy", "quota", "client"])
def test_what_resembles_nothing_gets_no_hint(take: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting: qqqq, zzzz$"):
        take(zzzz=1, qqqq=2)


MISUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fresh_credential(claims=lambda _head: {}), "fresh_credential: say max_age_ms="),  # type: ignore[call-arg]
    (lambda: TwoPhaseMiddleware(app), "TwoPhaseMiddleware: say identify= and policies="),  # type: ignore[call-arg]
    (lambda: TwoPhaseMiddleware(app, policies={}), "TwoPhaseMiddleware: say identify="),  # type: ignore[call-arg]
    (lambda: TwoPhaseMiddleware(app, anonymous), "TwoPhaseMiddleware: say identify= and policies="),  # type: ignore[call-arg]
    (lambda: TwoPhaseTransport("memory:"), "TwoPhaseTransport: settings are given by their names"),  # type: ignore[call-arg]
    (lambda: Policy(5), "Policy: settings are given by their names"),  # type: ignore[call-arg]
    (lambda: Shipping(token="hush"), "Shipping: say url="),  # type: ignore[call-arg]
    (lambda: calling("x"), "calling: settings are given by their names"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("misuse", "words"), MISUSED, ids=[words for _misuse, words in MISUSED])
def test_a_setting_that_is_not_said_is_named(misuse: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        misuse()
    assert raised.value.message == words


def test_a_type_error_of_somebody_elses_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise TypeError("not of how it was called")

    monkeypatch.setattr("twophp.client.transports.settings_of", broken)
    with pytest.raises(TypeError, match="not of how it was called"):
        TwoPhaseTransport(**CLIENT)


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("TWOPHP_PATIENCE_S", "soon", "TWOPHP_PATIENCE_S: 'soon' is no number"),
        ("TWOPHP_LEDGER_RETENTION_MS", "1.5", "TWOPHP_LEDGER_RETENTION_MS: '1.5' is no whole number"),
        ("TWOPHP_ALLOW_INSECURE", "yes", "TWOPHP_ALLOW_INSECURE: 'yes' is neither 1 nor 0"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named_with_what_it_says(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, words: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as raised:
        TwoPhaseTransport(**CLIENT)
    assert raised.value.message == words


WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (Policy, {"ttl_ms": "5", "delta_ms": 1}, "ttl_ms must be a whole number"),
    (Policy.standard, {"ttl_ms": 1.5}, "ttl_ms must be a whole number, not 1.5"),
    (Policy.standard, {"lease_ms": True}, "lease_ms must be a whole number, not True"),
    (Policy.standard, {"transparent": "no"}, "transparent must be True or False"),
    (Policy.standard, {"mode": None}, "mode must be one of sync, async"),
    (Policy.standard, {"replay": ["REUSE"]}, "replay must be one of REJECT, REUSE"),
    (Tries, {"attempts": "5"}, "attempts must be a whole number, not '5'"),
    (Tries, {"attempts": True}, "attempts must be a whole number, not True"),
    (Tries, {"attempts": 2.5}, "attempts must be a whole number, not 2.5"),
    (TwoPhaseTransport, CLIENT | {"clock": 5}, "clock must be a callable"),
    (TwoPhaseTransport, CLIENT | {"credentials": {"a": "b"}}, "credentials must be a callable"),
    (TwoPhaseTransport, CLIENT | {"central": 5}, "central must be a URL, or None"),
    (TwoPhaseTransport, CLIENT | {"central_interval_s": "5"}, "central_interval_s must be a number of seconds"),
    (options_of, {"extension": ["parent"]}, "must be a mapping"),
]


@pytest.mark.parametrize(("take", "said", "words"), WRONG, ids=[words for _take, _said, words in WRONG])
def test_a_setting_of_the_wrong_kind_says_which_and_what_was_expected(
    take: Callable[..., Any], said: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        take(**said)


def test_every_variable_that_is_read_is_known() -> None:
    read = {name for path in SRC.rglob("*.py") for name in re.findall(r'"(TWOPHP_[A-Z_]*[A-Z])"', path.read_text())}
    assert read <= KNOWN
    assert {name.removesuffix("_FILE") for name in KNOWN} <= read


def test_a_variable_that_nobody_reads_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOPHP_PATIENCES", "hush")
    monkeypatch.setenv("TWOPHP_CENTRAL_SERVICE_HOST", "10.0.0.1")  # Kubernetes, about a service of that name.
    monkeypatch.setenv("TWOPHP_CENTRAL_PORT_8700_TCP", "tcp://10.0.0.1:8700")
    for _ in range(2):
        with caplog.at_level(logging.WARNING, logger="twophp"):
            TwoPhaseTransport(**CLIENT).close()
            TwoPhaseMiddleware(app, **SERVER)
    told = [record.getMessage() for record in caplog.records if "TWOPHP_" in record.getMessage()]
    assert len(told) == 1
    assert "TWOPHP_PATIENCES (did you mean TWOPHP_PATIENCE_S?)" in told[0]
    assert "hush" not in caplog.text


def test_what_is_known_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unknown(dict.fromkeys([*KNOWN, "PATH", "TWOPHPX"], "1"))
    assert caplog.records == []


def test_a_flag_in_the_environment_is_1_or_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_CENTRAL_EVENTS", "yes")
    with pytest.raises(ConfigError, match="TWOPHP_CENTRAL_EVENTS"):
        TwoPhaseTransport(**CLIENT, central="https://central.example", central_token="hush")
