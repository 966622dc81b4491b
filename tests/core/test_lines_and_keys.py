"""What records are found by, what they are bound to, and the lines that explain why one is gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.intents import committed, waiting
from twophp.core import registrar_records as records
from twophp.core.entry import Writer, purged_line, restamped_line, server_entry
from twophp.core.errors import Refused
from twophp.core.identity import callback_digest, intent_seal_context, seal_context
from twophp.core.intent import Intent, Mode, Phase, fixed_facts, outcome_facts
from twophp.core.obligation import canonical_key, forgotten, scan_completed
from twophp.core.records import JournalEvent, Key
from twophp.core.registration import VerifyStatus

NOW = 77
WRITER = Writer(service_ledger_id="ledger", source="orders")


# Keys: what collides


def test_an_intent_is_found_by_both_ids_and_uses_up_its_logical_key() -> None:
    both = (Key("intent.pair", ("c1", "s1")), Key("intent.logical_request_key", ("c1", "alice")))
    assert waiting().keys() == both
    polled = msgspec.structs.replace(waiting(), mode=Mode.ASYNC)
    assert polled.keys() == (*both, Key("intent.server_correlation_id", ("s1",)))


@pytest.mark.req("A-85", "A-86", "A-91")
def test_a_consumed_key_collides_on_each_axis_by_itself() -> None:
    row = records.Consumed(
        protocol_version="RS/1",
        logical_request_key="lrk",
        canonical_operation="register",
        canonical_target="dot/a",
        deployed_artifact_hash="sha256:aa",
        owner_or_approval_binding="owner",
        run_id="run",
        authorization_nonce="n",
        attempt_id="a",
        replay_key="replay",
        effect_run_id="effect-run",
        consumed_at=NOW,
    )
    keys = row.keys()
    assert [key.values for key in keys] == [
        ("lrk",),
        ("replay",),
        ("n",),
        ("register", "dot/a", "sha256:aa", "effect-run"),
    ]
    assert len({key.by for key in keys}) == 4
    assert (row.version, row.due_at, row.domain) == (1, None, "registration")


def test_what_the_registrar_writes_once_is_found_by_what_must_not_come_twice() -> None:
    rows: list[Any] = [
        records.Inert("lrk", "replay", NOW),
        records.NonceIssue("n", "owner", 0, 9),
        records.NonceUse("n", "lrk", "registration", NOW),
        records.Compensated("lrk", "owner", "n", "a", NOW),
        records.Failure("f", NOW, "code", "cause", "row", "lrk", "replay", "a", "digest"),
    ]
    assert [row.keys() for row in rows] == [
        (records.by_inert("lrk"),),
        (records.by_nonce("n"),),
        (records.by_nonce_use("n"),),
        (records.by_compensation("n"),),
        (Key("failure.id", ("f",)),),
    ]


@pytest.mark.req("A-98")
@pytest.mark.parametrize(
    ("about", "verdict", "is_the_one"),
    [
        ("compensation", VerifyStatus.PASS, True),
        ("compensation", VerifyStatus.FAIL, False),
        ("registration", VerifyStatus.PASS, False),
        ("registration", VerifyStatus.FAIL, False),
    ],
)
def test_one_compensation_of_a_key_passes(about: records.Purpose, verdict: VerifyStatus, is_the_one: bool) -> None:
    own = records.by_verified(about, "subject")
    passed = (records.by_passed_compensation("lrk"),) if is_the_one else ()
    assert records.Verification(about, "subject", "lrk", verdict, NOW).keys() == (own, *passed)


def test_there_is_one_gate() -> None:
    gate = records.Gate(is_open=True, authority_ref="ops", reason="", changed_at=NOW, version=1)
    assert (gate.keys(), gate.due_at) == ((records.GATE,), None)


# What sealed parts and digests are bound to


@pytest.mark.req("A-62")
@pytest.mark.parametrize(
    "change",
    [
        {"principal": "bob"},
        {"client_correlation_id": "c2"},
        {"server_correlation_id": "s2"},
        {"method": "PUT"},
        {"path": "/other"},
    ],
)
def test_a_sealed_part_is_bound_to_what_never_changes_of_its_intent(change: dict[str, str]) -> None:
    intent = waiting()
    context = intent_seal_context("orders", intent, "payload")
    assert intent_seal_context("orders", msgspec.structs.replace(intent, **change), "payload") != context
    assert intent_seal_context("orders", intent, "response") != context
    assert intent_seal_context("stock", intent, "payload") != context
    assert intent_seal_context("orders", msgspec.structs.replace(intent, phase=Phase.FAILED), "payload") == context


def test_no_two_contexts_are_written_alike() -> None:
    assert intent_seal_context("orders", waiting(), "payload") == b"6:orders5:alice2:c12:s14:POST7:/orders7:payload"
    assert seal_context("orders", "c1", "payload") == b"6:orders2:c1payload"
    assert seal_context("a", "bc", "x") != seal_context("ab", "c", "x")


@pytest.mark.req("A-66")
def test_a_callback_is_kept_as_a_digest_of_its_url() -> None:
    first = callback_digest("https://a.example/told?token=1")
    assert first == callback_digest("https://a.example/told?token=1")
    assert first != callback_digest("https://a.example/told?token=2")
    assert "token" not in first


def test_an_edit_of_what_is_fixed_or_of_the_outcome_shows() -> None:
    intent = committed()
    edited = [
        msgspec.structs.replace(intent, method="PUT"),
        msgspec.structs.replace(intent, request_digest="another"),
        msgspec.structs.replace(intent, request_digest="a third"),
    ]
    assert len({fixed_facts(one) for one in [intent, *edited]}) == 4
    assert fixed_facts(msgspec.structs.replace(intent, status=500)) == fixed_facts(intent)
    outcomes = [
        msgspec.structs.replace(intent, status=500),
        msgspec.structs.replace(intent, resource_id="r2"),
        msgspec.structs.replace(intent, transaction_reference="t"),
        msgspec.structs.replace(intent, confirmed_at=1),
        msgspec.structs.replace(intent, settled_at=1),
        msgspec.structs.replace(intent, indeterminate=True),
    ]
    assert len({outcome_facts(one) for one in [intent, *outcomes]}) == 7
    later = [
        msgspec.structs.replace(one, request_digest="d", indeterminate=True) for one in (intent, edited[0], outcomes[0])
    ]
    assert len({fixed_facts(one) for one in later}) == 2  # With the younger fields too, the older ones count.
    assert len({outcome_facts(one) for one in later}) == 2


# Lines


@pytest.mark.req("A-59")
def test_a_row_that_is_forgotten_leaves_a_line() -> None:
    intent: Intent = committed()
    entry = msgspec.structs.replace(server_entry(intent, WRITER), sync_timestamp=5)
    assert purged_line(entry, NOW) == JournalEvent(
        kind="entry",
        subject="s1",
        event="purged",
        before="COMMITTED",
        after="ABSENT",
        at=NOW,
        observed_at=NOW,
        detail=f"server row, version {entry.version}, synced 5",
    )
    of_client = msgspec.structs.replace(entry, actor="client")
    assert purged_line(of_client, NOW).subject == "c1"


@pytest.mark.req("A-59")
def test_a_ledger_with_another_name_says_so() -> None:
    line = restamped_line("old", "new", NOW)
    assert (line.kind, line.subject, line.event, line.before, line.after) == (
        "ledger",
        "new",
        "restamped",
        "old",
        "new",
    )
    assert (line.at, line.observed_at) == (NOW, NOW)


@pytest.mark.req("OBL-LEAK-7")
def test_a_scan_ends_with_its_counts() -> None:
    line = scan_completed(scanned=3, leaked=1, now=NOW, trace_id="t")
    assert (line.subject, line.before, line.after, line.trace_id) == ("leak_scan", "", "", "t")
    assert (line.at, line.observed_at, line.detail) == (NOW, NOW, "scanned=3 leaked=1")


def test_what_is_forgotten_is_named() -> None:
    line = forgotten(["o1", "o2"], NOW)
    assert (line.kind, line.subject, line.event) == ("retention", "obligation", "forgotten")
    assert (line.before, line.after, line.at, line.observed_at, line.detail) == ("", "", NOW, NOW, '["o1","o2"]')


# What an obligation collides by


@pytest.mark.req("A-75")
@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (None, ""),
        ({}, ""),
        (b"", ""),
        ("", ""),
        ([], ""),
        ({"key": "k1", "n": 1}, "k1"),
        ({"key": 7}, "7"),
    ],
)
def test_a_key_is_named_by_the_payload_or_there_is_none(payload: object, key: str) -> None:
    assert canonical_key(payload) == key
    assert canonical_key(payload, "own") == "own"


@pytest.mark.req("A-75")
def test_without_a_name_equal_payloads_collide_and_no_others() -> None:
    keys = {canonical_key(payload) for payload in ({"key": "", "n": 1}, {"key": None, "n": 1}, {"n": 1}, b"n", "n", 0)}
    assert len(keys) == 6
    assert "" not in keys
    assert canonical_key({"a": 1, "b": 2}) == canonical_key({"b": 2, "a": 1})


def nested(depth: int) -> object:
    """A list in a list in a list."""
    payload: object = "x"
    for _ in range(depth):
        payload = [payload]
    return payload


@pytest.mark.parametrize("payload", [object(), {1: {2: object()}}, "\ud800", nested(100_000)], ids=type)
def test_a_payload_without_a_canonical_form_is_refused(payload: object) -> None:
    with pytest.raises(Refused) as refusal:
        canonical_key(payload)
    assert refusal.value.code == "payload_not_canonical"


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(Refused) as refusal:
        canonical_key({}, "")
    assert refusal.value.code == "empty_key"
