"""Which table may serve as a replay store: proven by schema and by trying, and refused for every single lack."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from tests.registrar.scene import Scene
from tests.registrar.tables import FIT_SQLITE, IU_ROUTE_ATTEMPT, make
from twophp.registrar import SurfaceReport, evaluate_surface, select_surface
from twophp.stores.sqlite.surface import SQLiteBench

# What is taken away from the fit table, and which criteria then fail. Each is a substitution in its script.
KNOCKED_OUT = {
    "no UNIQUE on replay_key": (r"(replay_key +TEXT NOT NULL) UNIQUE", r"\1", r"replay_key = new.replay_key", "0", "a"),
    "no UNIQUE on the logical key": (
        r"(logical_request_key +TEXT NOT NULL) UNIQUE",
        r"\1",
        r"logical_request_key = new.logical_request_key",
        "0",
        "a",
    ),
    "a column that binds may be NULL": (r"(run_id +TEXT) NOT NULL", r"\1", "", "", "b"),
    "a column that binds is missing": (r" +canonical_target .*\n", "", "", "", "bg"),
    "any domain": (r" CHECK \(domain = 'registration'\)", "", "", "", "c"),
    "another domain": (r"'registration'", "'routing'", "", "", "c"),
    "a column of routing": (r"(consumed_at)", r"route_kind TEXT, \1", "", "", "c"),
    "a nonce that is not single-use": (
        r"(authorization_nonce +TEXT NOT NULL) UNIQUE",
        r"\1",
        r"OR authorization_nonce = new.authorization_nonce",
        "",
        "d",
    ),
    "any connection may insert": (r"twophp_registrar\(\)", "1", "", "", "e"),
    "rows can be changed": (r"CREATE TRIGGER ledger_update .*\n", "", "", "", "e"),
    "rows can be deleted": (r"CREATE TRIGGER ledger_delete .*\n", "", "", "", "eh"),
    "rows can be replaced": (r"(?s) SELECT raise\(ABORT, 'taken'\).*?nonce\);\n", "", "", "", "e"),
    "no audit": (r"(?s)CREATE TABLE registrar_audit.*", "", "", "", "f"),
    "an audit that can be changed": (r"CREATE TRIGGER audit_update .*\n", "", "", "", "f"),
    "an audit that can be cut": (r"CREATE TRIGGER audit_delete .*\n", "", "", "", "f"),
    "no room for the attempt": (r" +attempt_id .*\n", "", "", "", "g"),
    "an attempt in a key": (r"(consumed_at +INTEGER NOT NULL)", r"\1, UNIQUE (replay_key, attempt_id)", "", "", "a"),
    "a trigger that forgets": (
        r"\Z",
        "CREATE TRIGGER forget AFTER INSERT ON registrar_audit WHEN 0 BEGIN DELETE FROM ledger; END;",
        "",
        "",
        "h",
    ),
}


def examined(path: Path, script: str, table: str = "ledger") -> SurfaceReport:
    make(str(path), script)
    return evaluate_surface(f"sqlite:///{path}", table)


@pytest.mark.req("REG-6-00", "REG-6-a", "REG-6-b", "REG-6-c", "REG-6-d", "REG-6-e", "REG-6-f", "REG-6-g", "REG-6-h")
def test_our_own_table_and_any_fit_one_are_ready(filed: Scene, tmp_path: Path) -> None:
    filed.registered()
    before = filed.rows()
    own = evaluate_surface(filed.url, "registrar_consumed")
    assert (own.fit, own.code) == (True, "REPLAY_DOMAIN_READY_AS_CRITERIA")
    assert not any(own.reasons.values())
    assert filed.rows() == before  # All that was tried was rolled back.
    assert examined(tmp_path / "theirs.db", FIT_SQLITE).fit
    assert evaluate_surface("memory:", "registrar_consumed").fit


@pytest.mark.req("REG-6-00", "REG-6-a", "REG-6-b", "REG-6-c", "REG-6-d", "REG-6-e", "REG-6-f", "REG-6-g", "REG-6-h")
@pytest.mark.parametrize("lack", KNOCKED_OUT)
def test_each_lack_alone_is_found_and_named(tmp_path: Path, lack: str) -> None:
    pattern, replacement, second, other, failed = KNOCKED_OUT[lack]
    script = re.sub(pattern, replacement, FIT_SQLITE, count=1)
    script = script.replace(second, other) if second else script
    assert script != FIT_SQLITE
    report = examined(tmp_path / "x.db", script)
    assert (report.code, "".join(report.verdict.failed)) == ("REPLAY_SURFACE_NOT_FIT", failed), report.reasons
    assert report.verdict.domain_status == "REPLAY_DOMAIN_FAIL_CLOSED_UNTIL_SURFACE_FIT_PROVEN"


@pytest.mark.req("REG-2-01", "REG-2-02", "REG-2-03", "REG-2-04", "REG-2-05", "REG-2-06", "REG-7-02", "REG-RP-10")
def test_the_rejected_surface_is_refused_with_every_reason(tmp_path: Path) -> None:
    report = examined(tmp_path / "iu.db", IU_ROUTE_ATTEMPT, "iu_route_attempt")
    assert "".join(report.verdict.failed) == "abcdefgh"
    reasons = {letter: "\n".join(said) for letter, said in report.reasons.items()}
    assert "UNIQUE (idempotency_key, attempt_no) has an attempt in its key" in reasons["a"]
    assert "REPLAY_ATTEMPT_NO_BYPASS" in reasons["a"]
    assert "tried: the same request is accepted again under another attempt" in reasons["a"]
    for column in ("operation", "canonical_target", "run_id", "deployed_artifact_hash", "owner_or_approval_binding"):
        assert f"there is no column {column}" in reasons["b"]
    for column in ("replay_key", "authorization_nonce"):
        assert f"there is no column {column}" in reasons["g"]
    assert "route_kind is a column of routing" in reasons["c"]
    assert "tried: ON CONFLICT sees no conflict" in reasons["d"]
    assert "tried: a connection that is not the registrar's can insert" in reasons["e"]
    assert "there is no failure audit" in reasons["f"]
    assert "tried: an old row can be deleted" in reasons["h"]
    with apsw.Connection(str(tmp_path / "iu.db")) as connection:
        assert connection.execute("SELECT count(*) FROM iu_route_attempt").get == 0
        assert connection.execute("PRAGMA journal_mode").get == "delete"  # Nothing was turned into anything.


@pytest.mark.req("REG-6-09", "A-84")
@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "mysql://db/x", "sqlite:////nowhere/x.db", "nonsense", ""])
def test_what_cannot_be_probed_is_not_fit(url: str) -> None:
    report = evaluate_surface(url, "registrar_consumed")
    assert "".join(report.verdict.failed) == "abcdefgh"
    assert all(report.reasons.values())


@pytest.mark.req("REG-6-09")
def test_trouble_while_probing_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: object) -> None:
        raise RuntimeError("the probe fell over")

    monkeypatch.setattr(SQLiteBench, "delete", broken)
    report = examined(tmp_path / "x.db", FIT_SQLITE)
    assert "".join(report.verdict.failed) == "efh"
    assert "the probe fell over" in report.reasons["h"][0]
    refusing = examined(tmp_path / "y.db", FIT_SQLITE.replace("WHERE twophp_registrar() IS NOT 1", ""))
    assert "".join(refusing.verdict.failed) == "abcdefgh"  # A table that refuses everything proves nothing.
    assert refusing.reasons["h"] == ("no row could be inserted to try with: not the registrar",)
    assert evaluate_surface(f"sqlite:///{tmp_path}/x.db", "nothing").reasons["a"] == ("there is no table nothing",)
    (tmp_path / "text.db").write_text("no database" * 100)
    assert not evaluate_surface(f"sqlite:///{tmp_path}/text.db", "ledger").fit


def test_a_read_only_file_proves_nothing(tmp_path: Path) -> None:
    make(str(tmp_path / "x.db"), FIT_SQLITE)
    holder = apsw.Connection(str(tmp_path / "x.db"))
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twophp.stores.sqlite.surface.WAIT_MS", 1)
        assert not evaluate_surface(f"sqlite:///{tmp_path}/x.db", "ledger").fit
    holder.close()


@pytest.mark.req("REG-6-10", "A-95")
def test_existing_surfaces_are_evaluated_before_our_own_is_chosen(filed: Scene) -> None:
    make(filed.path, IU_ROUTE_ATTEMPT)
    named = select_surface(filed.url, ["iu_route_attempt", "intent", "obligation", "registrar_consumed"])
    assert [(report.table, report.fit) for report in named.evaluated] == [
        ("iu_route_attempt", False),
        ("intent", False),
        ("obligation", False),
        ("registrar_consumed", True),
    ]
    assert all(any(report.reasons.values()) for report in named.evaluated[:3])
    every = select_surface(filed.url)
    assert every.chosen == "registrar_consumed"
    tables = [report.table for report in every.evaluated]
    assert tables.index("iu_route_attempt") < tables.index("registrar_consumed")
    assert [report.table for report in every.evaluated if report.fit] == ["registrar_consumed"]


def test_it_can_be_asked_inside_an_event_loop(tmp_path: Path) -> None:
    async def main() -> bool:
        return examined(tmp_path / "x.db", FIT_SQLITE).fit

    assert asyncio.run(main())
