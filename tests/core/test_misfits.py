"""Why a document is not of its type, in words for whoever wrote it."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from twophp.core.misfits import UNREADABLE, WORDS, misfit, unreadable, unwritable


class Role(enum.Enum):
    AUDIT = "audit"
    OPERATIONS = "operations"


class Inner(msgspec.Struct):
    count: int = 0


class Document(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=5)]
    id: Annotated[str, Meta(pattern=r"\A[0-9]+\Z", extra={WORDS: "digits"})] = "1"
    roles: Annotated[list[Role], Meta(min_length=1)] = msgspec.field(default_factory=list)
    side: Literal["client", "server"] = "client"
    days: Annotated[int, Meta(ge=1, le=9)] | None = None
    least: Annotated[int, Meta(ge=1)] = 1
    share: float = 0.5
    flag: bool = False
    at: Annotated[dt.datetime, Meta(tz=True)] | None = None
    inner: list[Inner] = msgspec.field(default_factory=list)
    more: Mapping[str, int] = msgspec.field(default_factory=dict)


SAID = [
    (b"[]", "it must be an object, not a list of length 0"),
    (b"{}", "name is missing"),
    (b'{"name": "a", "nam": 1}', "nam is not known"),
    (b'{"name": 3}', "name must be a text of 1 to 5 characters, not 3"),
    (b'{"name": "too long"}', "name must be a text of 1 to 5 characters, not a text of length 8"),
    (b'{"name": "a", "id": "hush"}', "id must be digits, not a text of length 4"),
    (b'{"name": "a", "roles": []}', "roles must be a list of at least 1 entries, not a list of length 0"),
    (b'{"name": "a", "roles": ["root"]}', "roles[0] must be one of audit, operations, not 'root'"),
    (b'{"name": "a", "side": "both"}', "side must be one of client, server, not 'both'"),
    (b'{"name": "a", "days": 10}', "days must be a whole number from 1 to 9, or null, not 10"),
    (b'{"name": "a", "days": "1"}', "days must be a whole number from 1 to 9, or null, not a text of length 1"),
    (b'{"name": "a", "least": 0}', "least must be a whole number of at least 1, not 0"),
    (b'{"name": "a", "share": {}}', "share must be a number, not an object"),
    (b'{"name": "a", "flag": null}', "flag must be true or false, not null"),
    (b'{"name": "a", "flag": 1.5}', "flag must be true or false, not 1.5"),
    (
        b'{"name": "a", "at": "today"}',
        "at must be a time with its zone, such as 2026-01-31T12:00:00Z, or null, not a text of length 5",
    ),
    (b'{"name": "a", "inner": [{}, {"count": true}]}', "inner[1].count must be a whole number, not true"),
    (b'{"name": "a", "inner": [3]}', "inner[0] must be an object, not 3"),
    (b'{"name": "a", "more": {"x": "y"}}', "more[...] must be a whole number"),
    (b"", "it is no JSON: it ends too early"),
    (b'{"name": "a"} x', "it is no JSON (at byte 15)"),
    (b'{"name": "\xff"}', "it is no UTF-8 (at byte 0)"),
]


@pytest.mark.parametrize(("body", "words"), SAID, ids=[words for _body, words in SAID])
def test_what_does_not_fit_says_where_what_and_what_was_given(body: bytes, words: str) -> None:
    with pytest.raises(UNREADABLE) as raised:
        msgspec.json.decode(body, type=Document)
    assert misfit(raised.value, Document, body) == words


def test_what_was_converted_says_the_same() -> None:
    given = {"name": "a", "days": 0}
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(given, Document)
    assert misfit(raised.value, Document, given) == "days must be a whole number from 1 to 9, or null, not 0"


def test_without_a_type_it_is_said_that_it_is_unreadable() -> None:
    assert unreadable(RecursionError("maximum recursion depth exceeded")) == "it is nested too deeply"
    assert unreadable(msgspec.ValidationError("Expected `object`")) == "it is JSON of another kind"
    assert unreadable(ValueError("an instant lies before 1970")) == "an instant lies before 1970"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": object()}, "it holds a value of type object; JSON has"),
        ({("a",): 1}, "the names in an object must be texts"),
        ("\ud800", "it holds a text that is no UTF-8"),
    ],
)
def test_what_has_no_form_in_json_says_why(value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        msgspec.json.encode(value)
    assert unwritable(raised.value).startswith(words)
    assert unwritable(RecursionError()) == "it is nested too deeply"
    assert unwritable(OverflowError()) == "it holds a number that JSON cannot"
