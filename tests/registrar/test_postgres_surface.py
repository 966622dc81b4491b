"""The same criteria on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.registrar.tables import FIT_POSTGRES
from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.registrar import evaluate_surface, select_surface

IU_ROUTE_ATTEMPT = """
CREATE TABLE iu_route_attempt (
    id bigserial PRIMARY KEY,
    idempotency_key text NOT NULL,
    attempt_no integer NOT NULL DEFAULT 1 CHECK (attempt_no >= 1),
    route_kind text NOT NULL CHECK (route_kind IN ('inbound', 'outbound')),
    status text NOT NULL CHECK (status IN ('pending', 'dry_run', 'sent', 'skipped', 'failed', 'disabled')),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (idempotency_key, attempt_no)
);
"""

NOT_UNIQUE = "ALTER TABLE ledger DROP CONSTRAINT ledger_replay_key_key"
KNOCKED_OUT = {
    "no UNIQUE on replay_key": (NOT_UNIQUE, "a"),
    "a UNIQUE that waits for the commit": (
        f"{NOT_UNIQUE}; ALTER TABLE ledger ADD UNIQUE (replay_key) DEFERRABLE INITIALLY DEFERRED",
        "a",
    ),
    "a UNIQUE for some rows": (
        f"{NOT_UNIQUE}; CREATE UNIQUE INDEX ON ledger (replay_key) WHERE consumed_at > 0",
        "a",
    ),
    "a column that binds may be NULL": ("ALTER TABLE ledger ALTER run_id DROP NOT NULL", "b"),
    "any domain": ("ALTER TABLE ledger DROP CONSTRAINT ledger_domain_check", "c"),
    "a nonce that is not single-use": ("ALTER TABLE ledger DROP CONSTRAINT ledger_authorization_nonce_key", "d"),
    "any role may insert": ("GRANT INSERT ON ledger TO PUBLIC; GRANT USAGE ON SCHEMA public TO PUBLIC", "e"),
    "rows can be changed": ("DROP TRIGGER ledger_rows ON ledger", "eh"),
    "a trigger that is switched off": ("ALTER TABLE ledger DISABLE TRIGGER ledger_rows", "eh"),
    "it can be emptied": ("DROP TRIGGER ledger_all ON ledger", "eh"),
    "no audit": ("DROP TABLE registrar_audit", "f"),
    "an audit that can be changed": ("DROP TRIGGER audit_rows ON registrar_audit", "f"),
    "no room for the attempt": ("ALTER TABLE ledger DROP COLUMN attempt_id", "g"),
    "a crash empties it": ("ALTER TABLE ledger SET UNLOGGED", "h"),
}


def run(url: str, script: str) -> Any:
    async def main() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return (
                await connection.fetchval(script) if script.startswith("SELECT") else await connection.execute(script)
            )
        finally:
            await connection.close()

    return asyncio.run(main())


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """An empty one of its own."""
    run(postgres_url, "CREATE DATABASE surfaces TEMPLATE template0")
    yield postgres_url.removesuffix("postgres") + "surfaces"
    run(postgres_url, "DROP DATABASE surfaces WITH (FORCE)")


@pytest.mark.req("REG-6-00", "REG-6-a", "REG-6-b", "REG-6-c", "REG-6-d", "REG-6-e", "REG-6-f", "REG-6-g", "REG-6-h")
def test_a_fit_table_is_ready_and_left_as_it_was(database: str) -> None:
    run(database, FIT_POSTGRES)
    report = evaluate_surface(database, "ledger")
    assert report.code == "REPLAY_DOMAIN_READY_AS_CRITERIA", report.reasons
    assert run(database, "SELECT count(*) FROM ledger") == 0
    assert run(database, "SELECT count(*) FROM pg_roles WHERE rolname = 'twophp_probe_stranger'") == 0
    selection = select_surface(database)
    assert selection.chosen == "public.ledger"
    assert [report.table for report in selection.evaluated] == ["public.ledger", "public.registrar_audit"]


@pytest.mark.req("REG-6-00", "REG-6-09")
def test_each_lack_alone_is_found_and_named(database: str) -> None:
    for lack, (script, failed) in KNOCKED_OUT.items():
        run(database, f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; {FIT_POSTGRES}")
        run(database, script)
        report = evaluate_surface(database, "ledger")
        assert (lack, "".join(report.verdict.failed)) == (lack, failed), report.reasons


@pytest.mark.req("REG-2-01", "REG-2-03", "REG-2-06", "REG-7-03", "REG-RP-10")
def test_the_rejected_surface_is_refused_with_every_reason(database: str) -> None:
    run(database, IU_ROUTE_ATTEMPT)
    report = evaluate_surface(database, "iu_route_attempt")
    assert "".join(report.verdict.failed) == "abcdefgh"
    assert "tried: the same request is accepted again under another attempt" in report.reasons["a"]
    assert "tried: two transactions insert the same key at the same time" in report.reasons["d"]
    assert any("UPDATE changes" in reason for reason in report.reasons["e"])
    assert run(database, "SELECT count(*) FROM iu_route_attempt") == 0


@pytest.mark.req("REG-6-09")
def test_a_server_or_table_that_is_not_there_is_not_fit(database: str) -> None:
    assert evaluate_surface(database, "nothing").reasons["a"] == ("there is no table nothing",)
    assert not evaluate_surface("postgresql://nobody:secret@127.0.0.1:1/x", "ledger").fit


DIES_AT_THE_LAST_PROBE = """
CREATE SEQUENCE emptied;
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('emptied') = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER a_die BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION die();
"""


@pytest.mark.req("REG-6-09")
def test_a_connection_that_is_lost_proves_nothing_and_raises_nothing(database: str) -> None:
    run(database, FIT_POSTGRES + DIES_AT_THE_LAST_PROBE)
    report = evaluate_surface(database, "ledger")
    assert report.verdict.failed == ("h",)
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'surfaces' AND pid <> pg_backend_pid()"
    assert run(database, others) == 0


def test_a_password_that_is_not_escaped_is_quoted_nowhere() -> None:
    url = "postgresql://u:canary#51ab@127.0.0.1/x"
    assert "canary" not in str(evaluate_surface(url, "ledger").reasons)
    with pytest.raises(ConfigError) as error:
        select_surface(url)
    assert (error.value.code, error.value.__context__ is None or error.value.__suppress_context__) == ("bad_url", True)
    assert "canary" not in str(error.value)


def test_a_server_that_is_away_has_a_code() -> None:
    with pytest.raises(StoreUnavailable):
        select_surface("postgresql://nobody:secret@127.0.0.1:1/x")
