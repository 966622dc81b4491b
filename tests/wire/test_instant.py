from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twophp.core.errors import WireError
from twophp.wire.instant import format_instant, parse_instant

LAST = 253_402_300_799_999


@pytest.mark.req("P-5.2.2-h", "A-26")
@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (86_399_999, "1970-01-01T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
        (LAST, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_known_instants(at: int, text: str) -> None:
    assert format_instant(at) == text
    assert parse_instant(text.encode()) == at


@pytest.mark.req("A-26")
@given(st.integers(0, LAST))
@example(4_102_444_799_999)  # A float of milliseconds rounds here on its way through ``fromtimestamp``.
def test_writing_is_exact_and_reading_is_its_inverse(at: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)
    assert format_instant(at) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert parse_instant(format_instant(at).encode()) == at


@pytest.mark.parametrize("at", [-1, LAST + 1, 2**53 * 2])
def test_an_instant_without_a_four_digit_year_is_refused(at: int) -> None:
    with pytest.raises(WireError):
        format_instant(at)


@pytest.mark.req("A-26")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1970-01-01T00:00:01Z", 1000),
        (b"1970-01-01t00:00:01z", 1000),
        (b"1970-01-01T00:00:01.5Z", 1500),
        (b"1970-01-01T00:00:01.000999Z", 1000),  # Cut, not rounded: early is safe.
        (b"1970-01-01T00:00:01.999999999Z", 1999),
        (b"1970-01-01T01:00:01+01:00", 1000),
        (b"1969-12-31T19:00:01-05:00", 1000),
        (b"1969-12-31T23:59:59.999Z", -1),
        (b"0001-01-01T00:00:00+14:00", -62_135_647_200_000),
        (b"1970-01-01T00:00:01", None),  # A local time is not absolute.
        (b"1970-01-01", None),
        (b"1970-W01-1T00:00:00Z", None),
        (b"1970-02-30T00:00:00Z", None),
        (b"1970-01-01T24:00:00Z", None),
        (b"1970-01-01T23:59:60Z", None),
        (b"1970-01-01T00:00:00+24:00", None),
        (b"0000-01-01T00:00:00Z", None),
        (b"1970-01-01T00:00:00.Z", None),
        (b"1970-01-01T00:00:00,5Z", None),
        (b"1970-01-01 00:00:00Z", None),
        (b"1970-01-01T00:00:00Z ", None),
        (b"1970-01-01T00:00:00Z\n", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_any_rfc_3339_instant_is_read_and_nothing_else(value: bytes, expected: int | None) -> None:
    assert parse_instant(value) == expected


@given(
    st.binary(max_size=40) | st.from_regex(rb"[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})")
)
def test_reading_never_raises(value: bytes) -> None:
    assert isinstance(parse_instant(value), int | None)
