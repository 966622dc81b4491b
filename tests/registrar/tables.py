"""Tables to be examined: the rejected one as its document describes it, and a fit one to take criteria away from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

IU_ROUTE_ATTEMPT = """
CREATE TABLE iu_route_attempt (
    id               INTEGER PRIMARY KEY,
    idempotency_key  TEXT    NOT NULL,
    attempt_no       INTEGER NOT NULL DEFAULT 1 CHECK (attempt_no >= 1),
    route_kind       TEXT    NOT NULL CHECK (route_kind IN ('inbound', 'outbound')),
    status           TEXT    NOT NULL CHECK (status IN ('pending', 'dry_run', 'sent', 'skipped', 'failed', 'disabled')),
    UNIQUE (idempotency_key, attempt_no)
);
"""

FOLDER = Path(__file__).parent
FIT_SQLITE = (FOLDER / "fit_sqlite.sql").read_text(encoding="utf-8")
FIT_POSTGRES = (FOLDER / "fit_postgres.sql").read_text(encoding="utf-8")


def make(path: str, script: str) -> None:
    """Run a script on a file, which need not be there."""
    with closing(apsw.Connection(path)) as connection:
        connection.execute(script)
