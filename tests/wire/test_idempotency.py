"""The field that clients without 2PHP send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.core.errors import WireError
from twophp.wire.idempotency import read_key

VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)


def read(*values: bytes) -> str | None:
    return read_key([(b"accept", b"*/*"), *((b"Idempotency-Key", value) for value in values)])


def test_no_field_is_no_key() -> None:
    assert read() is None


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b' \t"k" ', "k"),
        (b'"a\\"b\\\\c"', 'a"b\\c'),
        (b'"a,b"', "a,b"),
        (b'"k";v=1', "k"),
        (b'a"b', 'a"b'),
        (b'"' + b"x" * 255 + b'"', "x" * 255),
    ],
)
def test_quoted_and_bare_keys_are_read(value: bytes, key: str) -> None:
    assert read(value) == key


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"",
            b'""',
            b'"',
            b'"a',
            b'"a"b',
            b"a, b",
            b"a,b",
            b"a b",
            b'"a b"',
            b'"\\n"',
            b'"\\',
            b'"\xc3\xa9"',
            b'"a\x00"',
        ),
        *(b"x" * 256, b'"' + b"x" * 256 + b'"', b'"k"v=1'),
    ],
)
def test_a_malformed_key_is_refused(value: bytes) -> None:
    with pytest.raises(WireError) as refused:
        read(value)
    assert refused.value.code == "idempotency_key_malformed"


def test_a_second_field_is_refused_also_with_the_same_value() -> None:
    with pytest.raises(WireError):
        read(b"k", b"k")


@given(VISIBLE)
def test_every_key_survives_quoting(key: str) -> None:
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert read(b'"%b"' % quoted.encode()) == key
