"""Requests: one table per rule. The literals are the draft's."""

from __future__ import annotations

import pytest

from twophp.core.errors import WireError
from twophp.core.intent import Mode
from twophp.wire import emit
from twophp.wire.parse import MUTATIONS, PLAIN, PhaseOne, PhaseTwo, StatusRead, opted_in, parse, parse_response

from .samples import (
    AUTO,
    AUTO_CONFIRM,
    CALLBACK,
    CALLBACK_URL,
    CLIENT,
    CLIENT_ID,
    ENABLED,
    PHASE_ONE,
    PHASE_TWO,
    REQUESTED_TTL,
    SERVER,
    SERVER_ID,
    TRANSPARENT,
    Pairs,
    field,
    outcome,
)

STANDARD = PhaseOne(
    path="/orders", mode=Mode.STANDARD, client_correlation_id=CLIENT, callback=None, requested_ttl_ms=None
)
CONFIRM = PhaseTwo(path="/orders", client_correlation_id=CLIENT, server_correlation_id=SERVER)
READ = StatusRead(client_correlation_id=CLIENT, server_correlation_id=SERVER)
SERVICE_HEADERS: Pairs = [(b"host", b"orders.internal"), (b"content-type", b"application/json")]


# --- opt-in -----------------------------------------------------------------------------------------------------


@pytest.mark.req("P-5.1-a", "P-14.1-a", "A-11")
@pytest.mark.parametrize("value", [b"true", b"TRUE", b"True", b"tRuE", b" true", b"true\t", b" \t true \t "])
def test_true_in_any_case_opts_in(value: bytes) -> None:
    assert outcome("POST", "/orders", [field("enabled", value), CLIENT_ID]) == STANDARD


NOT_TRUE = [b"", b" ", b"false", b"1", b"yes", b"?1", b"on", b"t", b"truee", b"tr ue", b'"true"', b"true;q=1", b"null"]
HOSTILE_TRUE = [b"true\n", b"\rtrue", b"true\x0b", b"true\x0c", b"\x00true", b"true\x85", b"\xa0true", b"\xc5\xa5rue"]


@pytest.mark.req("P-5.1-c", "A-11")
@pytest.mark.parametrize("value", [*NOT_TRUE, *HOSTILE_TRUE, b"t" * 100_000])
def test_anything_else_is_plain_http(value: bytes) -> None:
    assert outcome("POST", "/orders", [field("enabled", value), CLIENT_ID]) is PLAIN


@pytest.mark.req("P-5.1-c", "A-36")
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
def test_without_the_opt_in_every_other_field_is_ignored(method: str) -> None:
    nonsense = [AUTO, CLIENT_ID, field("client-correlation-id", b"other"), SERVER_ID, field("callback", b"http://x")]
    assert outcome(method, "/orders/confirm", nonsense) is PLAIN


@pytest.mark.req("A-17")
@pytest.mark.parametrize("spell", [bytes.lower, bytes.upper, bytes.title, bytes.swapcase])
def test_names_are_case_insensitive(spell: object) -> None:
    assert callable(spell)
    headers = [(spell(name), value) for name, value in [*SERVICE_HEADERS, *PHASE_TWO]]
    assert outcome("POST", "/orders/confirm", headers) == CONFIRM


@pytest.mark.req("P-14.1-m")
def test_the_figures_abbreviations_are_no_fields() -> None:
    assert outcome("POST", "/orders", [ENABLED, field("client-corr-id", b"C1")]) == "missing_field"
    assert outcome("POST", "/orders/confirm", [*PHASE_ONE, field("server-corr-id", b"S1")]) != CONFIRM


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_headers_may_be_any_iterable(kind: object) -> None:
    assert callable(kind)
    assert parse("POST", "/orders", kind([*SERVICE_HEADERS, *PHASE_ONE])) == STANDARD


# --- which message ----------------------------------------------------------------------------------------------


@pytest.mark.req("P-5.2.1-a", "P-5.3.1-a", "P-5.3.1-b", "A-01", "A-02", "A-04", "A-15")
@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("POST", "/orders", PHASE_ONE, STANDARD),
        ("PUT", "/orders", PHASE_ONE, STANDARD),
        ("PATCH", "/orders", PHASE_ONE, STANDARD),
        ("DELETE", "/orders", PHASE_ONE, STANDARD),
        ("POST", "/orders/confirm", PHASE_TWO, CONFIRM),
        # POST only, and the suffix as it is; the server id has no other place.
        ("PUT", "/orders/confirm", PHASE_TWO, "wrong_place"),
        ("DELETE", "/orders/confirm", PHASE_TWO, "wrong_place"),
        ("POST", "/orders", PHASE_TWO, "wrong_place"),
        ("POST", "/orders/confirm/", PHASE_TWO, "wrong_place"),
        ("POST", "/orders/Confirm", PHASE_TWO, "wrong_place"),
        ("POST", "/orders%2Fconfirm", PHASE_TWO, "wrong_place"),
        ("POST", "/ordersconfirm", PHASE_TWO, "wrong_place"),
        ("POST", "confirm", PHASE_TWO, "wrong_place"),
        ("POST", "", PHASE_TWO, "wrong_place"),
        # P-5.3.1-b: each of the three fields is needed.
        ("POST", "/orders/confirm", [CLIENT_ID, SERVER_ID], PLAIN),
        ("POST", "/orders/confirm", [ENABLED, SERVER_ID], "missing_field"),
        # a status read needs the opt-in and both ids; its path is free.
        ("GET", "/anything", PHASE_TWO, READ),
        ("HEAD", "/orders/confirm", PHASE_TWO, READ),
        ("GET", "/orders", PHASE_ONE, PLAIN),
        ("GET", "/orders", [ENABLED, SERVER_ID], PLAIN),
        ("GET", "/orders", [ENABLED], PLAIN),
        ("HEAD", "/orders", [CLIENT_ID, SERVER_ID], PLAIN),
        # what is no mutation passes.
        ("OPTIONS", "/orders", PHASE_ONE, PLAIN),
        ("OPTIONS", "/orders/confirm", PHASE_TWO, PLAIN),
        ("TRACE", "/orders", PHASE_TWO, PLAIN),
        ("PROPFIND", "/orders", PHASE_ONE, PLAIN),
        ("post", "/orders", PHASE_ONE, PLAIN),  # Methods are case-sensitive (RFC 9110 §9.1).
        ("", "", PHASE_ONE, PLAIN),
    ],
)
def test_a_request_is_exactly_one_kind_of_message(method: str, path: str, headers: Pairs, expected: object) -> None:
    assert outcome(method, path, [*SERVICE_HEADERS, *headers]) == expected


@pytest.mark.req("A-02")
def test_a_route_that_ends_in_confirm_can_be_registered_itself() -> None:
    first = parse("POST", "/carts/7/confirm", PHASE_ONE)
    assert isinstance(first, PhaseOne)
    second = parse("POST", "/carts/7/confirm/confirm", PHASE_TWO)
    assert isinstance(second, PhaseTwo)
    assert first.path == second.path == "/carts/7/confirm"


@pytest.mark.req("A-01")
def test_the_suffix_is_a_setting() -> None:
    found = parse("POST", "/orders/~go", PHASE_TWO, suffix="/~go")
    assert found == CONFIRM
    with pytest.raises(WireError):
        parse("POST", "/orders/confirm", PHASE_TWO, suffix="/~go")


@pytest.mark.req("A-15")
def test_the_method_set_is_a_setting() -> None:
    assert parse("MKCOL", "/orders", PHASE_ONE, methods=MUTATIONS | {"MKCOL"}) == STANDARD
    only_put = frozenset({"PUT"})
    assert parse("POST", "/orders", PHASE_ONE, methods=only_put) is PLAIN
    assert parse("POST", "/orders/confirm", PHASE_TWO, methods=only_put) == CONFIRM  # Phase 2 is always a POST.
    assert parse("OPTIONS", "/orders", PHASE_ONE, methods=frozenset({"OPTIONS"})) is PLAIN  # OPTIONS always passes.


# --- modes ------------------------------------------------------------------------------------------------------


@pytest.mark.req(
    "P-5.5.2-a", "P-5.5.2-c", "P-5.5.2-d", "P-5.5.3-a", "P-5.5.6-a", "P-14.1-c", "P-14.1-d", "A-14", "A-36"
)
@pytest.mark.parametrize(
    ("headers", "mode", "client_id", "callback"),
    [
        (PHASE_ONE, Mode.STANDARD, CLIENT, None),
        ([*PHASE_ONE, CALLBACK], Mode.STANDARD, CLIENT, None),  # a callback alone is ignored ...
        ([*PHASE_ONE, field("callback", b"http://user@10.0.0.1/")], Mode.STANDARD, CLIENT, None),  # ... valid or not.
        ([*PHASE_ONE, field("auto-confirm", b"1"), CALLBACK], Mode.STANDARD, CLIENT, None),
        (AUTO_CONFIRM, Mode.AUTO_CONFIRM, CLIENT, CALLBACK_URL),
        ([*PHASE_ONE, CALLBACK, field("auto-confirm", b" TRUE ")], Mode.AUTO_CONFIRM, CLIENT, CALLBACK_URL),
        (TRANSPARENT, Mode.TRANSPARENT, None, None),
        ([*TRANSPARENT, CLIENT_ID], Mode.TRANSPARENT, CLIENT, None),  # sent and valid, it is used.
    ],
)
def test_the_mode_follows_auto_confirm_and_callback(
    headers: Pairs, mode: Mode, client_id: str | None, callback: str | None
) -> None:
    assert parse("POST", "/orders", headers) == PhaseOne(
        path="/orders", mode=mode, client_correlation_id=client_id, callback=callback, requested_ttl_ms=None
    )


@pytest.mark.req("P-14.1-b", "A-14")
@pytest.mark.parametrize("headers", [[ENABLED], [ENABLED, AUTO, CALLBACK], [ENABLED, CALLBACK]])
def test_a_client_id_is_needed_unless_transparent(headers: Pairs) -> None:
    assert outcome("POST", "/orders", headers) == "missing_field"


@pytest.mark.req("A-36")
@pytest.mark.parametrize(("method", "path"), [("POST", "/orders/confirm"), ("POST", "/orders"), ("GET", "/orders")])
def test_auto_confirm_and_a_server_id_exclude_each_other(method: str, path: str) -> None:
    assert outcome(method, path, [*PHASE_TWO, AUTO]) == "wrong_place"
    not_true = outcome(method, path, [*PHASE_TWO, field("auto-confirm", b"false")])
    assert not_true == outcome(method, path, PHASE_TWO)


# --- values -----------------------------------------------------------------------------------------------------

VISIBLE = bytes(range(0x21, 0x7F))
GOOD_IDS = [b"a", b"client-corr-id1", b"C1", b"A.Z_a~z:0-9", b"x" * 255, CLIENT.upper().encode(), b" padded\t"]
GOOD_IDS += [b"{" + CLIENT.encode() + b"}", b"q83vEjRWeJA/+w==", b"a/b", b"a%20", b"a;b", b'"a"', b"../x", VISIBLE]
GOOD_IDS += [b"a,b", b"a,", b",a", b"a,a,b"]  # An id never holds white space, so these are no joined values.
BAD_IDS = [b"", b" ", b"x" * 256, b"a b", b"a\r\nx: y", b"a\n", b"a\x00", b"\xc3\xa9"]
BAD_IDS += [b"\x7f", b"a\x0b", b"\xff" * 1000, b"x" * 1_000_000]


@pytest.mark.req("P-13.1-a", "A-13")
@pytest.mark.parametrize("value", GOOD_IDS)
def test_ids_are_opaque_and_kept_byte_for_byte(value: bytes) -> None:
    text = value.strip(b" \t").decode()
    client, server = field("client-correlation-id", value), field("server-correlation-id", value)
    first = parse("POST", "/orders", [ENABLED, client])
    assert isinstance(first, PhaseOne)
    assert first.client_correlation_id == text
    both = parse("POST", "/orders/confirm", [ENABLED, client, server])
    assert both == PhaseTwo(path="/orders", client_correlation_id=text, server_correlation_id=text)
    answer = parse_response([field("phase-state", b"WAITING_CONFIRM"), server])
    assert answer is not None
    assert answer.server_correlation_id == text
    assert (b"dtt-2php-server-correlation-id", text.encode()) in emit.phase_two_request(
        client_correlation_id=text, server_correlation_id=text
    )


@pytest.mark.req("A-13")
@pytest.mark.parametrize("value", BAD_IDS)
def test_other_ids_are_refused(value: bytes) -> None:
    bad_client, bad_server = field("client-correlation-id", value), field("server-correlation-id", value)
    assert outcome("POST", "/orders", [ENABLED, bad_client]) == "bad_field"
    assert outcome("POST", "/orders", [*TRANSPARENT, bad_client]) == "bad_field"  # No silent proxy for a broken id.
    assert outcome("POST", "/orders/confirm", [ENABLED, bad_client, SERVER_ID]) == "bad_field"
    assert outcome("POST", "/orders/confirm", [*PHASE_ONE, bad_server]) == "bad_field"
    assert outcome("GET", "/orders", [*PHASE_ONE, bad_server]) == "bad_field"


@pytest.mark.req("A-13")
@pytest.mark.parametrize(
    ("value", "good"),
    [
        (CLIENT, True),
        (CLIENT.upper(), True),
        ("client-corr-id1", False),
        (CLIENT.replace("-", ""), False),
        (CLIENT + "0", False),
        ("g" + CLIENT[1:], False),
    ],
)
def test_strict_uuid_refuses_client_ids_that_are_none(value: str, good: bool) -> None:
    headers = [ENABLED, field("client-correlation-id", value.encode())]
    assert (outcome("POST", "/orders", headers, strict_uuid=True) != "bad_field") is good
    assert outcome("POST", "/orders", headers) != "bad_field"


@pytest.mark.req("P-5.2.1-d", "P-14.1-e", "A-23")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1", 1),
        (b"5000", 5000),
        (b" 5000\t", 5000),
        (b"007", 7),
        (b"9007199254740992", 2**53),
        (b"9007199254740993", None),
        (b"0", None),
        (b"-5", None),
        (b"+5", None),
        (b"5.0", None),
        (b"5e3", None),
        (b"5_000", None),
        (b"5 000", None),
        (b"", None),
        (b"abc", None),
        (b"0x10", None),
        ("\N{ARABIC-INDIC DIGIT FIVE}".encode(), None),  # A digit, and not an ASCII one.
        (b"1" * 10_000, None),  # Never reaches ``int``, which refuses this length.
    ],
)
def test_a_wish_for_a_ttl_is_read_or_ignored(value: bytes, expected: int | None) -> None:
    found = parse("POST", "/orders", [*PHASE_ONE, field("requested-ttl", value)])
    assert isinstance(found, PhaseOne)
    assert found.requested_ttl_ms == expected


GOOD_URLS = [
    "https://a",
    "https://a/",
    "HTTPS://A.example",
    "https://a.example:8443/cb",
    "https://a.example?x=1",
    "https://[2001:db8::1]:443/x",
    "https://192.0.2.7/",
    "https://a/x%2Cy;z=(1)!*'$&+@:[]~_.-",
    "https://a/" + "x" * 2038,
]
BAD_URLS = [
    "",
    "https://",
    "https:///x",
    "http://a/",
    "ftp://a/",
    "//a/x",
    "/x",
    "a.example",
    "javascript:alert(1)",
    "https:a/",
    "https:/a/",
    "https://user@a/",
    "https://user:secret@a/",
    "https://@a/",
    "https://a@b@c/",
    "https://a\\@b/",
    "https://a/\\b",
    "https://a#f",
    "https://a/x#",
    "https://a/x y",
    "https://a b/",
    "https://a/\x00",
    "https://a/\r\nx",
    "https://a/é",
    "https://é/",
    "https://a%2eb/",
    "https://a:/",
    "https://a:0/",
    "https://a:65536/",
    "https://a:99999999/",
    "https://a:x/",
    "https://a:80:80/",
    "https://[::1/",
    "https://::1/",
    "https://[g::1]/",
    "https://[]/",
    "https://[::1]x/",
    "https://a/<x>",
    'https://a/"',
    "https://a/" + "x" * 2039,
    "https://" + "a" * 254 + "/",
]


@pytest.mark.req("P-5.5.2-b", "A-65")
@pytest.mark.parametrize("url", GOOD_URLS)
def test_a_callback_is_an_https_url(url: str) -> None:
    found = parse("POST", "/orders", [ENABLED, AUTO, CLIENT_ID, field("callback", url.encode())])
    assert isinstance(found, PhaseOne)
    assert (found.mode, found.callback) == (Mode.AUTO_CONFIRM, url)


@pytest.mark.req("P-5.5.2-b", "A-65")
@pytest.mark.parametrize("url", BAD_URLS)
def test_another_callback_is_refused_and_never_means_transparent(url: str) -> None:
    assert outcome("POST", "/orders", [ENABLED, AUTO, CLIENT_ID, field("callback", url.encode())]) == "bad_callback"


# --- repeats ----------------------------------------------------------------------------------------------------


@pytest.mark.req("A-12")
@pytest.mark.parametrize("repeated", [ENABLED, CLIENT_ID, SERVER_ID, field("phase-state", b"COMMITTED")])
def test_identical_repeats_collapse(repeated: tuple[bytes, bytes]) -> None:
    name, value = repeated
    joined = [pair for pair in PHASE_TWO if pair[0] != name]
    assert outcome("POST", "/orders/confirm", [*PHASE_TWO, repeated, repeated]) == CONFIRM
    assert outcome("POST", "/orders/confirm", [*joined, (name, value + b", " + value)]) == CONFIRM
    assert outcome("POST", "/orders/confirm", [*joined, (name, value + b"\t,\t" + value), repeated]) == CONFIRM
    assert outcome("POST", "/orders/confirm", [*joined, (name, value + b"," + value)]) == CONFIRM
    third = (name, value + b", " + value + b", other")
    assert outcome("POST", "/orders/confirm", [*PHASE_TWO, third]) == "duplicate_field"


@pytest.mark.req("A-11", "A-12")
def test_a_flag_repeated_in_another_case_is_no_contradiction() -> None:
    assert outcome("POST", "/orders", [*PHASE_ONE, field("enabled", b"TRUE")]) == STANDARD
    assert outcome("POST", "/orders", [field("enabled", b"true, True"), CLIENT_ID]) == STANDARD


REQUEST_VALUES = [
    (field("enabled", b"true"), b"false"),
    (field("enabled", b"true"), b""),
    (field("auto-confirm", b"true"), b"false"),
    (field("client-correlation-id", b"a"), b"A"),
    (field("client-correlation-id", b"a"), b""),
    (field("requested-ttl", b"5000"), b"6000"),
    (field("requested-ttl", b"5000"), b"soon"),
    (field("callback", b"https://a/x"), b"https://a/y"),
    (field("callback", b"https://a/x"), b"y"),
    (field("phase-state", b"COMMITTED"), b"FAILED"),  # all twelve, even where they mean nothing.
    (field("message", b"a"), b"b"),
]


@pytest.mark.req("A-12")
@pytest.mark.parametrize(("first", "other"), REQUEST_VALUES)
@pytest.mark.parametrize("swap", [False, True])
def test_differing_repeats_are_refused(first: tuple[bytes, bytes], other: bytes, swap: bool) -> None:
    name, value = first
    one, two = (other, value) if swap else (value, other)
    base = [pair for pair in PHASE_ONE if pair[0] != name]
    assert outcome("POST", "/orders", [(name, one), *base, (name.upper(), two)]) == "duplicate_field"
    if name != b"dtt-2php-message":  # Free text: its commas are its own.
        if two:
            assert outcome("POST", "/orders", [*base, (name, one + b", " + two)]) == "duplicate_field"
        if name != b"dtt-2php-client-correlation-id":  # An id is opaque: a comma without white space is its own.
            assert outcome("POST", "/orders", [*base, (name, one + b"," + two)]) == "duplicate_field"


@pytest.mark.req("A-12")
@pytest.mark.parametrize("server", [b"a, b", b"a ,b", b"a\t,b", b"a, a,b"])
def test_differing_server_ids_are_refused_wherever_they_count(server: bytes) -> None:
    headers = [*PHASE_ONE, field("server-correlation-id", server)]
    assert outcome("POST", "/orders/confirm", headers) == "duplicate_field"
    assert outcome("GET", "/orders", headers) == "duplicate_field"
    assert outcome("OPTIONS", "/orders", headers) is PLAIN


@pytest.mark.req("A-11", "A-12")
@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ([b"true", b"false"], True),  # One sender asked for a registration: refused, not run unregistered.
        ([b"false", b"true"], True),
        ([b"false, true"], True),
        ([b"true,"], True),
        ([b"false", b"0"], False),  # No sender did: plain, although the values differ.
        ([b"false, 0"], False),
        ([b",", b""], False),
    ],
)
def test_a_contradictory_opt_in_counts_only_if_somebody_said_true(values: list[bytes], asked: bool) -> None:
    headers = [CLIENT_ID, *(field("enabled", value) for value in values)]
    assert opted_in(headers) is asked
    assert outcome("POST", "/orders", headers) == ("duplicate_field" if asked else PLAIN)
    assert outcome("GET", "/orders", headers) is PLAIN  # not a status read, so not ours.


@pytest.mark.req("A-10", "A-69")
def test_a_refusal_names_the_field_and_echoes_nothing() -> None:
    hostile = b"<script>alert(1) </script>"
    with pytest.raises(WireError) as caught:
        parse("POST", "/orders", [ENABLED, field("client-correlation-id", hostile), REQUESTED_TTL])
    assert caught.value.field == "DTT-2PHP-Client-Correlation-ID"
    assert "script" not in str(caught.value)
