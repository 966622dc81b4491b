"""``twophp doctor --app`` and ``--certificate``: what a service says, and what it serves with."""

from __future__ import annotations

import datetime as dt
import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.cli.doctoring import Told, doctor
from tests.cli.running import FOUND, OK, UNUSABLE, run
from tests.stores.orders import raw

# The application.

APP = """
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from twophp import Policy, anonymous
    from twophp.asgi import Outgoing, TwoPhaseMiddleware

    print("what an application prints is no result")


    async def handler(request):
        return Response()


    def as_alice(head):
        return "alice"


    plain = Starlette(routes=[
        Route("/orders", handler, methods=["POST"]),
        Route("/orders/{id:int}/lines/{line:uuid}", handler, methods=["PUT"]),
    ])
    app = Starlette(routes=plain.routes)
    app.add_middleware(TwoPhaseMiddleware, service="orders", **{settings})
    wrapped = TwoPhaseMiddleware(plain, service="orders", **{settings})
"""
GOOD = """{
    "store": "sqlite:///orders.db", "identify": as_alice,
    "policies": {"POST /orders": Policy.standard(), "PUT /orders/{id}/lines/{line}": Policy.standard()},
}"""
numbers = itertools.count()


def app(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: str, name: str = "app") -> Told:
    """Write an application with these settings, and see the doctor with it."""
    module = f"doctors_patient_{next(numbers)}"
    text = textwrap.dedent(APP).replace("{settings}", settings)
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return doctor("--app", f"{module}:{name}")


@pytest.mark.parametrize("name", ["app", "wrapped"])
def test_an_application_that_is_well(well_kept: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    told = app(well_kept.parent, monkeypatch, GOOD, name)
    assert told.code == OK
    assert told["app"][1] == "service orders, store sqlite:///orders.db"
    assert told["policy POST /orders"] == ("ok", "TTL 30.0 s, grace 5.0 s, lease 30.0 s, sync", "")
    assert {"identity", "tls.insecure", "tls.proxies", "tls.outgoing", "keys.seals"} <= set(told.findings)


@pytest.mark.req("A-61", "A-64", "A-24")
def test_an_application_that_takes_risks(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    risky = """{
        "store": "sqlite:///orders.db", "identify": anonymous, "allow_insecure": True,
        "trusted_proxies": ["10.0.0.0/8"],
        "policies": {"POST /orders": Policy.standard(replay="REUSE", on_crash="rerun")},
    }"""
    told = app(well_kept.parent, monkeypatch, risky)
    assert told.code == FOUND
    assert [told[check][0] for check in ("identity", "tls.insecure", "tls.proxies")] == ["warn"] * 3
    assert "10.0.0.0/8" in told["tls.proxies"][1]
    policy = told.findings["policy POST /orders"]
    assert [level for level, *_ in policy] == ["warn", "warn"]
    assert "late_confirm_guard" in policy[0][1]
    assert "runs again" in policy[1][1]
    guarded = risky.replace('"allow_insecure": True', '"late_confirm_guard": lambda head, intent: True')
    assert len(app(well_kept.parent, monkeypatch, guarded).findings["policy POST /orders"]) == 1


@pytest.mark.req("A-24")
@pytest.mark.parametrize(
    ("identify", "left"),
    [
        ("anonymous", "nobody is known, so no late confirm is let in"),
        ("as_alice", "a late confirm needs no more than the same identity"),
    ],
)
def test_late_confirms_without_a_guard_are_told_as_at_the_servers_start(
    well_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, identify: str, left: str
) -> None:
    settings = GOOD.replace("as_alice", identify).replace("Policy.standard()", 'Policy.standard(replay="REUSE")', 1)
    (policy,) = app(well_kept.parent, monkeypatch, settings).findings["policy POST /orders"]
    assert policy[1] == f"REUSE without a late_confirm_guard: {left}"
    assert "late_confirm_guard=" in policy[2]
    assert set(caplog.messages) == {f"POST /orders: {policy[1]}"}  # The doctor makes the middleware, as a server does.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("ttl_ms=500", "one slow round trip"),
        ("ttl_ms=4_000_000, horizon_ms=10**9", "is kept for"),
        ("delta_ms=0", "no grace"),
        ("delta_ms=40_000", "longer than the TTL"),
        ("lease_ms=2_000, processing_timeout_ms=1_000", "taken for dead"),
        ("lease_ms=900_000", "stays PROCESSING"),
    ],
)
def test_times_that_will_hurt(well_kept: Path, monkeypatch: pytest.MonkeyPatch, changes: str, words: str) -> None:
    settings = GOOD.replace("Policy.standard()", f"Policy.standard({changes})", 1)
    found = app(well_kept.parent, monkeypatch, settings).findings["policy POST /orders"]
    assert any(level == "warn" and words in means for level, means, _remedy in found)


def test_keys_that_nothing_falls_under(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = """{
        "store": "sqlite:///orders.db", "identify": as_alice,
        "policies": {key: Policy.standard() for key in (
            "*", "/*", "POST /orders", "POST /order", "/x", "POST /x", "PUT /x", "PATCH /x", "DELETE /x",
            "PUT /orders/{id}/lines/{line}", "/z/*", "/z/{a}")},
    }"""
    told = app(well_kept.parent, monkeypatch, settings)
    wrong = {
        check.removeprefix("policy "): means.split(":")[0]
        for check, found in told.findings.items()
        for level, means, _remedy in found
        if level == "warn" and check.startswith("policy")
    }
    never, nowhere = "no request ever falls under it", "the application has no route for it"
    taken = dict.fromkeys(("POST /order", "POST /x", "PUT /x", "PATCH /x", "DELETE /x", "/z/{a}"), nowhere)
    assert wrong == {"*": never, "/x": never} | taken


def test_what_is_sent_to_unchecked_receivers(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked = GOOD.replace(
        '"identify"', '"outgoing": Outgoing(ssl_context=__import__("ssl")._create_unverified_context()), "identify"'
    )
    assert app(well_kept.parent, monkeypatch, unchecked)["tls.outgoing"][0] == "fail"
    local = GOOD.replace(
        '"identify"',
        '"outgoing": Outgoing(rules=type(Outgoing().rules)(allow_insecure_loopback=True)), "identify"',
    )
    assert app(well_kept.parent, monkeypatch, local)["tls.outgoing"][0] == "warn"


def test_an_application_that_cannot_start(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = GOOD.replace('"identify"', '"trusted_proxies": ["0.0.0.0/0"], "identify"')
    module = f"doctors_patient_{next(numbers)}"
    text = textwrap.dedent(APP).replace("{settings}", trusting).partition("wrapped =")[0]
    (well_kept.parent / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(well_kept.parent)
    monkeypatch.syspath_prepend(well_kept.parent)
    level, means, _remedy = doctor("--app", f"{module}:app")["app"]
    assert (level, "[bad_proxy]" in means) == ("fail", True)
    assert doctor("--app", f"{module}:plain")["app"][0] == "fail"


def test_the_database_of_another_service_or_none(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(well_kept, "UPDATE meta SET value = 'stock' WHERE name = 'service'")
    told = app(well_kept.parent, monkeypatch, GOOD)
    assert told["store.owner"][0] == "fail"
    assert app(well_kept.parent, monkeypatch, GOOD.replace("sqlite:///orders.db", "memory:"))["store.file"][0] == "warn"


def test_an_application_and_another_database(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"doctors_patient_{next(numbers)}"
    settings = GOOD.replace("orders.db", "other.db")
    text = textwrap.dedent(APP).replace("{settings}", settings)
    (well_kept.parent / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(well_kept.parent)
    monkeypatch.syspath_prepend(well_kept.parent)
    found = doctor(well_kept, "--app", f"{module}:app").findings["app"]
    assert [level for level, *_ in found] == ["ok", "warn"]
    assert not (well_kept.parent / "other.db").exists()


@pytest.mark.parametrize("spelled", ["nothing", "no.such.module:app", "json:no_such_name", ":app", "json:"])
def test_an_application_that_is_not_there(spelled: str) -> None:
    result = run("doctor", "--app", spelled)
    assert (result.exit_code, result.stdout) == (UNUSABLE, "")
    assert result.stderr.startswith("error[bad_app]: ")


def test_an_application_that_exits_while_it_is_imported_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"doctors_patient_{next(numbers)}"
    (tmp_path / f"{module}.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("doctor", "--app", f"{module}:app")
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[bad_app]")


def test_nothing_to_look_at() -> None:
    result = run("doctor")
    assert (result.exit_code, "--app" in result.stderr) == (UNUSABLE, True)


# Certificates.


def certificate(path: Path, *, key: Any, begins: int, ends: int) -> Path:
    """A certificate for localhost, valid from so many days from now to so many."""
    now = dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orders")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now + dt.timedelta(days=begins))
        .not_valid_after(now + dt.timedelta(days=ends, minutes=5))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("orders.internal")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize(
    ("begins", "ends", "level", "words"),
    [
        (-1, 90, "ok", "for orders.internal, until "),
        (-1, 10, "warn", "it expires in 10 days"),
        (-9, -1, "fail", "it expired on "),
        (1, 90, "fail", "it is valid from "),
    ],
)
def test_certificates(tmp_path: Path, begins: int, ends: int, level: str, words: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    path = certificate(tmp_path / "orders.pem", key=key, begins=begins, ends=ends)
    found = doctor("--certificate", path)[f"certificate {path}"]
    assert (found[0], found[1].startswith(words)) == (level, True)


def test_a_small_key_and_no_certificate(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505 - it is to be found wanting
    path = certificate(tmp_path / "small.pem", key=key, begins=-1, ends=90)
    assert [level for level, *_ in doctor("--certificate", path).findings[f"certificate {path}"]] == ["ok", "warn"]
    path.write_text("no certificate", encoding="utf-8")
    assert doctor("--certificate", path)[f"certificate {path}"][0] == "fail"
