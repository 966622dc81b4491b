"""``twophp doctor``: each finding can be had, says what to do, and looking harms nothing."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import itertools
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.cli.running import FOUND, OK, UNUSABLE, command, document, run
from tests.stores.orders import T0, HandClock, orders, raw
from twophp.cli.doctor import command as doctor_command
from twophp.cli.doctor import store as doctor_store
from twophp.cli.doctor.clock import check_clock, check_store_time
from twophp.cli.doctor.store import check_file_system, mount_of
from twophp.core.policy import DAY_MS
from twophp.stores.clock import system_clock

YEAR_MS = 365 * DAY_MS


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with orders(path, clock=HandClock(system_clock() - DAY_MS)) as service:
            for number in range(3):
                await service.take(number)

    path = tmp_path / "orders.db"
    asyncio.run(fill())
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass(frozen=True)
class Told:
    """What a run found: its exit code, and of each check its level, what it means and what to do."""

    code: int
    findings: dict[str, list[tuple[str, str, str]]]

    def __getitem__(self, check: str) -> tuple[str, str, str]:
        (found,) = self.findings[check]
        return found


def doctor(*arguments: object) -> Told:
    result = run("doctor", *arguments, "--json")
    findings: dict[str, list[tuple[str, str, str]]] = {}
    for found in document(result)["findings"]:
        assert (found["level"] == "ok") == (found["remedy"] == ""), found
        findings.setdefault(found["check"], []).append((found["level"], found["means"], found["remedy"]))
    levels = {level for told in findings.values() for level, *_ in told}
    assert result.exit_code == (UNUSABLE if "fail" in levels else FOUND if "warn" in levels else OK)
    return Told(result.exit_code, findings)


def test_a_service_that_is_well(database: Path) -> None:
    before = files(database.parent)
    told = doctor(database)
    assert told.code == OK
    assert set(told.findings) == {
        *("keys.ring", "keys.age", "keys.seals"),
        *("store.file", "store.log", "store.disk", "store.space", "store.writes"),
        *("journal.head", "clock.store", "clock.steady"),
    }
    assert told["journal.head"][1] == "the newest 9 lines of 9 hold"
    assert told["keys.seals"][1] == "the ring has the keys of all 6 sealed parts"
    assert files(database.parent) == before
    printed = run("doctor", database)
    assert printed.exit_code == OK
    assert printed.stdout.startswith("ok    keys.ring: ")
    assert printed.stdout.endswith("11 ok, 0 warnings, 0 failures\n")


def test_it_writes_only_where_it_says_so(database: Path) -> None:
    assert "scratch database" in doctor(database)["store.writes"][1]
    assert "store.writes" not in doctor(database, "--no-write").findings
    help_ = " ".join(run("doctor", "--help").stdout.split())
    assert "Everything is only read, with one exception" in help_


def test_beside_a_running_service(database: Path) -> None:
    async def visit() -> Told:
        async with orders(database, clock=HandClock(system_clock())) as service:
            await service.register(8)
            told = await asyncio.to_thread(doctor, database)
            await service.settle(8)
        return told

    assert asyncio.run(visit()).code == OK
    assert run("ledger", "verify", database).exit_code == OK


def test_a_real_process(database: Path) -> None:
    done = subprocess.run(command("doctor", database), capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (OK, "")


# Keys.


@pytest.mark.req("A-62")
def test_a_ring_that_others_can_read(database: Path) -> None:
    ring = Path(f"{database}.keys")
    ring.chmod(0o640)
    level, means, remedy = doctor(database)["keys.ring"]
    assert (level, remedy) == ("fail", f"chmod 600 {ring}")
    assert "[ring_readable]" in means
    ring.chmod(0o600)
    ring.write_text("{", encoding="utf-8")
    assert doctor(database)["keys.ring"][0] == "fail"


def test_a_ring_that_is_gone(database: Path, tmp_path: Path) -> None:
    Path(f"{database}.keys").unlink()
    level, means, remedy = doctor(database)["keys.ring"]
    assert level == "fail"
    assert "holds sealed payloads" in means
    assert "backup" in remedy
    told = doctor(tmp_path / "new.db")
    assert (told["keys.ring"][0], told["store.file"][0]) == ("ok", "warn")
    assert not (tmp_path / "new.db").exists()


def test_seals_of_a_key_that_is_not_in_the_ring(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_KEYS", f"mine:{base64.b64encode(b'k' * 32).decode()}")
    told = doctor(database)
    assert told["keys.ring"][0] == "ok"
    level, means, _remedy = told["keys.seals"]
    assert (level, means.startswith("6 sealed parts cannot be opened")) == ("fail", True)
    monkeypatch.setenv("TWOPHP_KEYS", "nonsense")
    assert doctor(database)["keys.ring"][0] == "fail"


def test_a_mounted_file_of_keys(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "mounted"
    mounted.write_text(f"mine:{base64.b64encode(b'k' * 32).decode()}", encoding="utf-8")
    mounted.chmod(0o644)
    monkeypatch.setenv("TWOPHP_KEYS_FILE", str(mounted))
    assert doctor(database)["keys.ring"][0] == "warn"
    mounted.chmod(0o400)
    assert doctor(database)["keys.ring"][0] == "ok"
    mounted.unlink()
    assert doctor(database)["keys.ring"][0] == "fail"


def test_an_old_key_and_an_unfinished_rotation(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "system_clock", lambda: system_clock() + YEAR_MS)
    level, _means, remedy = doctor(database)["keys.age"]
    assert (level, remedy) == ("warn", f"twophp keys rotate {database}")
    ring = Path(f"{database}.keys")
    ring.write_text(ring.read_text().replace('"rotating": false', '"rotating": true'), encoding="utf-8")
    assert "cut short" in doctor(database)["keys.age"][1]


# The store.


@pytest.mark.parametrize(
    ("damage", "code"),
    [("PRAGMA user_version = 99", "schema_too_new"), ("PRAGMA application_id = 1", "foreign_database")],
)
def test_a_database_that_is_not_ours(database: Path, damage: str, code: str) -> None:
    raw(database, damage)
    level, means, _remedy = doctor(database)["store.schema"]
    assert (level, f"[{code}]" in means) == ("fail", True)


def test_no_folder_no_file_no_write_ahead_log(database: Path, tmp_path: Path) -> None:
    assert doctor(tmp_path / "none" / "orders.db")["store.file"][0] == "fail"
    assert not (tmp_path / "none").exists()
    raw(database, "PRAGMA journal_mode = DELETE")
    assert doctor(database)["store.log"][0] == "fail"
    database.chmod(0o666)
    assert doctor(database)["store.file"][2] == f"chmod o-w {database}"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET detail = 'x' WHERE seq = 5",
        "DELETE FROM journal WHERE seq = 5",
        "DELETE FROM journal WHERE seq = 9",
        "UPDATE head SET hash = zeroblob(32)",
        "DELETE FROM journal",
        "UPDATE journal SET detail = CAST(x'ff' AS TEXT) WHERE seq = 5",
    ],
)
@pytest.mark.parametrize("quick", [6, 1_000])
def test_a_journal_that_does_not_hold(database: Path, damage: str, quick: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_store, "QUICK_LINES", quick)
    assert doctor(database)["journal.head"][0] == "ok"
    raw(database, damage)
    level, _means, remedy = doctor(database)["journal.head"]
    assert (level, remedy) == ("fail", f"twophp ledger verify {database}")


MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:5 / /run rw - tmpfs tmpfs rw,size=100k
24 22 0:6 / /srv/with\\040space rw,nobarrier - xfs /dev/sdb rw
25 22 0:7 / /srv/nfs rw - nfs4 there:/x rw
26 22 0:8 / /srv/layers rw master:1 - overlay overlay rw,lowerdir=/a
nonsense
"""


@pytest.mark.parametrize(
    ("folder", "kind", "level"),
    [
        ("/var/lib/orders", "ext4", "ok"),
        ("/run/orders", "tmpfs", "warn"),
        ("/running", "ext4", "ok"),
        ("/srv/with space/orders", "xfs", "fail"),
        ("/srv/nfs", "nfs4", "fail"),
        ("/srv/layers/deep", "overlay", "warn"),
    ],
)
def test_what_a_database_lies_on(folder: str, kind: str, level: str) -> None:
    mount = mount_of(Path(folder), MOUNTINFO)
    assert mount is not None
    assert mount.kind == kind
    assert [found.level for found in check_file_system(Path(folder), mount, {})] == [level]


def test_a_disk_that_nobody_knows_and_one_that_is_never_synced() -> None:
    assert [found.level for found in check_file_system(Path("/x"), mount_of(Path("/x"), ""), {})] == ["warn"]
    mount = mount_of(Path("/x"), MOUNTINFO)
    lying = list(check_file_system(Path("/x"), mount, {"LD_PRELOAD": "libeatmydata.so"}))
    assert [found.level for found in lying] == ["fail", "ok"]


def test_space_speed_and_a_long_log(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_store, "LITTLE_BYTES", 1 << 62)
    monkeypatch.setattr(doctor_store, "SLOW_COMMIT_MS", -1)
    told = doctor(database)
    assert (told["store.space"][0], told["store.writes"][0]) == ("warn", "warn")
    monkeypatch.setattr(doctor_store, "NO_BYTES", 1 << 62)
    assert doctor(database)["store.space"][0] == "fail"

    async def with_a_log() -> Told:
        async with orders(database) as service:
            await service.register(8)
            monkeypatch.setattr(doctor_store, "LONG_LOG_BYTES", 0)
            return await asyncio.to_thread(doctor, database)

    assert asyncio.run(with_a_log())["store.log_size"][0] == "warn"


def test_a_folder_that_cannot_be_written() -> None:
    level, means, _remedy = doctor("/proc/orders.db")["store.writes"]  # Closed even to root.
    assert (level, "[store_read_only]" in means) == ("fail", True)


# The clock.


@pytest.mark.req("A-29")
@pytest.mark.parametrize(("ahead_ms", "level"), [(-DAY_MS, "ok"), (0, "ok"), (5_000, "warn"), (DAY_MS, "fail")])
def test_a_store_that_was_written_in_the_future(ahead_ms: int, level: str) -> None:
    (found,) = check_store_time(T0 + ahead_ms, T0)
    assert found.level == level


def test_a_clock_that_is_set_while_it_runs(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock(100, 100).level == "ok"
    assert check_clock(-5_000, 100).level == "warn"
    jumping = itertools.count(system_clock(), 10_000)
    monkeypatch.setattr(doctor_command, "system_clock", lambda: next(jumping))
    assert doctor(database)["clock.steady"][0] == "warn"


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


    def whoever(head):
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
    "store": "sqlite:///orders.db", "identify": whoever,
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
def test_an_application_that_is_well(database: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    told = app(database.parent, monkeypatch, GOOD, name)
    assert told.code == OK
    assert told["app"][1] == "service orders, store sqlite:///orders.db"
    assert told["policy POST /orders"] == ("ok", "TTL 30.0 s, grace 5.0 s, lease 30.0 s, sync", "")
    assert {"identity", "tls.insecure", "tls.proxies", "tls.outgoing", "keys.seals"} <= set(told.findings)


@pytest.mark.req("A-61", "A-64", "A-24")
def test_an_application_that_takes_risks(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    risky = """{
        "store": "sqlite:///orders.db", "identify": anonymous, "allow_insecure": True,
        "trusted_proxies": ["10.0.0.0/8"],
        "policies": {"POST /orders": Policy.standard(replay="REUSE", on_crash="rerun")},
    }"""
    told = app(database.parent, monkeypatch, risky)
    assert told.code == FOUND
    assert [told[check][0] for check in ("identity", "tls.insecure", "tls.proxies")] == ["warn"] * 3
    assert "10.0.0.0/8" in told["tls.proxies"][1]
    policy = told.findings["policy POST /orders"]
    assert [level for level, *_ in policy] == ["warn", "warn"]
    assert "late_confirm_guard" in policy[0][1]
    assert "runs again" in policy[1][1]
    guarded = risky.replace('"allow_insecure": True', '"late_confirm_guard": lambda head, intent: True')
    assert len(app(database.parent, monkeypatch, guarded).findings["policy POST /orders"]) == 1


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
def test_times_that_will_hurt(database: Path, monkeypatch: pytest.MonkeyPatch, changes: str, words: str) -> None:
    settings = GOOD.replace("Policy.standard()", f"Policy.standard({changes})", 1)
    found = app(database.parent, monkeypatch, settings).findings["policy POST /orders"]
    assert any(level == "warn" and words in means for level, means, _remedy in found)


def test_keys_that_nothing_falls_under(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = """{
        "store": "sqlite:///orders.db", "identify": whoever,
        "policies": {key: Policy.standard() for key in (
            "*", "/*", "POST /orders", "POST /order", "/x", "POST /x", "PUT /x", "PATCH /x", "DELETE /x",
            "PROPFIND /y", "PUT /orders/{id}/lines/{line}", "/z/*", "/z/{a}")},
    }"""
    told = app(database.parent, monkeypatch, settings)
    wrong = {
        check.removeprefix("policy "): means.split(":")[0]
        for check, found in told.findings.items()
        for level, means, _remedy in found
        if level == "warn" and check.startswith("policy")
    }
    never, nowhere = "no request ever falls under it", "the application has no route for it"
    taken = dict.fromkeys(("POST /order", "POST /x", "PUT /x", "PATCH /x", "DELETE /x", "/z/{a}"), nowhere)
    assert wrong == {"*": never, "/x": never, "PROPFIND /y": never} | taken


def test_what_is_sent_to_unchecked_receivers(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked = GOOD.replace(
        '"identify"', '"outgoing": Outgoing(ssl_context=__import__("ssl")._create_unverified_context()), "identify"'
    )
    assert app(database.parent, monkeypatch, unchecked)["tls.outgoing"][0] == "fail"
    local = GOOD.replace(
        '"identify"',
        '"outgoing": Outgoing(rules=type(Outgoing().rules)(allow_insecure_loopback=True)), "identify"',
    )
    assert app(database.parent, monkeypatch, local)["tls.outgoing"][0] == "warn"


def test_an_application_that_cannot_start(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = GOOD.replace('"identify"', '"trusted_proxies": ["0.0.0.0/0"], "identify"')
    module = f"doctors_patient_{next(numbers)}"
    text = textwrap.dedent(APP).replace("{settings}", everybody).partition("wrapped =")[0]
    (database.parent / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(database.parent)
    monkeypatch.syspath_prepend(database.parent)
    level, means, _remedy = doctor("--app", f"{module}:app")["app"]
    assert (level, "[bad_proxy]" in means) == ("fail", True)
    assert doctor("--app", f"{module}:plain")["app"][0] == "fail"


def test_the_database_of_another_service_or_none(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(database, "UPDATE meta SET value = 'stock' WHERE name = 'service'")
    told = app(database.parent, monkeypatch, GOOD)
    assert told["store.owner"][0] == "fail"
    assert app(database.parent, monkeypatch, GOOD.replace("sqlite:///orders.db", "memory:"))["store.file"][0] == "warn"


def test_an_application_and_another_database(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"doctors_patient_{next(numbers)}"
    settings = GOOD.replace("orders.db", "other.db")
    text = textwrap.dedent(APP).replace("{settings}", settings)
    (database.parent / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(database.parent)
    monkeypatch.syspath_prepend(database.parent)
    found = doctor(database, "--app", f"{module}:app").findings["app"]
    assert [level for level, *_ in found] == ["ok", "warn"]
    assert not (database.parent / "other.db").exists()


@pytest.mark.parametrize("spelled", ["nothing", "no.such.module:app", "json:no_such_name", ":app", "json:"])
def test_an_application_that_is_not_there(spelled: str) -> None:
    result = run("doctor", "--app", spelled)
    assert (result.exit_code, result.stdout) == (UNUSABLE, "")
    assert result.stderr.startswith("error[bad_app]: ")


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
