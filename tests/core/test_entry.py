"""The ledger row: sixteen fields, computed from the intent and from nothing else (draft §9.8, §10.2)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophp.core.entry import FIELDS, LedgerEntry, Writer, broken_rules, outcome_of, server_entry
from twophp.core.identity import principal_digest
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.intent_commands import Confirm, Register, Settle, Tick
from twophp.core.phase import decide
from twophp.core.policy import Policy

WRITER = Writer(source="serviceA", service_ledger_id="6f1e1b0a-0000-4000-8000-000000000001")
POLICY = Policy.standard()

REGISTER = Register(
    client_correlation_id="client-corr-id1",
    server_correlation_id="server-corr-id1",
    principal=principal_digest("anonymous", "", ""),
    replay_key="ab" * 32,
    mode=Mode.STANDARD,
    service_endpoint="serviceA/orders",
    path="/orders",
    arrived_at=1_000,
)
CONFIRM = Confirm(
    client_correlation_id="client-corr-id1",
    server_correlation_id="server-corr-id1",
    principal=REGISTER.principal,
    path="/orders",
    arrived_at=2_000,
    owner="worker",
)


def waiting(**changes: object) -> Intent:
    found = decide(None, msgspec.structs.replace(REGISTER, **changes), 1_000, POLICY).intent
    assert found is not None
    return found


def processing() -> Intent:
    found = decide(waiting(), CONFIRM, 2_000, POLICY).intent
    assert found is not None
    return found


def settled(*, succeeded: bool) -> Intent:
    settle = Settle(fence=1, succeeded=succeeded, status=201, resource_id="42", transaction_reference="tx-9")
    found = decide(processing(), settle, 3_000, POLICY).intent
    assert found is not None
    return found


def expired(now: int) -> Intent:
    found = decide(waiting(), Tick(), now, POLICY).intent
    assert found is not None
    return found


def client_row(**changes: object) -> LedgerEntry:
    row = server_entry(waiting(), WRITER)
    return msgspec.structs.replace(row, **({"actor": "client", "target": "serviceA", "source": "client"} | changes))


@pytest.mark.req("P-9.8-0")
def test_a_row_has_the_sixteen_fields_of_the_draft_in_its_order() -> None:
    assert FIELDS == (
        "client_correlation_id",
        "server_correlation_id",
        "service_ledger_id",
        "service_endpoint",
        "actor",
        "source",
        "target",
        "parent_reference_id",
        "phase",
        "phase_1_timestamp",
        "phase_2_timestamp",
        "ttl_ms",
        "outcome",
        "payload_ref",
        "sync_timestamp",
        "transaction_reference",
    )
    assert set(msgspec.structs.asdict(server_entry(waiting(), WRITER))) >= set(FIELDS)


@pytest.mark.req("P-9.8-01", "P-9.8-02", "P-9.8-03", "P-9.8-04", "P-9.8-05", "P-9.8-06", "P-9.8-07", "P-9.8-07b")
def test_a_server_row_names_its_pair_its_writer_and_no_target() -> None:
    row = server_entry(waiting(), WRITER)
    assert (row.client_correlation_id, row.server_correlation_id) == ("client-corr-id1", "server-corr-id1")
    assert (row.service_ledger_id, row.source) == (WRITER.service_ledger_id, "serviceA")
    assert (row.service_endpoint, row.actor, row.target) == ("serviceA/orders", "server", None)


@pytest.mark.req("P-9.8-08", "P-10.2-c", "A-50")
def test_a_server_rows_parent_is_the_id_its_caller_supplied() -> None:
    assert server_entry(waiting(), WRITER).parent_reference_id == "client-corr-id1"


@pytest.mark.req("P-9.8-09", "P-9.8-13", "A-45")
@pytest.mark.parametrize(
    ("intent", "phase", "outcome"),
    [
        (waiting(), Phase.WAITING_CONFIRM, None),
        (processing(), Phase.PROCESSING, None),
        (settled(succeeded=True), Phase.COMMITTED, Phase.COMMITTED),
        (settled(succeeded=False), Phase.FAILED, Phase.FAILED),
        (expired(31_000), Phase.TTL_EXPIRED, Phase.TTL_EXPIRED),
        (expired(36_000), Phase.ABANDONED, Phase.ABANDONED),
    ],
)
def test_the_outcome_is_the_final_phase_and_null_before_it(intent: Intent, phase: Phase, outcome: Phase | None) -> None:
    row = server_entry(intent, WRITER)
    assert (row.phase, row.outcome) == (phase, outcome)
    assert outcome_of(phase) == outcome
    assert broken_rules(row) == []


@pytest.mark.req("P-9.8-10", "P-9.8-11", "A-56")
def test_timestamps_are_arrivals_and_phase_2_has_none_until_it_arrives() -> None:
    assert server_entry(waiting(), WRITER).phase_1_timestamp == 1_000
    assert server_entry(waiting(), WRITER).phase_2_timestamp is None
    assert server_entry(processing(), WRITER).phase_2_timestamp == 2_000


@pytest.mark.req("P-9.8-11", "A-44")
def test_auto_confirm_has_no_phase_2() -> None:
    row = server_entry(waiting(mode=Mode.AUTO_CONFIRM, owner="worker"), WRITER)
    assert (row.phase, row.phase_2_timestamp, row.ttl_ms) == (Phase.PROCESSING, None, POLICY.ttl_ms)


@pytest.mark.req("P-9.8-12")
def test_the_ttl_is_the_one_in_force() -> None:
    assert server_entry(waiting(), WRITER).ttl_ms == 30_000
    assert server_entry(waiting(requested_ttl_ms=45_000), WRITER).ttl_ms == 45_000


@pytest.mark.req("P-9.8-14")
def test_the_payload_is_pointed_at_while_it_is_there() -> None:
    assert server_entry(waiting(), WRITER).payload_ref == "vault:server-corr-id1/payload"
    assert server_entry(expired(36_000), WRITER).payload_ref is None


@pytest.mark.req("P-9.8-16", "A-58")
def test_the_transaction_reference_is_what_the_handler_gave() -> None:
    assert server_entry(waiting(), WRITER).transaction_reference is None
    assert server_entry(settled(succeeded=True), WRITER).transaction_reference == "tx-9"


@pytest.mark.req("P-9.8-15", "A-57")
def test_a_new_version_is_unsynced_and_versions_rise() -> None:
    rows = [server_entry(intent, WRITER) for intent in (waiting(), processing(), settled(succeeded=True))]
    assert [row.version for row in rows] == [1, 2, 3]
    assert {row.sync_timestamp for row in rows} == {None}


@pytest.mark.req("P-10.2-e", "P-9.8-07b", "P-9.8-05", "P-10.2-c", "A-49")
@pytest.mark.parametrize(
    ("row", "told"),
    [
        (msgspec.structs.replace(server_entry(waiting(), WRITER), target="serviceB"), "target"),
        (client_row(target=None), "target"),
        (client_row(phase=Phase.ABANDONED, outcome=Phase.ABANDONED), "ABANDONED"),
        (client_row(outcome=Phase.COMMITTED), "outcome"),
        (client_row(actor="observer"), "actor"),
        (client_row(ttl_ms=0), "ttl_ms"),
        (client_row(version=0), "version"),
        (client_row(source=""), "writer"),
        (client_row(server_correlation_id=""), "both correlation ids"),
        (msgspec.structs.replace(server_entry(waiting(), WRITER), parent_reference_id="other"), "parent"),
    ],
)
def test_a_foreign_row_that_breaks_a_rule_is_told_which(row: LedgerEntry, told: str) -> None:
    assert any(told in rule for rule in broken_rules(row))


@pytest.mark.req("P-10.2-e", "A-50")
def test_client_rows_may_be_roots_or_children() -> None:
    assert broken_rules(client_row()) == []
    assert broken_rules(client_row(parent_reference_id="client-corr-id0")) == []


@pytest.mark.req("P-13.1-a", "A-13")
@given(st.text("ABCxyz019._~:-", min_size=1, max_size=128), st.text("ABCxyz019._~:-", min_size=1, max_size=128))
def test_ids_are_opaque(client_id: str, server_id: str) -> None:
    intent = waiting(client_correlation_id=client_id, server_correlation_id=server_id)
    row = server_entry(intent, WRITER)
    assert (row.client_correlation_id, row.server_correlation_id) == (client_id, server_id)
    assert broken_rules(row) == []
