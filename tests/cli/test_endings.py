"""How a command ends when its surroundings fail it: one line, and an exit code that no finding has."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import OK, UNUSABLE, command, run

INTERRUPTED, UNREAD = 130, 141
WIDE = b"\xff"  # No UTF-8.


def ended(*arguments: object, stdout: int) -> tuple[int, str]:
    done = subprocess.run(command(*arguments), stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [("ledger", "pairs"), ("ledger", "tail", "--json"), ("keys", "list")])
def test_nobody_reads_on(well_kept: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert ended(*arguments, well_kept, stdout=write) == (UNREAD, "")
    finally:
        os.close(write)


def test_a_report_that_cannot_be_written_is_no_finding(well_kept: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for arguments in (("ledger", "verify"), ("ledger", "pairs", "--json"), ("doctor",)):
            code, said = ended(*arguments, well_kept, stdout=full.fileno())
            assert (code, said.splitlines()) == (UNUSABLE, ["error[os_error]: [Errno 28] No space left on device"])


def test_ctrl_c_is_no_finding(well_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("twophp.cli.ledger.verify_file", interrupted)
    result = run("ledger", "verify", well_kept)
    assert (result.exit_code, result.output) == (INTERRUPTED, "interrupted\n")


@pytest.mark.parametrize(
    "spelled",
    [
        lambda file: ("ledger", "show", WIDE, file),
        lambda file: ("obligations", "list", file, "--flow", WIDE),
        lambda file: ("obligations", "release", file, WIDE),
        lambda file: ("obligations", "report", file, "--since", WIDE),
    ],
)
def test_an_argument_that_is_no_text(well_kept: Path, spelled: Callable[[Path], tuple[object, ...]]) -> None:
    arguments = [os.fsdecode(one) if isinstance(one, bytes) else one for one in spelled(well_kept)]
    result = run(*arguments)
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[bad_text]")


def test_a_terminal_without_our_letters_is_shown_others(well_kept: Path) -> None:
    environ = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    arguments = command("ledger", "initiated", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", well_kept)
    done = subprocess.run(arguments, capture_output=True, check=False, env=environ)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (OK, b"caf? made 0 calls\n", b"")


def test_a_folder_that_cannot_be_made_is_one_line(well_kept: Path) -> None:
    result = run("demo", "--once", "--keep", well_kept / "below")
    assert (result.exit_code, result.stderr.split(":")[0]) == (UNUSABLE, "error[os_error]")
