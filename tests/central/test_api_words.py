"""What the central ledger's API says of a wrong request: our words, for whoever sent it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.central.rows import row
from tests.central.served import Central, central
from twophp.wire.rows import row_document


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Central]:
    with central(tmp_path_factory.mktemp("central")) as running:
        yield running


@pytest.fixture(scope="module")
def orders(here: Central) -> tuple[str, str]:
    return here.join("orders")


DOCUMENTS: list[tuple[str, str, bytes, str]] = [
    ("/v1/tokens", "operations", b'{"name": "x"}', "roles is missing"),
    ("/v1/tokens", "operations", b'{"name": "x", "roles": ["audit"], "days": 3}', "days is not known"),
    (
        "/v1/tokens",
        "operations",
        b'{"name": "x", "roles": ["root"]}',
        "roles[0] must be one of audit, operations, compliance, service, not 'root'",
    ),
    (
        "/v1/tokens",
        "operations",
        b'{"name": "x", "roles": ["audit"], "expires_in_days": 0}',
        "expires_in_days must be a whole number from 1 to 3650, or null, not 0",
    ),
    ("/v1/tokens", "operations", b"{", "it is no JSON: it ends too early"),
]


@pytest.mark.req("A-10")
@pytest.mark.parametrize(("path", "role", "body", "words"), DOCUMENTS, ids=[words for *_, words in DOCUMENTS])
def test_a_document_that_does_not_fit(here: Central, path: str, role: str, body: bytes, words: str) -> None:
    answer = here.ask("POST", path, role=role, content=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (422, "bad_parameter", words)


ROWS: list[tuple[dict[str, Any], str]] = [
    ({"version": 0}, "row 1: version must be a whole number from 1 to 9007199254740991, not 0"),
    (
        {"client_correlation_id": "a b"},
        "row 1: client_correlation_id must be a text of 1 to 255 visible ASCII characters, not a text of length 3",
    ),
    ({"actor": "both"}, "row 1: actor must be one of client, server, not 'both'"),
    ({"phase_1_timestamp": "1969-01-01T00:00:00Z"}, "row 1: an instant lies before 1970"),
]


@pytest.mark.parametrize(("changes", "words"), ROWS, ids=[words for _changes, words in ROWS])
def test_a_row_that_does_not_fit(here: Central, orders: tuple[str, str], changes: dict[str, Any], words: str) -> None:
    secret, guid = orders
    good = row_document(row("good", guid))
    body = msgspec.json.encode({"rows": [good, good | changes]})
    answer = here.ask("POST", "/v1/entries", secret=secret, content=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (400, "bad_batch", words)


def test_a_body_that_is_no_batch(here: Central, orders: tuple[str, str]) -> None:
    answer = here.ask("POST", "/v1/entries", secret=orders[0], content=b"[]")
    assert answer.json()["detail"] == "not a batch: it must be an object, not a list of length 0"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"limit": "many"}, "query.limit: must be a whole number"),
        ({"limit": 0}, "query.limit: must be at least 1"),
        ({"limit": 10**6}, "query.limit: must be at most"),
        ({"phase": "NOPE"}, "query.phase.0: must be one of 'ABSENT'"),
        ({"actor": "both"}, "query.actor: must be one of 'client' or 'server'"),
        ({"indeterminate": "maybe"}, "query.indeterminate: must be true or false"),
        ({"source": ""}, "query.source: must be a text of length 1 at least"),
        ({"source": "x" * 300}, "query.source: must be a text of length 256 at most"),
    ],
)
def test_a_parameter_that_does_not_fit(here: Central, parameters: dict[str, Any], words: str) -> None:
    answer = here.ask("GET", "/v1/entries", params=parameters)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter")
    assert answer.json()["detail"].startswith(words)
