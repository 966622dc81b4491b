"""``twophp doctor``: each finding can be had, says what to do, and looking harms nothing."""

from __future__ import annotations

import asyncio
import base64
import itertools
import subprocess
from pathlib import Path

import pytest

from tests.cli.doctoring import Told, doctor
from tests.cli.running import OK, command, run
from tests.stores.orders import T0, HandClock, orders, raw
from twophp.central.stores.opening import open_central
from twophp.cli.doctor import command as doctor_command
from twophp.cli.doctor import store as doctor_store
from twophp.cli.doctor.store import check_clock, check_file_system, check_store_time, mount_of
from twophp.core.policy import DAY_MS
from twophp.stores.clock import system_clock

YEAR_MS = 365 * DAY_MS


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_service_that_is_well(well_kept: Path) -> None:
    before = files(well_kept.parent)
    told = doctor(well_kept)
    assert told.code == OK
    assert set(told.findings) == {
        *("keys.ring", "keys.age", "keys.seals"),
        *("store.file", "store.log", "store.disk", "store.space", "store.writes"),
        *("journal.head", "clock.store", "clock.steady"),
    }
    assert told["journal.head"][1] == "the newest 9 lines of 9 hold"
    assert told["keys.seals"][1] == "the ring has the keys of all 6 sealed parts"
    assert files(well_kept.parent) == before
    printed = run("doctor", well_kept)
    assert printed.exit_code == OK
    assert printed.stdout.startswith("ok    keys.ring: ")
    assert printed.stdout.endswith("11 ok, 0 warnings, 0 failures\n")


def test_it_writes_only_where_it_says_so(well_kept: Path) -> None:
    assert "scratch database" in doctor(well_kept)["store.writes"][1]
    assert "store.writes" not in doctor(well_kept, "--no-write").findings
    help_ = " ".join(run("doctor", "--help").stdout.split())
    assert "Everything is only read, with one exception" in help_


@pytest.mark.parametrize("what", ["text", "foreign", "central", "folder"])
def test_nothing_is_written_beside_what_is_not_ours(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> None:
        await (await open_central(f"sqlite:///{path}")).close()

    path = tmp_path / "somebody's"
    if what == "text":
        path.write_text("a line\n" * 1_000, encoding="utf-8")
    elif what == "foreign":
        raw(path, "CREATE TABLE orders (id INTEGER)")
    elif what == "central":
        asyncio.run(make())
    else:
        path.mkdir()
    before = sorted(tmp_path.iterdir())

    def write(*_arguments: object) -> float:
        raise AssertionError("a scratch database was made")

    monkeypatch.setattr(doctor_store, "prove_writes", write)
    assert "store.writes" not in doctor(path).findings
    assert sorted(tmp_path.iterdir()) == before


def test_beside_a_running_service(well_kept: Path) -> None:
    async def visit() -> Told:
        async with orders(well_kept, clock=HandClock(system_clock())) as service:
            await service.register(8)
            told = await asyncio.to_thread(doctor, well_kept)
            await service.settle(8)
        return told

    assert asyncio.run(visit()).code == OK
    assert run("ledger", "verify", well_kept).exit_code == OK


def test_a_real_process(well_kept: Path) -> None:
    done = subprocess.run(command("doctor", well_kept), capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (OK, "")


# Keys.


@pytest.mark.req("A-62")
def test_a_ring_that_others_can_read(well_kept: Path) -> None:
    ring = Path(f"{well_kept}.keys")
    ring.chmod(0o640)
    level, means, remedy = doctor(well_kept)["keys.ring"]
    assert (level, remedy) == ("fail", f"chmod 600 {ring}")
    assert "[ring_readable]" in means
    ring.chmod(0o600)
    ring.write_text("{", encoding="utf-8")
    assert doctor(well_kept)["keys.ring"][0] == "fail"


def test_a_ring_that_is_gone(well_kept: Path, tmp_path: Path) -> None:
    Path(f"{well_kept}.keys").unlink()
    level, means, remedy = doctor(well_kept)["keys.ring"]
    assert level == "fail"
    assert "holds sealed payloads" in means
    assert "backup" in remedy
    told = doctor(tmp_path / "new.db")
    assert (told["keys.ring"][0], told["store.file"][0]) == ("ok", "warn")
    assert not (tmp_path / "new.db").exists()


def test_seals_of_a_key_that_is_not_in_the_ring(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_KEYS", f"mine:{base64.b64encode(b'k' * 32).decode()}")
    told = doctor(well_kept)
    assert told["keys.ring"][0] == "ok"
    level, means, _remedy = told["keys.seals"]
    assert (level, means.startswith("6 sealed parts cannot be opened")) == ("fail", True)
    monkeypatch.setenv("TWOPHP_KEYS", "nonsense")
    assert doctor(well_kept)["keys.ring"][0] == "fail"


def test_a_mounted_file_of_keys(well_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "mounted"
    mounted.write_text(f"mine:{base64.b64encode(b'k' * 32).decode()}", encoding="utf-8")
    mounted.chmod(0o644)
    monkeypatch.setenv("TWOPHP_KEYS_FILE", str(mounted))
    assert doctor(well_kept)["keys.ring"][0] == "warn"
    mounted.chmod(0o400)
    assert doctor(well_kept)["keys.ring"][0] == "ok"
    mounted.unlink()
    assert doctor(well_kept)["keys.ring"][0] == "fail"


def test_an_old_key_and_an_unfinished_rotation(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "wall_clock", lambda: system_clock() + YEAR_MS)
    level, _means, remedy = doctor(well_kept)["keys.age"]
    assert (level, remedy) == ("warn", f"twophp keys rotate {well_kept}")
    ring = Path(f"{well_kept}.keys")
    ring.write_text(ring.read_text().replace('"rotating": false', '"rotating": true'), encoding="utf-8")
    assert "cut short" in doctor(well_kept)["keys.age"][1]


# The store.


@pytest.mark.parametrize(
    ("damage", "code"),
    [("PRAGMA user_version = 99", "schema_too_new"), ("PRAGMA application_id = 1", "foreign_database")],
)
def test_a_database_that_is_not_ours(well_kept: Path, damage: str, code: str) -> None:
    raw(well_kept, damage)
    level, means, _remedy = doctor(well_kept)["store.schema"]
    assert (level, f"[{code}]" in means) == ("fail", True)


def test_a_central_ledgers_database_is_called_one(tmp_path: Path) -> None:
    async def make() -> None:
        await (await open_central(f"sqlite:///{path}")).close()

    path = tmp_path / "central.db"
    asyncio.run(make())
    _level, means, remedy = doctor(path)["store.schema"]
    assert "[central_database]" in means
    assert remedy == "use the service's own database"
    for asked in ("pairs", "stalled"):
        assert run("ledger", asked, path).stderr.startswith(f"error[central_database]: {path}: is a central ledger's")


def test_no_folder_no_file_no_write_ahead_log(well_kept: Path, tmp_path: Path) -> None:
    assert doctor(tmp_path / "none" / "orders.db")["store.file"][0] == "fail"
    assert not (tmp_path / "none").exists()
    level, means, _remedy = doctor(tmp_path)["store.file"]
    assert (level, means) == ("fail", f"{tmp_path} is no file")  # No first start makes one of it.
    raw(well_kept, "PRAGMA journal_mode = DELETE")
    assert doctor(well_kept)["store.log"][0] == "fail"
    well_kept.chmod(0o666)
    assert doctor(well_kept)["store.file"][2] == f"chmod o-w {well_kept}"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE link SET lines = replace(lines, 's1', 's9') WHERE id = 5",
        "DELETE FROM link WHERE id = 5",
        "DELETE FROM link WHERE id = 9",
        "UPDATE writer SET hash = zeroblob(32)",
        "DELETE FROM link",
        "DELETE FROM writer",
        "UPDATE link SET lines = CAST(x'ff' AS TEXT) WHERE id = 5",
    ],
)
@pytest.mark.parametrize("quick", [6, 1_000])
def test_a_journal_that_does_not_hold(
    well_kept: Path, damage: str, quick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_store, "QUICK_LINES", quick)
    assert doctor(well_kept)["journal.head"][0] == "ok"
    raw(well_kept, damage)
    level, _means, remedy = doctor(well_kept)["journal.head"]
    assert (level, remedy) == ("fail", f"twophp ledger verify {well_kept}")


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


def test_space_speed_and_a_long_log(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_store, "LITTLE_BYTES", 1 << 62)
    monkeypatch.setattr(doctor_store, "SLOW_COMMIT_MS", -1)
    told = doctor(well_kept)
    assert (told["store.space"][0], told["store.writes"][0]) == ("warn", "warn")
    monkeypatch.setattr(doctor_store, "NO_BYTES", 1 << 62)
    assert doctor(well_kept)["store.space"][0] == "fail"

    async def with_a_log() -> Told:
        async with orders(well_kept) as service:
            await service.register(8)
            monkeypatch.setattr(doctor_store, "LONG_LOG_BYTES", 0)
            return await asyncio.to_thread(doctor, well_kept)

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


def test_a_clock_that_is_set_while_it_runs(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock(100, 100).level == "ok"
    assert check_clock(-5_000, 100).level == "warn"
    jumping = itertools.count(system_clock(), 10_000)
    monkeypatch.setattr(doctor_command, "wall_clock", lambda: next(jumping))
    assert doctor(well_kept)["clock.steady"][0] == "warn"
