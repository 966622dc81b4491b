"""Which statements a business transaction takes."""

from __future__ import annotations

import pytest

from twophp.core.errors import Refused
from twophp.storing.statements import refuse_reading


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  select * from shop",
        ";SELECT 1",
        "/* to be sure */ SELECT 1",
        "-- to be sure\nSELECT 1",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "WITH a (x) AS (VALUES (1)), b AS MATERIALIZED (SELECT ')' FROM a) SELECT * FROM b",
        'WITH "INSERT" AS (SELECT 1) SELECT * FROM "INSERT"',
        "VALUES (1)",
        "EXPLAIN INSERT INTO shop VALUES (1)",
        "INSERT INTO shop VALUES (';'); SELECT 1",
    ],
)
def test_what_only_reads_is_refused(sql: str) -> None:
    with pytest.raises(Refused) as refused:
        refuse_reading(sql)
    assert refused.value.code == "select_refused"


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "-- SELECT 1",
        "INSERT INTO shop VALUES (1); /* SELECT",
        "INSERT INTO shop SELECT * FROM other",
        "WITH a AS (SELECT 1 AS x) INSERT INTO shop SELECT x FROM a",
        "WITH RECURSIVE a (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) DELETE FROM shop WHERE id IN a",
        "UPDATE shop SET sku = (SELECT 1)",
        "REPLACE INTO shop VALUES ('SELECT')",
        "INSERT INTO shop VALUES (1) RETURNING id",
        "CREATE TABLE mine AS SELECT 1",
        "CREATE TEMP TRIGGER no BEFORE DELETE ON shop BEGIN UPDATE shop SET sku = 1; SELECT RAISE(ABORT, 'no'); END;",
        "DROP TABLE shop",
    ],
)
def test_what_changes_something_is_taken(sql: str) -> None:
    refuse_reading(sql)
