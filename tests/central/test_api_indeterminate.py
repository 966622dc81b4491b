"""What is indeterminate, over the central ledger's API."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.central.rows import row
from tests.central.served import Central, central, outcomes
from twophp.wire.rows import encode_batch


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Central]:
    with central(tmp_path_factory.mktemp("central")) as running:
        yield running


@pytest.fixture
def orders(here: Central) -> tuple[str, str]:
    return here.join("orders")


@pytest.mark.req("A-34", "P-10.4-c")
def test_what_is_indeterminate_is_told_filtered_counted_and_exported(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    endpoint: dict[str, Any] = {"service_endpoint": "orders/indeterminate"}
    lost = row("i-lost", guid, phase="FAILED", indeterminate=True, **endpoint)
    assert outcomes(here.push(secret, [lost, row("i-failed", guid, phase="FAILED", **endpoint)])) == ["stored"] * 2
    for asked, ids in (("true", ["client-i-lost"]), ("false", ["client-i-failed"])):
        for path, name in (("/v1/entries", "rows"), ("/v1/pairs", "pairs")):
            found = here.get(path, indeterminate=asked, **endpoint)[name]
            assert [one["client_correlation_id"] for one in found] == ids
            assert [one["indeterminate"] for one in found] == [asked == "true"]
    [line] = [
        one
        for one in here.get("/v1/reports/sla", since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z")["lines"]
        if one["service_endpoint"] == "orders/indeterminate"
    ]
    assert (line["calls"], line["failed"], line["indeterminate"]) == (2, 1, 1)
    table = pq.read_table(io.BytesIO(here.ask("GET", "/v1/export", params=endpoint | {"format": "parquet"}).content))
    assert sorted(table.column("indeterminate").to_pylist()) == [False, True]


@pytest.mark.req("A-34", "A-57")
def test_a_service_that_is_older_than_the_field_is_understood(here: Central, orders: tuple[str, str]) -> None:
    secret, guid = orders
    batch = json.loads(encode_batch([row("i-older", guid, phase="FAILED")]))
    del batch["rows"][0]["indeterminate"]
    answer = here.ask("POST", "/v1/entries", secret=secret, content=json.dumps(batch).encode())
    assert outcomes(answer) == ["stored"]
    [found] = here.get("/v1/entries", correlation_id="client-i-older")["rows"]
    assert found["indeterminate"] is False
