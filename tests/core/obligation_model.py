"""The obligation contract once more, as its prose tells it, and a tracker's worth of surroundings.

The model has no table: it keeps when something was reserved and how it ended. ``World`` plays a small tracker around
the machine (records by key, the audit log, the effects that became visible) and compares after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from twophp.core import obligation
from twophp.core.errors import Refused
from twophp.core.machine import Goto, Ignore, Refuse, Replay
from twophp.core.obligation import Commit, Decision, Obligation, Reserve, Rollback, Scan, decide, scan_completed
from twophp.core.records import JournalEvent, Key

GO, SAME, NOTHING = "go", "replay", "nothing"


@dataclass
class Promise:
    """One reservation as the contract tells it."""

    flow: str
    key: str
    since: int
    timeout: int
    state: str = "Reserved"
    by: str = ""

    def is_overdue(self, now: int) -> bool:
        return self.state == "Reserved" and now - self.since >= self.timeout

    def leak(self) -> None:
        self.state, self.by = "RolledBack", "leak_scan"

    def reserve_again(self, now: int) -> str:
        if not self.is_overdue(now):
            return SAME
        self.leak()
        return "ERR_OBL_LEAK_TIMEOUT"

    def commit(self, now: int) -> str:
        if self.state != "Reserved":
            return "ERR_OBL_ALREADY_COMMITTED" if self.state == "Committed" else "ERR_OBL_ALREADY_ROLLED_BACK"
        if self.is_overdue(now):
            self.leak()
            return "ERR_OBL_LEAK_TIMEOUT"
        self.state, self.by = "Committed", "caller"
        return GO

    def rollback(self, command: Rollback) -> str:
        if self.state == "Committed":
            return "ERR_OBL_ALREADY_COMMITTED"
        if self.state == "RolledBack":
            return "ERR_OBL_ALREADY_ROLLED_BACK" if command.strict else SAME
        self.state, self.by = "RolledBack", command.resolution
        return GO

    def scan(self, now: int) -> str:
        if not self.is_overdue(now):
            return NOTHING
        self.leak()
        return GO


@dataclass
class World:
    """Records, audit log and visible effects around the machine; promises beside it."""

    now: int = 1_000
    steps: int = 0
    records: dict[str, Obligation] = field(default_factory=dict)
    held: dict[Key, str] = field(default_factory=dict)  # The unique keys that a store would keep.
    log: list[JournalEvent] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)

    def reserve(self, command: Reserve) -> str:
        found = self.records.get(command.obligation_id) or self._holder(command)
        told = self.promises.get(command.obligation_id)
        if told and (told.flow, told.key) != (command.flow, command.key):
            return self._mismatch(found, command)
        decision = decide(found, command, self.now)
        self._compare(decision, self._promise(command))
        return self._store(decision)

    def _mismatch(self, found: Obligation | None, command: Reserve) -> str:
        with pytest.raises(Refused) as refused:
            decide(found, command, self.now)
        self.steps += 1
        assert refused.value.code == "reserve_mismatch"
        return refused.value.code

    def commit(self, name: str) -> str:
        decision = decide(self.records.get(name), Commit(trace_id="t-commit"), self.now)
        promise = self.promises.get(name)
        self._compare(decision, promise.commit(self.now) if promise else "ERR_OBL_NOT_FOUND")
        return self._store(decision)

    def rollback(self, name: str, command: Rollback) -> str:
        decision = decide(self.records.get(name), command, self.now)
        promise = self.promises.get(name)
        self._compare(decision, promise.rollback(command) if promise else "ERR_OBL_NOT_FOUND")
        return self._store(decision)

    def scan(self, name: str) -> str:
        decision = decide(self.records.get(name), Scan(), self.now)
        promise = self.promises.get(name)
        self._compare(decision, promise.scan(self.now) if promise else NOTHING)
        return self._store(decision)

    def scan_all(self) -> int:
        """The scan of the contract, steps 1 to 5; returns how many leaked."""
        reserved = [name for name, record in self.records.items() if record.state == "Reserved"]
        leaked = sum(self.scan(name) == GO for name in reserved)
        self.log.append(scan_completed(scanned=len(reserved), leaked=leaked, now=self.now))
        return leaked

    def _holder(self, command: Reserve) -> Obligation | None:
        """The holder of flow and key; else the last holder, which a store may find and which must not matter."""
        if not command.key:
            return None
        name = self.held.get(obligation.by_flow_and_key(command.flow, command.key))
        if name is not None:
            return self.records[name]
        last = [record for record in self.records.values() if (record.flow, record.key) == (command.flow, command.key)]
        return last[-1] if last else None

    def _promise(self, command: Reserve) -> str:
        if known := self.promises.get(command.obligation_id):
            return known.reserve_again(self.now)
        for other in self.promises.values():
            if command.key and (other.flow, other.key) == (command.flow, command.key) and other.state == "Reserved":
                if not other.is_overdue(self.now):
                    return "ERR_OBL_DUPLICATE_RESERVE"
                other.leak()
        told = (command.flow, command.key, self.now, command.timeout_ms)
        self.promises[command.obligation_id] = Promise(*told)
        return GO

    def _compare(self, decision: Decision, word: str) -> None:
        self.steps += 1
        assert word_of(decision) == word, decision

    def _store(self, decision: Decision) -> str:
        """What a store does with a decision: all records and all events, or nothing."""
        for record in decision.records:
            name, before = record.obligation_id, self.records.get(record.obligation_id)
            assert record.version == (before.version if before else 0) + 1
            for key in before.keys() if before else ():
                del self.held[key]
            for key in record.keys():  # noqa: SIM118 - A record is no mapping.
                assert key not in self.held, "two records under one unique key"
                self.held[key] = name
            self.records[name] = record
        self.log.extend(decision.steps)
        assert decision.changed == bool(decision.records) == bool(decision.steps)
        assert len(decision.records) == len(decision.steps)
        self._make_visible(decision)
        self._check_states()
        return word_of(decision)

    def _make_visible(self, decision: Decision) -> None:
        self.effects.extend(step.subject for step in decision.steps if step.event == "OBL-002")

    def _check_states(self) -> None:
        assert self.records.keys() == self.promises.keys()
        for name, promise in self.promises.items():
            record = self.records[name]
            assert (record.state.value, record.resolution) == (promise.state, promise.by)
            assert (record.due_at is None) == (promise.state != "Reserved")


def word_of(decision: Decision) -> str:
    verdict = decision.verdict
    if isinstance(verdict, Refuse):
        return verdict.code
    return {Goto: GO, Replay: SAME, Ignore: NOTHING}[type(verdict)]


# The invariants of the contract, each a property of a world.


def inv_obl_two_phase(world: World) -> None:
    """Every visible effect was reserved first and is Committed."""
    reserved = [event.subject for event in world.log if event.event == "OBL-001"]
    assert all(name in reserved and world.records[name].state == "Committed" for name in world.effects)


def inv_obl_no_leak(world: World) -> None:
    """Right after a scan, nothing is Reserved at or over its timeout."""
    world.scan_all()
    ages = [(world.now - promise.since, promise) for promise in world.promises.values() if promise.state == "Reserved"]
    assert all(age < promise.timeout for age, promise in ages)


def inv_obl_atomic_commit(world: World) -> None:
    """An effect is visible exactly once if Committed, and not at all otherwise."""
    for name, record in world.records.items():
        assert world.effects.count(name) == (record.state == "Committed")


def inv_obl_rollback_safe(world: World) -> None:
    """Rolling back what is rolled back succeeds, changes nothing and says nothing new."""
    for record in world.records.values():
        if record.state == "RolledBack":
            decision = decide(record, Rollback(trace_id="t"), world.now)
            assert (decision.code, decision.obligation, decision.steps) == (None, record, ())


def inv_obl_audit_complete(world: World) -> None:
    """The audit log alone reproduces every state."""
    states: dict[str, str] = {}
    for event in world.log:
        if event.event != "OBL-005":
            assert states.get(event.subject, "Absent") == event.before
            states[event.subject] = event.after
    assert states == {name: record.state.value for name, record in world.records.items()}


def inv_obl_scan_periodic(world: World) -> None:
    """A scan finds every overdue obligation by its due time alone, at any interval of scans, and reports itself."""
    overdue = {
        name for name, record in world.records.items() if record.due_at is not None and record.due_at <= world.now
    }
    assert world.scan_all() == len(overdue)
    assert world.log[-1].event == "OBL-005"
    assert world.scan_all() == 0
