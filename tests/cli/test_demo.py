"""``twophp demo`` as people run it: the draft's example with real processes, and no process is left behind."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.running import FOUND, OK, UNUSABLE, command, document, run
from tests.patience import PATIENCE_S
from twophp.cli.demo import chain, scenes
from twophp.cli.demo import show as show_module
from twophp.cli.demo.fleet import ChildFailed, Fleet, listening

# REQUIREMENTS, P-10.3-E01 to E14; the servers' ids are theirs to choose.
WORKED = [
    ("client-corr-id1", "client", "client", "serviceA", "client-corr-id1"),
    ("client-corr-id1", "server", "serviceA", None, "client-corr-id1"),
    ("client-corr-id2", "client", "serviceA", "serviceB1", "client-corr-id1"),
    ("client-corr-id2", "server", "serviceB1", None, "client-corr-id2"),
    ("client-corr-id3", "client", "serviceA", "serviceB2", "client-corr-id1"),
    ("client-corr-id3", "server", "serviceB2", None, "client-corr-id3"),
    ("client-corr-id4", "client", "serviceA", "serviceB3", "client-corr-id1"),
    ("client-corr-id4", "server", "serviceB3", None, "client-corr-id4"),
    ("client-corr-id5", "client", "serviceB1", "serviceC1", "client-corr-id2"),
    ("client-corr-id5", "server", "serviceC1", None, "client-corr-id5"),
    ("client-corr-id6", "client", "serviceB2", "serviceD1", "client-corr-id3"),
    ("client-corr-id6", "server", "serviceD1", None, "client-corr-id6"),
    ("client-corr-id7", "client", "serviceB3", "serviceE1", "client-corr-id4"),
    ("client-corr-id7", "server", "serviceE1", None, "client-corr-id7"),
]
COLUMNS = ("client_correlation_id", "actor", "source", "target", "parent_reference_id")
SERVICES = ["serviceA", "serviceB1", "serviceB2", "serviceB3", "serviceC1", "serviceD1", "serviceE1"]


def worked(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in COLUMNS) for row in rows]


def unsent(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"sync_timestamp": None} for row in rows]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of one whole run."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(  # noqa: S603
        command("demo", "--once", "--json", "--keep", folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (OK, "")
    document: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert document["folder"] == str(folder)
    return document


def ask(told: dict[str, Any], question: str, *more: str) -> Any:
    """What the ledger commands find afterwards, as the demo advises."""
    return document(run("ledger", question, *more, *told["ledgers"].values(), "--json"))


@pytest.mark.req("P-10.1-a", "P-10.2-c", "P-10.2-e", "P-10.3-a", "P-10.3-b", "P-10.3-c", "P-9.8-08")
def test_the_good_call_is_the_drafts_fourteen_rows(told: dict[str, Any]) -> None:
    good = told["scenes"]["good"]
    assert worked(good["rows"]) == WORKED
    assert {row["phase"] for row in good["rows"]} == {"COMMITTED"}
    server_ids = [row["server_correlation_id"] for row in good["rows"]]
    assert server_ids[::2] == server_ids[1::2]
    assert len(set(server_ids)) == 7
    assert (told["holds"], good["holds"]) == (True, True)


@pytest.mark.req("P-10.2-d", "P-10.4-a", "P-10.4-b", "P-10.4-c")
def test_the_ledgers_say_the_same_when_they_are_asked(told: dict[str, Any]) -> None:
    assert worked(ask(told, "tree", "client-corr-id5", "--rows")["rows"]) == WORKED
    initiated = worked(ask(told, "initiated", "serviceA")["rows"])
    assert [row for row in initiated if row[0].startswith("client-")] == [WORKED[2], WORKED[4], WORKED[6]]
    pairs = ask(told, "pairs")
    assert pairs["verdicts"] == {"PAIRED": 15}  # Seven calls that succeed, seven that fail, one that is not confirmed.


def test_nothing_ran_twice(told: dict[str, Any]) -> None:
    numbers = dict(zip(SERVICES, range(1, 8), strict=True))
    once = {
        service: {f"client-corr-id{number}": 1, f"failing-corr-id{number}": 1} for service, number in numbers.items()
    }
    assert told["runs"] == once


def test_a_failure_is_failed_on_both_sides(told: dict[str, Any]) -> None:
    failing = told["scenes"]["failing"]
    failed = {row["client_correlation_id"] for row in failing["rows"] if row["phase"] == "FAILED"}
    assert failed == {"failing-corr-id1", "failing-corr-id4", "failing-corr-id7"}
    assert [row["phase"] for row in failing["rows"]].count("FAILED") == 6
    assert failing["messages"][-1]["body"] == '{"error":"serviceE1: coffee is sold out"}'
    assert failing["verdicts"] == ["PAIRED"] * 7


@pytest.mark.req("P-10.4-d")
def test_what_is_never_confirmed_expires_on_both_sides(told: dict[str, Any]) -> None:
    stalled = told["scenes"]["stalled"]
    assert [row["phase"] for row in stalled["rows"]] == ["TTL_EXPIRED"] * 2
    assert stalled["messages"][0]["phase"] == "WAITING_CONFIRM"
    found = ask(told, "stalled")["stalled"]
    assert {(row["client_correlation_id"], row["source"]) for row in found} == {
        ("stalled-corr-id1", "client"),
        ("stalled-corr-id1", "serviceA"),
    }


@pytest.mark.req("P-10.2-d")
def test_a_confirm_that_is_said_again_gets_the_same_answer(told: dict[str, Any]) -> None:
    first = told["scenes"]["good"]["messages"][-1]
    assert told["scenes"]["replayed"]["messages"] == [first] * 3
    assert unsent(told["scenes"]["replayed"]["rows"]) == unsent(told["scenes"]["good"]["rows"])


@pytest.mark.req("P-10.1-b", "P-10.4-a")
def test_the_central_ledger_has_the_tree_too(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was gathered outlives the processes: the database is served once more, as the demo advises."""
    with served_again(told["central"]["store"]) as url:
        monkeypatch.setenv("TWOPHP_OPERATOR_TOKEN", told["central"]["token"])
        found = document(run("ledger", "tree", "client-corr-id3", url, "--rows", "--json"))
        assert worked(found["rows"]) == WORKED
        assert all(row["sync_timestamp"] is not None for row in found["rows"])
        assert document(run("ledger", "pairs", url, "--json"))["verdicts"] == {"PAIRED": 15}


@contextmanager
def served_again(store: str) -> Iterator[str]:
    serving = [sys.executable, "-m", "twophp.cli", "central", "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


# However it ends, no process is left behind.


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603
        command("demo", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()  # Its children hold on to nothing but their leash.


def read_until(process: subprocess.Popen[bytes], wanted: bytes) -> bytes:
    """Everything up to a line with this pattern."""
    assert process.stdout is not None
    heard = b""
    for line in process.stdout:
        heard += line
        if re.search(wanted, line):
            return heard
    raise AssertionError(heard.decode())


class Children:
    """The children a process has right now, watched: their ids may be given to others as soon as they are gone."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
        self._watched = {os.pidfd_open(int(pid)) for pid in listed.split()}
        self.count = len(self._watched)

    def are_gone(self) -> bool:
        poll = select.poll()
        for watched in self._watched:
            poll.register(watched, select.POLLIN)
        left = set(self._watched)
        while left:
            events = poll.poll(PATIENCE_S * 1_000)
            for watched, _event in events:
                poll.unregister(watched)
                left.discard(watched)
            if not events:
                break
        for watched in self._watched:
            os.close(watched)
        return not left


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGHUP, 128 + signal.SIGHUP),  # The terminal was closed.
        (signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_an_early_end_leaves_no_child(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with started("--once", "--keep", tmp_path / "demo") as process:
        read_until(process, b"Two-Phase HTTP in one minute")
        children = Children(process)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        assert children.count == 8  # Seven services and the central ledger.
        assert children.are_gone()


def test_it_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    with started("--keep", tmp_path / "demo") as process:
        story = read_until(process, b"Ctrl-C ends it").decode()
        children = Children(process)
        read_until(process, b"live1-corr-id7")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == OK
        assert children.are_gone()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    for said in ("✓ 14 rows in 8 ledgers", "E14  client-corr-id7", "FAILED on both sides", "✗ does not get through"):
        assert said in story
    assert "Exactly once, everywhere" in story
    assert "✗ does not get through" in story
    assert f"twophp ledger stalled {tmp_path}/demo/*.db" in story
    assert re.search(r"open +http://127\.0\.0\.1:\d+/tree\?id=client-corr-id1\n +log in as +tphp_", story)


def test_a_child_that_dies_ends_it_and_is_named(tmp_path: Path) -> None:
    with started("--json", "--keep", tmp_path / "demo") as process:
        told = msgspec.json.decode(read_until(process, b"^}"))
        children = Children(process)
        os.kill(told["services"]["serviceC1"]["pid"], signal.SIGKILL)
        assert process.wait(PATIENCE_S) == UNUSABLE
        assert children.are_gone()
        assert process.stderr is not None
        complaint = process.stderr.read().decode()
    assert complaint.startswith("error[demo_child_failed]: serviceC1 (process ")
    assert "was killed by signal 9" in complaint
    assert complaint.endswith(f"{tmp_path}/demo/serviceC1.log\n")


def test_a_child_that_cannot_start_is_named_with_its_log(tmp_path: Path) -> None:
    [listener] = listening(["broken"]).values()
    with Fleet(tmp_path) as fleet:
        fleet.start("broken", "no.such.module", listener=listener)
        with pytest.raises(ChildFailed, match=r"broken .* ended with exit code 1; its log ends with .*No module named"):
            fleet.wait_until_ready(PATIENCE_S)


def test_a_child_that_is_not_ready_in_time_is_named(tmp_path: Path) -> None:
    [listener] = listening(["slow"]).values()
    with Fleet(tmp_path) as fleet:
        fleet.start("slow", "twophp.cli.demo.service", "never read so early", listener=listener)
        with pytest.raises(ChildFailed, match=r"slow .* was not ready after 0 s; .*slow\.log"):
            fleet.wait_until_ready(0)


# What else the exit code says.


def test_a_row_that_is_not_as_in_the_draft_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "WORKED", chain.WORKED[:-1])
    monkeypatch.setattr(show_module, "SCENES", {"good": scenes.good})
    result = run("demo", "--once", "--keep", tmp_path)
    assert result.exit_code == FOUND
    assert "✗ 13 rows in 8 ledgers" in result.stdout
    assert "Something is not as it was promised." in result.stdout


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = run("demo", "--once")
    assert result.exit_code == UNUSABLE
    assert result.stderr.startswith("error[not_installed]: the demo needs ")
    assert "fastapi is not installed: it needs the extra twophp[demo]" in result.stderr


def test_it_begins_with_new_ledgers(tmp_path: Path) -> None:
    (tmp_path / "client.db").touch()
    result = run("demo", "--once", "--keep", tmp_path)
    assert (result.exit_code, result.stderr) == (
        UNUSABLE,
        f"error[not_empty]: {tmp_path} is not empty: every demo begins with new ledgers\n",
    )
