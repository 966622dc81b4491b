"""The command line: what it prints, where, and the exit codes that scripts use."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.running import FOUND, OK, UNUSABLE, document, run
from tests.stores import forging
from tests.stores.orders import everything_opens, orders, raw
from twophp import __version__
from twophp.cli import main
from twophp.cli.output import counted
from twophp.core.errors import StoreError
from twophp.stores import keys as keys_module
from twophp.stores.keys import begin_rotation
from twophp.stores.ring_file import RingFile

ORDERS = range(3)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with orders(path) as service:
            for n in ORDERS:
                await service.take(n)

    path = tmp_path / "orders.db"
    asyncio.run(fill())
    return path


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_the_version() -> None:
    assert run("--version").stdout == f"twophp, version {__version__}\n"


def commands(group: click.Group, *above: str) -> list[list[str]]:
    found = [[*above]]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, *above, name) if isinstance(command, click.Group) else [[*above, name]]
    return found


@pytest.mark.parametrize("command", commands(main), ids=" ".join)
def test_help_teaches_with_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == OK
    is_group = not command or "Commands:" in result.stdout
    assert is_group or f"Example:\n    twophp {' '.join(command)}" in result.stdout
    listed = result.stdout.partition("Commands:")[2] if is_group else ""
    assert "..." not in listed  # Every description is whole.


# twophp ledger verify


@pytest.mark.parametrize("spell", [url, str])
def test_an_untouched_journal_holds(database: Path, spell: Any) -> None:
    result = run("ledger", "verify", spell(database))
    assert result.exit_code == OK
    assert "the journal holds: 9 lines, 3 records\nhead 9:" in result.stdout
    assert result.stderr == ""


def test_the_printed_head_can_be_expected_later(database: Path) -> None:
    head = run("ledger", "verify", database).stdout.split("head ")[1].strip()
    assert document(run("ledger", "verify", database, "--json"))["head"] == head
    assert run("ledger", "verify", database, "--expect", head).exit_code == OK
    other = head.replace(head[-1], "0" if head[-1] != "0" else "1")
    assert run("ledger", "verify", database, "--expect", other).exit_code == FOUND
    assert run("ledger", "verify", database, "--expect", f"99{head}").exit_code == FOUND
    bad = run("ledger", "verify", database, "--expect", "nonsense")
    assert bad.exit_code == UNUSABLE
    assert bad.stderr.startswith("error[bad_head]: 'nonsense' is not SEQ:HASH")
    unset = run("ledger", "verify", database, "--expect", "")  # A script's unset variable proves nothing.
    assert unset.stderr.startswith("error[bad_head]: ")


def test_tampering_is_printed_with_its_place(database: Path) -> None:
    forging.edit(database, 5, "detail", "[red]x")
    result = run("ledger", "verify", database)
    assert result.exit_code == FOUND
    assert result.stdout.startswith("edited_line: line 5 (intent s1, PROCESSING): ")
    assert "the journal does not hold" in result.stdout
    report = document(run("ledger", "verify", database, "--json"))
    assert (report["holds"], report["findings_count"]) == (False, 1)
    assert [report["findings"][0][field] for field in ("what", "seq", "subject")] == ["edited_line", 5, "s1"]


def test_one_is_no_plural() -> None:
    assert [counted(n, "record") for n in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]


def test_what_cannot_be_verified_is_one_line(tmp_path: Path) -> None:
    result = run("ledger", "verify", tmp_path / "none.db")
    assert (result.exit_code, result.stdout) == (UNUSABLE, "")
    assert result.stderr == f"error[no_such_database]: there is no database {tmp_path}/none.db\n"
    assert list(tmp_path.iterdir()) == []
    unknown = run("ledger", "verify", "mysql://here").stderr
    assert unknown.startswith("error[unknown_store]: ")
    assert "memory:" not in unknown  # It would be refused next.
    assert "an empty name is no database" in run("ledger", "verify", "").stderr
    (tmp_path / "text.db").write_text("no database" * 100)
    result = run("ledger", "verify", tmp_path / "text.db")
    assert result.stderr == f"error[not_a_database]: {tmp_path}/text.db: the file is not a database\n"
    assert run("ledger", "verify", "memory:").exit_code == UNUSABLE
    assert run("ledger", "verify").exit_code == UNUSABLE


# twophp keys


def test_keys_are_listed_with_their_rows(database: Path) -> None:
    [key] = document(run("keys", "list", url(database), "--json"))
    assert (key["rows"], key["active"], key["in_ring"]) == (6, True, True)
    assert key["created_at"] == "2026-01-01T00:00:00Z"
    printed = run("keys", "list", url(database))
    assert printed.exit_code == OK
    assert [key["name"], "active", "6", "2026-01-01T00:00:00Z"] == printed.stdout.splitlines()[1].split()
    secret = base64.b64encode(RingFile.beside(str(database)).load().keys[0].key).decode()
    assert secret not in printed.output


def test_rows_of_a_key_that_is_not_in_the_ring_are_a_finding(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(database, "UPDATE intent SET payload = x'00' WHERE id = 1")
    monkeypatch.setenv("TWOPHP_KEYS", f"mine:{base64.b64encode(b'k' * 32).decode()}")
    result = run("keys", "list", database)
    assert result.exit_code == FOUND
    assert "not in the ring" in result.stdout
    assert "(not sealed bytes)" in result.stdout
    listed = {
        line["name"]: (line["rows"], line["in_ring"]) for line in document(run("keys", "list", database, "--json"))
    }
    assert listed["mine"] == (0, True)
    assert listed[""] == (1, False)


@pytest.mark.req("A-62")
def test_keys_are_rotated(database: Path) -> None:
    result = run("keys", "rotate", url(database))
    assert result.exit_code == OK
    assert ": 6 parts sealed with it\n" in result.stdout
    assert f"back up {database}.keys now" in result.stdout
    again = document(run("keys", "rotate", url(database), "--json"))
    assert (again["minted"], again["resealed"], again["unopened"], again["retired"]) == (True, 6, [], [])
    assert asyncio.run(everything_opens(database, ORDERS))
    assert run("ledger", "verify", database).exit_code == OK


def test_a_row_that_does_not_open_is_named_and_is_a_finding(database: Path) -> None:
    raw(database, "UPDATE intent SET response = CAST(response || x'00' AS BLOB) WHERE id = 2")
    result = run("keys", "rotate", database)
    assert result.exit_code == FOUND
    assert result.stdout.startswith("tampered: s1, response: ")
    assert "5 parts sealed with it" in result.stdout


def test_old_keys_are_retired_after_their_grace(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = document(run("keys", "list", database, "--json"))[0]["name"]
    assert document(run("keys", "rotate", database, "--retire", "--json"))["retired"] == []
    kept, active = run("keys", "retire", database).stdout.splitlines()
    assert kept.startswith(f"key {old} stays: a running service may just have sealed something with it; try again in ")
    assert active.endswith(" stays: it is the active one")
    monkeypatch.setattr(keys_module, "RETIRE_GRACE_MS", 0)
    assert run("keys", "retire", database).stdout.splitlines() == [f"retired key {old}", active]
    assert document(run("keys", "retire", database, "--json")) == []
    assert f"retired key {document(run('keys', 'list', database, '--json'))[0]['name']}" in (
        run("keys", "rotate", database, "--retire").stdout
    )
    assert asyncio.run(everything_opens(database, ORDERS))


def test_why_a_key_stays_is_said(database: Path) -> None:
    ring = RingFile.beside(str(database))
    ring.edit(begin_rotation)  # And there it was cut short.
    old, new = ring.load().keys
    assert run("keys", "retire", database).stdout.splitlines() == [
        f"key {old.name} stays: 6 parts sealed with it; run `twophp keys rotate` first",
        f"key {new.name} stays: it is the active one",
    ]
    said = run("keys", "rotate", database, "--retire").stdout
    assert f"key {old.name} stays: a running service may just" in said
    # The run that made the key had no time to say so.
    assert (
        f"active key {new.name}: 6 parts sealed with it\nback up {ring.path} now: without key {new.name} nothing opens"
        in said
    )


def test_keys_from_the_environment_are_sealed_with_and_left_alone(
    database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = RingFile.beside(str(database)).load().keys[0]
    spelled = f"mine:{base64.b64encode(b'k' * 32).decode()},{old.name}:{base64.b64encode(old.key).decode()}"
    (tmp_path / "mounted").write_text(spelled, encoding="utf-8")
    monkeypatch.setenv("TWOPHP_KEYS_FILE", str(tmp_path / "mounted"))
    result = run("keys", "rotate", database)
    assert (result.exit_code, result.stdout) == (OK, "active key mine: 6 parts sealed with it\n")
    for command in (("rotate", "--retire"), ("retire",)):
        refused = run("keys", *command, database)
        assert refused.exit_code == UNUSABLE
        assert "are yours to remove" in refused.stderr
    assert asyncio.run(everything_opens(database, ORDERS))


def test_a_missing_ring_is_one_line_and_no_new_one(database: Path, tmp_path: Path) -> None:
    ring = Path(f"{database}.keys")
    ring.unlink()
    for command in ("list", "rotate", "retire"):
        result = run("keys", command, database)
        assert result.exit_code == UNUSABLE
        assert result.stderr == f"error[ring_missing]: the key ring {ring} is missing\n"
    assert not ring.exists()
    raw(database, "UPDATE intent SET payload = NULL, response = NULL")
    assert "makes one on its first start" in run("keys", "list", database).stderr
    assert run("keys", "rotate", tmp_path / "none.db").stderr.startswith("error[no_such_database]: ")


# The command as it is installed


def test_an_error_of_ours_is_one_line_whatever_it_is(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise StoreError("the disk said [no]")

    monkeypatch.setattr(importlib.import_module("twophp.cli.ledger"), "verify_file", broken)
    result = run("ledger", "verify", database)
    assert (result.exit_code, result.stderr) == (UNUSABLE, "error[store_error]: the disk said [no]\n")


def test_a_real_process(database: Path) -> None:
    def process(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "twophp.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603

    fine = process("ledger", "verify", database, "--json")
    assert (fine.returncode, fine.stderr) == (OK, "")
    assert json.loads(fine.stdout)["holds"] is True
    forging.delete(database, 9, 9)
    bad = process("ledger", "verify", database)
    assert (bad.returncode, bad.stderr) == (FOUND, "")
    assert "truncated: the journal ends at line 8" in bad.stdout
    wrong = process("ledger", "verify", f"{database}.none")
    assert (wrong.returncode, wrong.stdout) == (UNUSABLE, "")
    assert wrong.stderr.startswith("error[no_such_database]: ")
