"""Where keys come from, and that a ring is made once and never lost in silence."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import logging
import multiprocessing
import os
import stat
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.stores.orders import T0, HandClock, orders
from twophp import dev_ephemeral_key
from twophp.core.errors import ConfigError, KeyMissing, StoreUnavailable, TwoPHPError, VaultError
from twophp.core.identity import seal_context
from twophp.stores import ring_file
from twophp.stores.keys import (
    RETIRE_GRACE_MS,
    StoredRing,
    begin_rotation,
    configured_keys,
    finish_rotation,
    fresh_ring,
    parse_keys,
    retire,
)
from twophp.stores.memory import MemoryStore
from twophp.stores.ring_file import RingFile, Watch, watching_vault
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import StoreUrl, open_store, open_vault, parse_store_url
from twophp.stores.vault import AesGcmVault, KeyRing, key_name
from twophp.storing.reopening import open_ledger

CONTEXT = seal_context("orders", "s1", "payload")
A, B = base64.b64encode(b"a" * 32).decode(), base64.b64encode(b"\xff" * 32).decode()


def code_of(error: pytest.ExceptionInfo[TwoPHPError]) -> str:
    return error.value.code


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)


# A ring that a callable provides.


@pytest.mark.req("A-62")
def test_a_provider_is_asked_again_and_one_that_fails_takes_nothing_down(caplog: pytest.LogCaptureFixture) -> None:
    first, second = KeyRing({"1": b"a" * 32}, "1"), f"2:{B},1:{A}"
    in_force: list[KeyRing | str] = [first]
    vault = open_vault("memory:", lambda: in_force[-1])
    assert isinstance(vault, AesGcmVault)
    old = vault.seal(b"old", context=CONTEXT)
    in_force.append(second)
    by_another = open_vault("memory:", second).seal(b"theirs", context=CONTEXT)
    assert vault.open(by_another, context=CONTEXT) == b"theirs", "a key that is missing is asked for"
    new = vault.seal(b"new", context=CONTEXT)
    assert (key_name(old), key_name(new)) == (b"1", b"2")
    in_force.clear()
    with pytest.raises(KeyMissing):
        vault.open(open_vault("memory:").seal(b"", context=CONTEXT), context=CONTEXT)
    assert "the provider of the keys failed" in caplog.text
    assert [vault.open(one, context=CONTEXT) for one in (old, new)] == [b"old", b"new"]


@pytest.mark.req("A-62")
def test_a_provider_without_a_ring_stops_the_start() -> None:
    with pytest.raises(ConfigError) as refused:
        open_vault("memory:", lambda: b"no ring")  # type: ignore[arg-type]
    assert code_of(refused) == "bad_key_ring"


@pytest.mark.req("A-62")
def test_a_key_for_tests_leaves_nothing_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    sealed = open_vault(url, dev_ephemeral_key).seal(b"one", context=CONTEXT)
    assert open_vault(url, dev_ephemeral_key()).open(sealed, context=CONTEXT) == b"one", "one for the process"
    assert list(tmp_path.iterdir()) == []


# A ring that is spelled.


@pytest.mark.req("A-62")
@pytest.mark.parametrize("text", [f"new:{A},old:{B}", f" new:{A}\nold:{B}\n", f"new:{A},old:{B.replace('/', '_')}"])
def test_the_first_key_is_active_and_all_are_there(text: str) -> None:
    ring = parse_keys(text)
    assert ring.active == "new"
    assert ring.keys == {"new": b"a" * 32, "old": b"\xff" * 32}


@pytest.mark.parametrize("text", ["", " , ", A, f"a:{A},a:{B}", "a:AAAA", "a:!!!!", f"a b:{A}", f"a:{A}=", f"a:{A}A"])
def test_a_bad_spelling_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_keys(text)
    assert code_of(refused) == "bad_key_ring"
    assert A not in str(refused.value)


@pytest.mark.req("A-62")
def test_what_is_given_goes_before_the_environment(tmp_path: Path) -> None:
    given = KeyRing.generate()
    assert configured_keys(given, {"TWOPHP_KEYS": f"env:{A}"}) is given
    spelled = configured_keys(f"given:{A}", {})
    from_environment = configured_keys(None, {"TWOPHP_KEYS": f"env:{A}"})
    assert isinstance(spelled, KeyRing)
    assert isinstance(from_environment, KeyRing)
    assert (spelled.active, from_environment.active) == ("given", "env")
    assert configured_keys(None, {"TWOPHP_KEYS_FILE": str(tmp_path / "k")}) == tmp_path / "k"
    assert configured_keys(None, {"TWOPHP_KEYS": ""}) is None
    with pytest.raises(ConfigError, match="not both"):
        configured_keys(None, {"TWOPHP_KEYS": f"env:{A}", "TWOPHP_KEYS_FILE": "k"})


def test_a_mounted_file_of_keys_is_used_and_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one:{A}\n", encoding="utf-8")
    monkeypatch.setenv("TWOPHP_KEYS_FILE", str(file))
    vault = open_vault(f"sqlite:///{tmp_path}/orders.db")
    old = vault.seal(b"x", context=CONTEXT)
    file.write_text(f"two:{B}\none:{A}\n", encoding="utf-8")
    new = AesGcmVault(parse_keys(f"two:{B}")).seal(b"y", context=CONTEXT)
    assert vault.open(new, context=CONTEXT) == b"y"
    assert vault.open(old, context=CONTEXT) == b"x"
    assert not (tmp_path / "orders.db.keys").exists()


def test_a_mounted_file_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_KEYS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read"):
        open_vault(f"sqlite:///{tmp_path}/orders.db")


# A ring beside a database.


@pytest.mark.req("A-62")
def test_the_first_start_makes_a_private_ring_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "orders.db.keys"
    with caplog.at_level(logging.INFO):
        open_vault(f"sqlite:///{tmp_path}/orders.db")
        open_vault(f"sqlite:///{tmp_path}/orders.db")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [line] = caplog.messages
    assert str(path) in line
    stored = RingFile(path).load()
    assert base64.b64encode(stored.keys[0].key).decode() not in caplog.text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_ring_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    open_vault(f"sqlite:///{tmp_path}/orders.db")
    path = tmp_path / "orders.db.keys"
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}") as refused:
        open_vault(f"sqlite:///{tmp_path}/orders.db")
    assert code_of(refused) == "ring_readable"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"active": "a", "keys": "secret"}', b"\xff"])
def test_a_damaged_ring_is_refused_and_not_remade(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "orders.db.keys"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        open_vault(f"sqlite:///{tmp_path}/orders.db")
    assert code_of(refused) == "bad_key_ring"
    assert "secret" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_ring_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "orders.db.keys"
    path.write_text('{"version": 2, "active": "a", "keys": []}', encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="version 2"):
        open_vault(f"sqlite:///{tmp_path}/orders.db")


@pytest.mark.req("A-62")
def test_a_lost_ring_is_an_error_and_not_a_fresh_one(tmp_path: Path) -> None:
    async def fill() -> None:
        async with orders(tmp_path / "orders.db") as service:
            await service.register(1)

    asyncio.run(fill())
    ring = tmp_path / "orders.db.keys"
    ring.unlink()
    with pytest.raises(ConfigError, match="backup") as refused:
        open_vault(f"sqlite:///{tmp_path}/orders.db")
    assert code_of(refused) == "ring_missing"
    assert not ring.exists()


@pytest.mark.req("A-62")
def test_a_ring_that_is_another_databases_stops_the_start(tmp_path: Path) -> None:
    url, right, other = f"sqlite:///{tmp_path}/orders.db", f"1:{A}", f"2:{B}"

    async def fill() -> None:
        async with orders(tmp_path / "orders.db", vault=open_vault(url, right)) as service:
            await service.register(1)
            await service.register(2)

    asyncio.run(fill())
    for wrong in (other, lambda: other, KeyRing({"2": b"b" * 32}, "2"), f"1:{B}"):  # The last has the right name.
        with pytest.raises(ConfigError, match="belongs to the database") as refused:
            open_vault(url, wrong)
        assert code_of(refused) == "other_key_ring"
    open_vault(url, f"{other},{right}")
    open_vault(url, dev_ephemeral_key)  # For tests, which may begin again on the same file.


@pytest.mark.req("A-62")
def test_a_row_that_was_changed_says_nothing_about_the_ring(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"

    async def fill() -> None:
        async with orders(tmp_path / "orders.db") as service:
            await service.register(1)
            await service.register(2)

    asyncio.run(fill())
    with closing(apsw.Connection(str(tmp_path / "orders.db"))) as connection:
        connection.execute("UPDATE intent SET payload = x'00' WHERE id = (SELECT max(id) FROM intent)")
    assert isinstance(open_vault(url), AesGcmVault)


def test_an_empty_database_without_a_ring_gets_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SQLiteStore(str(tmp_path / "orders.db")):
            open_vault(f"sqlite:///{tmp_path}/orders.db")  # Also while the database is in use.

    asyncio.run(scenario())
    assert (tmp_path / "orders.db.keys").exists()


def test_rows_sealed_by_a_process_that_was_quicker_are_no_loss(tmp_path: Path) -> None:
    """A process that finds sealed rows looks for the ring once more: it was made before the rows."""
    file = RingFile(tmp_path / "ring")

    def another_starts_meanwhile() -> bool:
        RingFile(tmp_path / "ring").ensure(lambda: False)
        return True

    assert file.ensure(another_starts_meanwhile) == file.load()


def test_of_two_that_make_a_ring_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RingFile(tmp_path / "ring")
    real = os.link

    def link(source: str, target: Path) -> None:
        monkeypatch.setattr(os, "link", real)
        RingFile(target).ensure(lambda: False)  # The other one, at the last moment.
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    stored = file.ensure(lambda: False)
    assert stored == file.load()
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]


def start(database: str, gate: multiprocessing.synchronize.Barrier, names: multiprocessing.Queue[str]) -> None:
    gate.wait()
    open_vault(f"sqlite:///{database}")
    names.put(RingFile.beside(database).load().active)


def test_processes_that_start_at_once_use_the_same_ring(tmp_path: Path) -> None:
    forked = multiprocessing.get_context("spawn")
    gate, names = forked.Barrier(4), forked.Queue()
    processes = [forked.Process(target=start, args=(f"{tmp_path}/orders.db", gate, names)) for _ in range(4)]
    for process in processes:
        process.start()
    found = {names.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert found == {RingFile(tmp_path / "orders.db.keys").load().active}
    assert [path.name for path in tmp_path.iterdir()] == ["orders.db.keys"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        RingFile(tmp_path / "none" / "ring").ensure(lambda: False)
    assert code_of(refused) == "ring_cannot_write"


# A ring that changes.


def test_an_editor_never_undoes_another(tmp_path: Path) -> None:
    file = RingFile(tmp_path / "ring", clock=HandClock())
    first = file.ensure(lambda: False)

    def change(stored: StoredRing, now: int) -> StoredRing:
        return finish_rotation(begin_rotation(stored, now))

    for _ in range(3):
        file.edit(change)
    names = [key.name for key in file.load().keys]
    assert names[0] == first.active
    assert len(set(names)) == 4
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_lock_that_is_never_let_go_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_file, "LOCK_PAUSE_S", 0)
    file = RingFile(tmp_path / "ring")
    file.ensure(lambda: False)
    with file.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="try again") as refused:
            file.edit(begin_rotation)
    assert code_of(refused) == "ring_busy"
    file.edit(begin_rotation)


def test_a_ring_that_others_can_read_since_is_refused_while_the_service_runs(tmp_path: Path) -> None:
    file = RingFile(tmp_path / "ring")
    file.ensure(lambda: False)
    vault = AesGcmVault(file.ring(), Watch(file), seconds=iter(range(0, 100, 10)).__next__)
    vault.seal(b"x", context=CONTEXT)
    file.path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as refused:
        vault.seal(b"x", context=CONTEXT)
    assert code_of(refused) == "ring_readable"


def test_a_lock_on_a_replaced_file_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = RingFile(tmp_path / "ring"), RingFile(tmp_path / "ring")
    file.ensure(lambda: False)
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        other.edit(begin_rotation)  # Between our opening the file and our locking it.
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert file.edit(lambda stored, _now: finish_rotation(stored)).rotating is False
    assert len(file.load().keys) == 2


@pytest.mark.req("A-62")
def test_a_running_service_takes_a_rotation_up(tmp_path: Path) -> None:
    file = RingFile(tmp_path / "ring")
    file.ensure(lambda: False)
    seconds = iter(range(0, 100, 2))
    running, lagging = AesGcmVault(file.ring(), Watch(file), seconds=lambda: next(seconds)), AesGcmVault(file.ring())
    old = running.seal(b"old", context=CONTEXT)
    after = file.edit(begin_rotation)
    assert key_name(running.seal(b"new", context=CONTEXT)).decode() == after.active
    newer = file.edit(lambda stored, now: begin_rotation(finish_rotation(stored), now))
    new = watching_vault(RingFile(tmp_path / "ring")).seal(b"new", context=CONTEXT)
    assert key_name(new).decode() == newer.active
    assert running.open(new, context=CONTEXT) == b"new"
    assert running.open(old, context=CONTEXT) == b"old"
    with pytest.raises(KeyMissing):
        lagging.open(running.seal(b"", context=CONTEXT), context=CONTEXT)


def test_nothing_is_sealed_with_a_ring_that_vanished(tmp_path: Path) -> None:
    file = RingFile(tmp_path / "ring")
    file.ensure(lambda: False)
    seconds = iter(range(0, 100, 2))
    vault = AesGcmVault(file.ring(), Watch(file), seconds=lambda: next(seconds))
    sealed = vault.seal(b"x", context=CONTEXT)
    file.path.unlink()
    with pytest.raises(VaultError) as refused:
        vault.seal(b"y", context=CONTEXT)
    assert code_of(refused) == "ring_missing"
    assert vault.open(sealed, context=CONTEXT) == b"x"


def test_a_rotation_that_is_under_way_mints_no_second_key() -> None:
    stored = begin_rotation(fresh_ring(T0), T0 + 1)
    assert begin_rotation(stored, T0 + 2) is stored
    assert begin_rotation(finish_rotation(stored), T0 + 2).active != stored.active


def test_only_keys_that_are_unused_and_long_replaced_retire() -> None:
    stored = finish_rotation(begin_rotation(fresh_ring(T0), T0))
    old, active = (key.name for key in stored.keys)
    late = T0 + RETIRE_GRACE_MS
    assert [key.name for key in retire(stored, {}, late).keys] == [active]
    assert retire(stored, {old: 1}, late) == stored
    assert retire(stored, {}, late - 1) == stored


def test_no_representation_shows_a_key() -> None:
    stored = fresh_ring(T0)
    shown = f"{stored!r} {stored.ring()!r} {stored.keys[0]}"
    assert repr(stored.keys[0].key) not in shown


# Store URLs and whose ledger it is.


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("memory:", StoreUrl("memory")),
        ("sqlite:///orders.db", StoreUrl("sqlite", "orders.db")),
        ("sqlite:////var/lib/a b%20?.db", StoreUrl("sqlite", "/var/lib/a b%20?.db")),
    ],
)
def test_a_store_url_is_understood(url: str, where: StoreUrl) -> None:
    assert parse_store_url(url) == where


@pytest.mark.parametrize("url", ["", "orders.db", "sqlite:", "sqlite:///", "sqlite:///:memory:", "mysql://u:pw@h/d"])
def test_another_url_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(ConfigError, match=r"memory:, sqlite:///relative\.db") as refused:
        parse_store_url(url)
    assert code_of(refused) == "unknown_store"
    assert "pw" not in str(refused.value)


def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        stores = open_store("memory:"), open_store(f"sqlite:///{tmp_path}/orders.db")
        assert [type(store) for store in stores] == [MemoryStore, SQLiteStore]
        for store in stores:
            await store.close()

    asyncio.run(scenario())
    sealed = open_vault("memory:", f"a:{A}").seal(b"x", context=CONTEXT)
    assert AesGcmVault(parse_keys(f"a:{A}")).open(sealed, context=CONTEXT) == b"x"
    assert open_vault("memory:").seal(b"x", context=CONTEXT)


@pytest.mark.req("A-59")
@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/orders.db"])
def test_the_ledger_id_is_minted_once_and_another_service_is_refused(tmp_path: Path, url: str) -> None:
    async def scenario() -> None:
        store = open_store(url.format(tmp_path))
        first = await open_ledger(store, "orders", lambda: "guid-1")
        assert (first.source, first.service_ledger_id) == ("orders", "guid-1")
        assert await open_ledger(store, "orders", lambda: "guid-2") == first
        for name, code in (("payments", "other_service"), ("", "no_service")):
            with pytest.raises(ConfigError) as refused:
                await open_ledger(store, name, lambda: "guid-3")
            assert code_of(refused) == code
        await store.close()

    asyncio.run(scenario())


@pytest.mark.req("A-59")
def test_the_ledger_id_outlives_a_restart(tmp_path: Path) -> None:
    async def start_service(guid: str) -> str:
        async with SQLiteStore(str(tmp_path / "orders.db")) as store:
            return (await open_ledger(store, "orders", lambda: guid)).service_ledger_id

    assert asyncio.run(start_service("guid-1")) == asyncio.run(start_service("guid-2")) == "guid-1"
