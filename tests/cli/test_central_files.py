"""``twophp central`` where it opens the database itself: what cannot work leaves nothing unnoticed behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import OK, UNUSABLE, command, document, run
from tests.patience import PATIENCE_S
from twophp.central.ingest.pull import management_token
from twophp.central.stores.opening import open_central

MADE = "operator token, shown this once: "


@pytest.fixture(autouse=True)
def no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_CENTRAL_MANAGEMENT_KEY", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> str:
    async def make() -> None:
        await (await open_central(url)).close()

    url = f"sqlite:///{tmp_path}/central.db"
    asyncio.run(make())
    return url


@pytest.fixture
def serving(store: str) -> Iterator[subprocess.Popen[str]]:
    arguments = command("central", "serve", "--store", store, "--port", 0)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("--tls-cert", __file__, "--tls-key", __file__), "bad_certificate"),
        (("--oidc-issuer", "nonsense", "--oidc-audience", "central"), "bad_url"),
        (("--oidc-issuer", "https://login.example", "--oidc-audience", "central", "--oidc-role", "x"), "VALUE=ROLE"),
    ],
)
def test_a_setting_that_cannot_work_makes_no_database(tmp_path: Path, wrong: tuple[str, ...], code: str) -> None:
    result = run("central", "serve", "--store", f"sqlite:///{tmp_path}/central.db", "--port", 0, *wrong)
    assert (result.exit_code, code in result.stderr) == (UNUSABLE, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_makes_no_token_that_nobody_is_told(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_CENTRAL_MANAGEMENT_KEY", "short")
    failed = run("central", "serve", "--store", store, "--port", 0)
    assert (failed.exit_code, failed.stderr.split(":")[0]) == (UNUSABLE, "error[bad_key]")
    assert document(run("central", "token", "list", store, "--json")) == []


def test_ctrl_c_is_how_it_is_meant_to_end(serving: subprocess.Popen[str]) -> None:
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith(MADE)
    assert "central ledger on" in serving.stdout.readline()
    serving.send_signal(signal.SIGINT)
    _rest, errors = serving.communicate(timeout=PATIENCE_S)
    assert (serving.returncode, errors) == (OK, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "list"),
        ("token", "create", "alice", "--role", "audit"),
        ("token", "revoke", "some-id"),
        ("management-token", "orders", "--store"),
    ],
)
def test_a_misspelled_database_is_not_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = run("central", *arguments, f"sqlite:///{tmp_path}/centrall.db")
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[no_such_database]")
    assert list(tmp_path.iterdir()) == []


def test_a_tokens_name_is_one_that_the_api_would_take(store: str) -> None:
    for name in ("", "a\nb", "x" * 300):
        result = run("central", "token", "create", name, store, "--role", "audit")
        assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[bad_parameter]")
        expected = "name must be a text of 1 to 256 characters, none of them a control character, not a text of length"
        assert f": {expected} {len(name)}\n" in result.stderr
    assert document(run("central", "token", "list", store, "--json")) == []


def test_a_management_key_that_is_no_key_gives_no_credential(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "central.db.management"
    key.write_bytes(b"")  # As an older version left it when it was killed.
    empty = run("central", "management-token", "orders", "--store", store)
    assert (empty.exit_code, empty.stderr.split(":")[0]) == (UNUSABLE, "error[bad_key]")
    assert run("central", "management-token", "", "--store", store).exit_code == UNUSABLE
    monkeypatch.setenv("TWOPHP_CENTRAL_MANAGEMENT_KEY", "k" * 31)
    assert "error[bad_key]" in run("central", "management-token", "orders").stderr
    monkeypatch.setenv("TWOPHP_CENTRAL_MANAGEMENT_KEY", "k" * 32)
    assert run("central", "management-token", "orders").stdout.strip() == management_token(b"k" * 32, "orders")


def test_a_management_key_is_there_whole_or_not_at_all(store: str, tmp_path: Path) -> None:
    dies = "import os; os.fsync = lambda _file: os.kill(os.getpid(), 9); from twophp.cli import main; main()"
    arguments = [sys.executable, "-c", dies, "central", "management-token", "orders", "--store", store]
    died = subprocess.run(arguments, check=False, env=os.environ)  # noqa: S603
    key = tmp_path / "central.db.management"
    assert (died.returncode, key.exists()) == (-signal.SIGKILL, False)
    assert run("central", "management-token", "orders", "--store", store).exit_code == OK
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 64)


def test_a_management_key_that_cannot_be_made_is_one_line(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    result = run("central", "management-token", "orders", "--store", store)
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[no_key]")
