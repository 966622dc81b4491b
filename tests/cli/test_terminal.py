"""What is printed on a terminal of 80 columns."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import termios
from pathlib import Path

import pytest

from tests.cli.running import FOUND, command
from tests.cli.world import call, ledgers, participants
from tests.stores.orders import raw

COLUMNS = 80
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NUMBERS = [f"{number}6b7f2c4-5d3e" for number in range(3)]  # With it, an id is as long as a UUID or longer.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three calls: one paired, one whose client has lost its row, one indeterminate."""
    folder = tmp_path_factory.mktemp("calls")

    async def fill() -> None:
        async with participants(folder, "checkout", "orders") as who:
            for number in NUMBERS:
                await call(who["checkout"], who["orders"], number)

    asyncio.run(fill())
    raw(folder / "checkout.db", "DELETE FROM client_entry WHERE client_correlation_id LIKE '%-corr-id1%'")
    lost = "UPDATE intent SET phase = 'FAILED', indeterminate = 1 WHERE server_correlation_id LIKE '%-corr-id2%'"
    raw(folder / "orders.db", lost)
    return folder


def on_a_terminal(*arguments: object, columns: int = COLUMNS) -> tuple[int, list[str]]:
    """Run a command on a terminal of its own: how it ended, and the lines that a reader sees."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, columns))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "CI", "NO_COLOR"}}
    with subprocess.Popen(  # noqa: S603 - our own command
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environ | {"TERM": "xterm"}
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65_536):
                said += part
        except OSError:  # How Linux says that nobody holds the other end any more.
            pass
        finally:
            os.close(ours)
    return process.returncode, COLOUR.sub("", said.decode()).replace("\r\n", "\n").splitlines()


def test_a_pair_is_told_in_80_columns_with_whole_ids(folder: Path) -> None:
    status, lines = on_a_terminal("ledger", "pairs", *ledgers(folder))
    assert status == FOUND
    assert [line for line in lines if len(line) > COLUMNS] == []
    for number in NUMBERS:
        sides = [line.split() for line in lines if line.endswith(f"-corr-id{number}")]
        assert [(side[0], side[-1]) for side in sides] == [
            (role, f"{role}-corr-id{number}") for role in ("client", "server")
        ]
    heads = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert sorted(heads) == sorted(["PAIRED", "SERVER_ONLY", "CONFLICT", "3"])


def test_a_wide_terminal_has_the_table(folder: Path) -> None:
    _status, lines = on_a_terminal("ledger", "pairs", *ledgers(folder), columns=300)
    assert lines[0].split()[:3] == ["verdict", "age", "endpoint"]
    assert len(lines) == len(NUMBERS) + 3
