"""A file as version 12 of the schema wrote it: made from one of today's, row by row and line by line."""

from __future__ import annotations

from pathlib import Path

import apsw

from twophp.core.records import JournalEvent
from twophp.kernel.journal import GENESIS, link_line
from twophp.stores.sqlite.connection import APPLICATION_ID
from twophp.stores.sqlite.sql import migrations

OLD_SCHEMA = 12
_RECORD = (
    "id, client_correlation_id, server_correlation_id, principal, replay_key, callback, client_id_is_proxy, mode,"
    " service_endpoint, path, method, received_at, ttl_ms, delta_ms, counted_bytes, phase, version, confirmed_at,"
    " settled_at, status, resource_id, owner, lease_until, fence, has_payload, transaction_reference, due_at,"
    " request_digest, indeterminate"
)
_CALL = (
    "id, client_correlation_id, parent_reference_id, method, url, meant, target, service_endpoint, mode, sent_at,"
    " stage, version, row_version, server_correlation_id, ttl_ms, registered_at, confirm_by, confirmed_at,"
    " settled_at, status, resource_id, status_url, acknowledged_at, answered_at, owner, fence, attempts, last_error,"
    " due_at, indeterminate"
)
_OBLIGATION = (
    "id, obligation_id, flow, key, trace_id, intent, reserved_at, timeout_ms, state, version, settled_at, resolution,"
    " due_at, counted"
)
_JOB = "id, job_id, work, subject, name, created_at, state, version, attempts, due_at, last_error"
COPIED = (
    "INSERT INTO meta SELECT * FROM today.meta",
    f"INSERT INTO intent SELECT {_RECORD} FROM today.live_intent",  # noqa: S608
    "INSERT INTO entry SELECT * FROM today.entry",
    "INSERT INTO seal SELECT * FROM today.sealed_part",
    f"INSERT INTO obligation SELECT {_OBLIGATION} FROM today.obligation",  # noqa: S608
    f"INSERT INTO job SELECT {_JOB} FROM today.job",  # noqa: S608
    f"INSERT INTO call SELECT {_CALL} FROM today.call",  # noqa: S608
    "INSERT INTO quota SELECT * FROM today.quota",
)


def older(path: Path) -> Path:
    """The same ledger in a file beside it, ``old.db``, with the same key ring."""
    old = path.with_name("old.db")
    ring = path.with_name(path.name + ".keys")
    if ring.exists():
        old.with_name("old.db.keys").write_bytes(ring.read_bytes())
        old.with_name("old.db.keys").chmod(0o600)
    connection = apsw.Connection(str(old))
    connection.execute("PRAGMA journal_mode = WAL")
    for number, script in migrations():
        if number <= OLD_SCHEMA:
            connection.execute(script)
    connection.execute("ATTACH ? AS today", (str(path),))
    for statement in COPIED:
        connection.execute(statement)
    digest, seq = GENESIS, 0
    for seq, record, *fields, _hash in list(connection.execute("SELECT * FROM today.journal ORDER BY seq")):
        digest = link_line(digest, seq, record, JournalEvent(*fields))
        connection.execute("INSERT INTO journal VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", (seq, record, *fields, digest))
    at, next_id = next(connection.execute("SELECT max(at), max(next_id) FROM today.link"))
    connection.execute("UPDATE head SET seq = ?, hash = ?, at = ?, next_id = ?", (seq, digest, at, next_id))
    connection.execute("DETACH today")
    connection.execute(f"PRAGMA user_version = {OLD_SCHEMA}; PRAGMA application_id = {APPLICATION_ID};")
    connection.close()
    return old
