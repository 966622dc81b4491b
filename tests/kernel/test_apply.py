"""A batch of commands, applied without any store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from twophp.core.errors import ConstraintViolation, StoreError
from twophp.core.obligation import by_flow_and_key, by_id
from twophp.core.records import JournalEvent
from twophp.kernel.apply import Applied, Failure, Snapshot, apply
from twophp.kernel.commands import AdHocCommand, MakeChange, ReadRecords
from twophp.kernel.overlay import Slot, Slots
from twophp.ports import Change, Command, Put
from twophp.stores.testing.scene import T0, fresh_obligation, obligation_change

A, B, C = (by_id(name) for name in "abc")


def put(name: str, key: str = "") -> Put:
    (made,) = obligation_change(fresh_obligation(name, key)).puts
    return made


def run(slots: Slots, *commands: Command) -> Applied:
    return apply(Snapshot(slots), commands, T0)


def making(*puts: Put, drops: tuple = ()) -> MakeChange:  # type: ignore[type-arg]
    return MakeChange(Change(answer="made", puts=puts, drops=drops))


@pytest.mark.req("A-47")
def test_a_later_command_of_a_batch_sees_what_an_earlier_one_changed() -> None:
    applied = run({}, making(put("a")), ReadRecords((A, B)), making(put("b")), ReadRecords((A, B)))
    a, b = put("a").record, put("b").record
    assert applied.answers == ["made", [a, None], "made", [a, b]]
    assert [slot.record for slot in applied.operations.changed] == [a, b]


@pytest.mark.req("A-47")
def test_a_refused_change_leaves_nothing_and_what_came_before_stays() -> None:
    slots: Slots = {}
    bad = making(put("b"), put("c", "key"))  # The first of the two is made before the second is refused.
    applied = run(slots, making(put("a", "key")), bad, ReadRecords((A, B, C)))
    refused = applied.answers[1]
    assert isinstance(refused, Failure)
    assert isinstance(refused.error, ConstraintViolation)
    assert applied.answers[2] == [put("a", "key").record, None, None]
    assert set(slots) == {A, by_flow_and_key("publish", "key")}
    assert len(applied.operations.changed) == len(applied.operations.lines) == 1


def test_a_drop_that_is_undone_gives_its_keys_back() -> None:
    record = put("a", "key").record
    slot = Slot(record, record.keys(), id=7, stored=1)
    slots = dict.fromkeys(record.keys(), slot)
    drops = AdHocCommand((A, B), lambda _records: Change(answer=None, drops=(A, B)))
    applied = run(slots, drops, ReadRecords((A,)))
    assert isinstance(applied.answers[0], Failure)
    assert applied.answers[1] == [record]
    assert applied.operations.is_empty
    assert (set(slots), slot.is_dropped) == ({*record.keys()}, False)


def test_a_record_that_the_command_has_not_read_cannot_be_changed() -> None:
    record = put("a").record
    slots = dict.fromkeys(record.keys(), Slot(record, record.keys(), id=7, stored=1))
    next_one = Put(record=replace(record, version=2))  # type: ignore[type-var]
    (blind,) = run(slots, making(next_one)).answers
    assert isinstance(blind, Failure)
    assert isinstance(blind.error, StoreError)
    (seen,) = run(slots, AdHocCommand((A,), lambda _records: Change(answer="seen", puts=(next_one,)))).answers
    assert seen == "seen"


@pytest.mark.req("A-29")
def test_the_time_of_a_batch_is_not_before_what_its_lines_observed() -> None:
    line = JournalEvent("test", "x", "happened", "", "", T0, T0 + 5)
    assert run({}, MakeChange(Change(answer=None, journal=(line,)))).operations.at == T0 + 5


@pytest.mark.req("A-47")
@pytest.mark.parametrize("version", [1, 3])
def test_a_put_that_keeps_its_keys_is_checked_before_any_of_its_change_is_made(version: int) -> None:
    record = put("a").record
    slots: Slots = dict.fromkeys(record.keys(), Slot(record, record.keys(), id=7, stored=1))
    stale = Put(record=replace(record, version=version), held=A)  # type: ignore[type-var]
    beside = AdHocCommand((A,), lambda _records: Change(answer="made", puts=(put("b"), stale)))
    applied = run(slots, beside, ReadRecords((A, B)))
    assert isinstance(applied.answers[0], Failure)
    assert applied.answers[1] == [record, None]
    assert applied.operations.is_empty


def test_a_put_keeps_the_keys_of_a_record_that_the_command_has_named_and_of_no_other() -> None:
    record = put("a", "key").record
    slots: Slots = dict.fromkeys(record.keys(), Slot(record, record.keys(), id=7, stored=1))
    renewed = Put(record=replace(record, version=2), held=A)  # type: ignore[type-var]
    for named in ((), (B,)):
        (blind,) = run(slots, AdHocCommand(named, lambda _records: Change(answer="made", puts=(renewed,)))).answers
        assert isinstance(blind, Failure)
    (seen,) = run(slots, AdHocCommand((A,), lambda _records: Change(answer="seen", puts=(renewed,)))).answers
    assert seen == "seen"
    assert slots[A] is slots[by_flow_and_key("publish", "key")]
    assert (slots[A].record, slots[A].keys) == (renewed.record, record.keys())


@pytest.mark.req("A-47")
@pytest.mark.parametrize("versions", [(2, 2), (2, 3)])
def test_a_change_puts_a_record_that_keeps_its_keys_once(versions: tuple[int, int]) -> None:
    record = put("a").record
    slots: Slots = dict.fromkeys(record.keys(), Slot(record, record.keys(), id=7, stored=1))
    both = tuple(Put(record=replace(record, version=version), held=A) for version in versions)  # type: ignore[type-var]
    (refused,) = run(slots, AdHocCommand((A,), lambda _records: Change(answer="made", puts=both))).answers
    assert isinstance(refused, Failure)
    assert slots[A].record is record
