"""``twophp obligations``: what it prints, where, and the exit codes that scripts use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.obligations.scene import TIMEOUT_MS, Scene, Sink
from twophp.cli import main
from twophp.obligations import State, check_chain

OK, FOUND, REFUSED = 0, 1, 2


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene("sqlite", tmp_path)


def run(scene: Scene, command: str, *arguments: str) -> Result:
    result = CliRunner().invoke(main, ["obligations", command, str(scene.path), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(scene: Scene, command: str, *arguments: str, exit_code: int = OK) -> Any:
    result = run(scene, command, *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def ids(scene: Scene) -> list[str]:
    """One committed, one rolled back, one that leaked, one that is held."""
    with scene.tracker() as tracker:
        found = [tracker.reserve("publish", {"key": f"k{n}", "secret": n}, f"t{n}") for n in range(3)]
        tracker.commit(found[0], "t")
        tracker.rollback(found[1], "t")
        scene.clock.now += TIMEOUT_MS
        tracker.run_leak_scan()
        return [*found, tracker.reserve("revoke", {"key": "held"}, "t3", timeout_secs=10**9)]


def test_list(scene: Scene, ids: list[str]) -> None:
    listed = document(scene, "list")
    assert [line["obligation_id"] for line in listed] == ids[::-1]
    assert [line["state"] for line in listed] == ["Reserved", "RolledBack", "RolledBack", "Committed"]
    assert listed[1]["resolution"] == "leak_scan"
    assert not any(line["overdue"] for line in listed)
    assert [line["key"] for line in document(scene, "list", "--state", "reserved")] == ["held"]
    assert [line["key"] for line in document(scene, "list", "--flow", "publish", "--limit", "1")] == ["k2"]
    assert [line["key"] for line in document(scene, "list", "--trace", "t1")] == ["k1"]
    assert [line["key"] for line in document(scene, "list", "--before", ids[1])] == ["k0"]
    assert run(scene, "list", "--flow", "none").stdout == "no obligations are found\n"
    people = run(scene, "list").stdout
    assert all(oid in people for oid in ids)


def test_what_is_overdue_is_called_so(scene: Scene) -> None:
    with scene.tracker() as tracker:
        tracker.reserve("publish", None, "t")  # By the clock of the command line that was long ago.
    assert document(scene, "list")[0]["overdue"]
    assert "Overdue" in run(scene, "list").stdout
    assert document(scene, "report", exit_code=FOUND)["overdue"] == 1


def test_show(scene: Scene, ids: list[str]) -> None:
    shown = document(scene, "show", ids[2])
    assert [(event["code"], event["detail"]) for event in shown["history"]] == [
        ("OBL-001", "publish"),
        ("OBL-004", "ERR_OBL_LEAK_TIMEOUT"),
    ]
    assert "payload" not in shown
    assert document(scene, "show", ids[0], "--payload")["payload"] == {"key": "k0", "secret": 0}
    assert "OBL-004" in run(scene, "show", ids[2]).stdout
    nobody = run(scene, "show", "nobody")
    assert nobody.exit_code == REFUSED
    assert "error[ERR_OBL_NOT_FOUND]" in nobody.stderr


def test_release(scene: Scene, ids: list[str]) -> None:
    assert document(scene, "release", ids[3], "--trace", "INC-1")["changed"]
    assert not document(scene, "release", ids[3])["changed"]
    assert "rolled back before" in run(scene, "release", ids[3]).stdout
    committed = run(scene, "release", ids[0])
    assert committed.exit_code == REFUSED
    assert "error[ERR_OBL_ALREADY_COMMITTED]" in committed.stderr
    with scene.tracker() as tracker:
        found = tracker.get(ids[3])
        assert (found.state, found.resolution) == (State.ROLLED_BACK, "caller")
        assert tracker.history(ids[3])[-1].event.trace_id == "INC-1"
        tracker.reserve("revoke", {"key": "held"}, "t")


@pytest.mark.req("OBL-RBK-2", "A-71")
def test_what_the_command_line_releases_the_service_releases(scene: Scene, ids: list[str]) -> None:
    assert document(scene, "release", ids[3])["changed"]
    release = Sink()
    with scene.tracker(releases={"revoke": release}):
        release.wait_for(1)
    assert [(effect.obligation_id, effect.payload) for effect in release.seen] == [(ids[3], {"key": "held"})]


def test_to_look_into_a_payload_changes_nothing(scene: Scene, ids: list[str]) -> None:
    folder = scene.path.parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert document(scene, "show", ids[0], "--payload")["payload"] == {"key": "k0", "secret": 0}
    assert document(scene, "show", ids[1], "--payload")["payload"] is None  # Rolled back, and gone with it.
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.req("OBL-INV-5")
def test_audit(scene: Scene, ids: list[str], tmp_path: Path) -> None:
    export = run(scene, "audit", "--json").stdout_bytes
    assert check_chain(export.splitlines()) == 8
    assert ids[0] in run(scene, "audit").stdout
    file = tmp_path / "audit.jsonl"
    file.write_bytes(export)
    assert document(scene, "audit", "--check", str(file))["holds"]
    whole = run(scene, "audit", "--check", str(file))
    assert (whole.exit_code, whole.stdout.rstrip().endswith("says the same")) == (OK, True)
    first, *others = export.splitlines(keepends=True)
    file.write_bytes(first)  # An older export, or one that was cut off: the two look alike, so it is said.
    assert f"it goes on with {len(others)} event" in run(scene, "audit", "--check", str(file)).stdout
    file.write_bytes(export.replace(b'"t1"', b'"t9"', 1))
    assert not document(scene, "audit", "--check", str(file), exit_code=FOUND)["holds"]


def test_an_export_of_another_database_is_found(scene: Scene, ids: list[str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Scene("sqlite", tmp_path / "other")
    with other.tracker() as tracker:
        tracker.reserve("publish", None, "t")
    file = tmp_path / "audit.jsonl"
    file.write_bytes(run(other, "audit", "--json").stdout_bytes)
    found = document(scene, "audit", "--check", str(file), exit_code=FOUND)
    assert "line 1 of the export" in found["message"]
    assert ids


def test_report(scene: Scene, ids: list[str]) -> None:
    found = document(scene, "report", exit_code=FOUND)
    assert (found["verdict"], found["leaked"], found["leaked_by_flow"]) == ("LEAKS", 1, {"publish": 1})
    assert "LEAKS" in run(scene, "report").stdout
    calm = document(scene, "report", "--since", "2030-01-01T00:00:00Z")
    assert (calm["verdict"], calm["counts"]) == ("NO_LEAKS", [])
    assert run(scene, "report", "--since", "yesterday").exit_code == REFUSED
    assert ids


def test_looking_makes_nothing(scene: Scene) -> None:
    for command in ("list", "audit", "report"):
        result = run(scene, command)
        assert result.exit_code == REFUSED
        assert "error[no_such_database]" in result.stderr
    assert not scene.path.exists()


@pytest.mark.parametrize("command", ["", "list", "show", "release", "audit", "report"])
def test_help_teaches(command: str) -> None:
    result = CliRunner().invoke(main, ["obligations", *([command] if command else []), "--help"])
    assert result.exit_code == OK
    assert "Example" in result.output or not command
