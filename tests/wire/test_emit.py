"""Header fields as they are sent, byte for byte against the draft's figures, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.core.errors import WireError
from twophp.core.intent import Mode, Phase
from twophp.wire import emit
from twophp.wire.parse import PhaseOne, PhaseTwo, StatusRead, parse, parse_response

from .samples import AT, CALLBACK_URL, CLIENT, SERVER, Pairs

if TYPE_CHECKING:
    from collections.abc import Callable

NO_STORE = (b"cache-control", b"no-store")
STATE = b"dtt-2php-phase-state"


# --- answers ----------------------------------------------------------------------------------------------------


@pytest.mark.req("P-5.2.2-b", "P-5.2.2-e", "P-5.2.2-h", "P-5.2.2-j", "P-5.2.2-k", "A-17", "A-18", "A-26")
def test_a_phase_1_answer_is_the_drafts_figure() -> None:
    assert emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=30_000, deadline_at=AT) == [
        (b"dtt-2php-server-correlation-id", SERVER.encode()),
        (STATE, b"WAITING_CONFIRM"),
        (b"dtt-2php-ttl", b"30000"),
        (b"dtt-2php-ponr-deadline", b"2026-01-02T03:04:05.678Z"),
        NO_STORE,
    ]


@pytest.mark.req("A-21", "P-14.1-k")
@pytest.mark.parametrize("policy", ["REJECT", "REUSE"])
def test_the_replay_policy_is_told_only_on_demand(policy: str) -> None:
    known = emit.phase_one_answer(
        server_correlation_id=SERVER,
        ttl_ms=1,
        deadline_at=AT,
        replay_policy="REJECT" if policy == "REJECT" else "REUSE",
    )
    assert (b"dtt-2php-replay-policy", policy.encode()) in known


@pytest.mark.req("P-5.2.2-k")
@pytest.mark.parametrize("phase", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED])
def test_a_repeated_phase_1_is_told_how_far_it_went_and_no_resource(phase: Phase) -> None:
    headers = emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=None, deadline_at=None, phase=phase)
    assert headers == [(b"dtt-2php-server-correlation-id", SERVER.encode()), (STATE, phase.encode()), NO_STORE]


@pytest.mark.req("P-5.3.2-b", "P-14.1-j")
def test_a_synchronous_success_is_the_drafts_figure() -> None:
    assert emit.final_answer(phase=Phase.COMMITTED, resource_id="order-42") == [
        (STATE, b"COMMITTED"),
        (b"dtt-2php-resource-id", b"order-42"),
        NO_STORE,
    ]


def test_a_failure_names_no_resource() -> None:
    assert emit.final_answer(phase=Phase.FAILED) == [(STATE, b"FAILED"), NO_STORE]


@pytest.mark.req("P-5.5.3-f")
def test_an_auto_confirmed_answer_carries_the_server_id() -> None:
    headers = emit.final_answer(phase=Phase.COMMITTED, resource_id="42", server_correlation_id=SERVER)
    assert (b"dtt-2php-server-correlation-id", SERVER.encode()) in headers


@pytest.mark.req("A-18")
def test_an_application_keeps_its_own_caching() -> None:
    assert NO_STORE not in emit.final_answer(phase=Phase.FAILED, app_sets_caching=True)


@pytest.mark.req("P-5.3.3-c", "P-5.3.3-g", "A-04")
def test_an_asynchronous_answer_is_the_drafts_figure_and_says_where_to_look() -> None:
    figure = [(STATE, b"PROCESSING"), (b"dtt-2php-resource-id", b"r-1")]
    assert emit.accepted_answer(resource_id="r-1") == [*figure, NO_STORE]
    assert emit.accepted_answer(resource_id="r-1", location="/_2php/intents/x", retry_after_s=2) == [
        *figure,
        (b"location", b"/_2php/intents/x"),
        (b"retry-after", b"2"),
        NO_STORE,
    ]


@pytest.mark.req("P-5.5.6-c", "P-5.5.6-d", "P-5.5.6-e")
def test_a_transparent_answer_adds_nothing_or_the_server_id() -> None:
    assert emit.transparent_answer() == []
    with_id = emit.transparent_answer(server_correlation_id=SERVER)
    assert with_id == [(b"dtt-2php-server-correlation-id", SERVER.encode())]


@pytest.mark.req("P-14.1-g", "A-21")
def test_states_on_the_wire() -> None:
    told = {phase: emit.state(phase)[1].decode() for phase in Phase if phase is not Phase.ABSENT}
    assert told.pop(Phase.ABANDONED) == "TTL_EXPIRED"  # The moment of abandonment would tell the grace.
    assert all(name == phase for phase, name in told.items())
    with pytest.raises(WireError):
        emit.state(Phase.ABSENT)


@pytest.mark.parametrize(("seconds", "value"), [(-5, b"1"), (0, b"1"), (30, b"30"), (10**9, b"86400")])
def test_retry_after_is_bounded(seconds: int, value: bytes) -> None:
    assert emit.retry_after(seconds) == (b"retry-after", value)


NONSENSE: list[Callable[[], object]] = [
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=None, deadline_at=AT),
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=1, deadline_at=None),
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=0, deadline_at=AT),
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=-1, deadline_at=AT),
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=1, deadline_at=AT, phase=Phase.TTL_EXPIRED),
    lambda: emit.phase_one_answer(server_correlation_id=SERVER, ttl_ms=1, deadline_at=AT, phase=Phase.ABSENT),
    lambda: emit.final_answer(phase=Phase.COMMITTED),
    lambda: emit.final_answer(phase=Phase.PROCESSING, resource_id="x"),
    lambda: emit.phase_one_request(client_correlation_id=CLIENT, requested_ttl_ms=0),
    lambda: emit.phase_one_request(client_correlation_id=CLIENT, requested_ttl_ms=2**53 + 1),
    lambda: emit.auto_confirm_request(client_correlation_id=CLIENT, callback="http://a/"),
    lambda: emit.auto_confirm_request(client_correlation_id=CLIENT, callback="https://a/x,y"),
]


@pytest.mark.parametrize("say", NONSENSE)
def test_what_makes_no_sense_is_not_sent(say: Callable[[], object]) -> None:
    with pytest.raises(WireError) as caught:
        say()
    assert caught.value.code == "internal"


INJECTIONS = ["a\r\nset-cookie: x=1", "a\nb", "a\x00b", "a b", "", "é", "a\u2028b", "a\ud800", "x" * 5000]
SAYS: list[Callable[[str], object]] = [
    lambda text: emit.phase_one_answer(server_correlation_id=text, ttl_ms=1, deadline_at=AT),
    lambda text: emit.final_answer(phase=Phase.COMMITTED, resource_id=text),
    lambda text: emit.final_answer(phase=Phase.FAILED, server_correlation_id=text),
    lambda text: emit.accepted_answer(resource_id=text),
    lambda text: emit.accepted_answer(resource_id="r", location=text),
    lambda text: emit.transparent_answer(server_correlation_id=text),
    lambda text: emit.phase_one_request(client_correlation_id=text),
    lambda text: emit.auto_confirm_request(client_correlation_id=CLIENT, callback=text),
    lambda text: emit.transparent_request(client_correlation_id=text),
    lambda text: emit.phase_two_request(client_correlation_id=CLIENT, server_correlation_id=text),
    lambda text: emit.status_read_request(client_correlation_id=text, server_correlation_id=SERVER),
]


@pytest.mark.req("A-05", "A-69")
@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize("say", SAYS)
def test_no_value_breaks_out_of_its_field(say: Callable[[str], object], text: str) -> None:
    with pytest.raises(WireError):
        say(text)


@pytest.mark.req("A-05", "A-69")
@given(say=st.sampled_from(SAYS), text=st.text(max_size=300))
def test_whatever_is_sent_is_printable_ascii(say: Callable[[str], Pairs], text: str) -> None:
    try:
        headers = say(text)
    except WireError:
        return
    assert all(0x20 <= byte < 0x7F for name, value in headers for byte in name + value)
    assert all(name == name.lower() for name, _ in headers)


# --- requests, and round trips -----------------------------------------------------------------------------------

ids = st.from_regex(r"\A[A-Za-z0-9._~:-]{1,128}\Z")
ttls = st.none() | st.integers(1, 2**53)
urls = st.from_regex(r"\Ahttps://[a-z]{1,20}(:[1-9][0-9]{0,3})?(/[a-z0-9?%&=]{0,40})?\Z")
paths = st.from_regex(r"\A(/[a-z0-9%]{0,6}){1,4}\Z")


@pytest.mark.req("P-5.2.1-a", "P-5.3.1-b", "P-5.5.3-a")
def test_the_clients_fields_are_the_drafts_figures() -> None:
    enabled = (b"dtt-2php-enabled", b"true")
    client = (b"dtt-2php-client-correlation-id", CLIENT.encode())
    server = (b"dtt-2php-server-correlation-id", SERVER.encode())
    auto = (b"dtt-2php-auto-confirm", b"true")
    callback = (b"dtt-2php-callback", CALLBACK_URL.encode())
    wish = (b"dtt-2php-requested-ttl", b"9000")
    assert emit.phase_one_request(client_correlation_id=CLIENT) == [enabled, client]
    assert emit.phase_one_request(client_correlation_id=CLIENT, requested_ttl_ms=9000) == [enabled, client, wish]
    assert emit.transparent_request() == [enabled, auto]
    asked = emit.auto_confirm_request(client_correlation_id=CLIENT, callback=CALLBACK_URL)
    assert asked == [enabled, auto, callback, client]
    pair = {"client_correlation_id": CLIENT, "server_correlation_id": SERVER}
    assert emit.phase_two_request(**pair) == emit.status_read_request(**pair) == [enabled, client, server]


@pytest.mark.req("P-5.2.1-d")
@given(client=ids, ttl=ttls, path=paths, method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]))
def test_phase_1_is_read_as_it_was_sent(client: str, ttl: int | None, path: str, method: str) -> None:
    found = parse(method, path, emit.phase_one_request(client_correlation_id=client, requested_ttl_ms=ttl))
    assert found == PhaseOne(
        path=path.removesuffix("/"),
        mode=Mode.STANDARD,
        client_correlation_id=client,
        callback=None,
        requested_ttl_ms=ttl,
    )


@pytest.mark.req("P-5.5.3-a")
@given(client=ids, ttl=ttls, url=urls)
def test_auto_confirm_is_read_as_it_was_sent(client: str, ttl: int | None, url: str) -> None:
    headers = emit.auto_confirm_request(client_correlation_id=client, callback=url, requested_ttl_ms=ttl)
    assert parse("POST", "/orders", headers) == PhaseOne(
        path="/orders", mode=Mode.AUTO_CONFIRM, client_correlation_id=client, callback=url, requested_ttl_ms=ttl
    )


@pytest.mark.req("P-5.5.6-a")
@given(client=st.none() | ids)
def test_transparent_is_read_as_it_was_sent(client: str | None) -> None:
    found = parse("POST", "/orders", emit.transparent_request(client_correlation_id=client))
    assert isinstance(found, PhaseOne)
    assert (found.mode, found.client_correlation_id) == (Mode.TRANSPARENT, client)


@pytest.mark.req("P-5.3.1-b")
@given(client=ids, server=ids, path=paths)
def test_phase_2_and_status_read_are_read_as_they_were_sent(client: str, server: str, path: str) -> None:
    headers = emit.phase_two_request(client_correlation_id=client, server_correlation_id=server)
    assert parse("POST", path + "/confirm", headers) == PhaseTwo(
        path=path, client_correlation_id=client, server_correlation_id=server
    )
    read = emit.status_read_request(client_correlation_id=client, server_correlation_id=server)
    assert parse("GET", path, read) == StatusRead(client_correlation_id=client, server_correlation_id=server)


@given(server=ids, ttl=st.integers(1, 2**53), at=st.integers(0, 253_402_300_799_999))
def test_answers_are_read_as_they_were_sent(server: str, ttl: int, at: int) -> None:
    registered = parse_response(emit.phase_one_answer(server_correlation_id=server, ttl_ms=ttl, deadline_at=at))
    assert registered is not None
    assert registered.awaits_confirm
    assert (registered.server_correlation_id, registered.ttl_ms, registered.deadline_at) == (server, ttl, at)
    done = parse_response(emit.final_answer(phase=Phase.COMMITTED, resource_id=server, server_correlation_id=server))
    assert done is not None
    assert (done.phase, done.resource_id, done.server_correlation_id) == (Phase.COMMITTED, server, server)
