"""The short way of the memory store is the long way, made quicker: same answers, same records, same chain of hashes."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.obligations.scene import HandClock
from twophp.obligations import ObligationError, ObligationTracker
from twophp.stores.memory import MemoryStore

STEPS = 500
PAYLOADS: tuple[Any, ...] = (None, {}, {"key": "k1"}, {"key": 7}, {"n": [1, 2]}, b"", b"bytes", "text", ["k1"])


class Walk:
    """What happens, drawn once, to a tracker; what it answered is kept."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.clock = HandClock()
        self.tracker = ObligationTracker("memory:", clock=self.clock, scan_interval_secs=None, **options)
        self.draw = random.Random(seed)  # noqa: S311 - a walk must be the same every time
        self.ids = ["nobody"]
        self.answers: list[object] = []

    def step(self) -> None:
        doing = self.draw.choice((self.reserve, self.reserve, self.settle, self.settle, self.guard, self.pass_time))
        try:
            self.answers.append(doing())
        except ObligationError as error:
            self.answers.append((error.code, error.obligation))

    def reserve(self) -> object:
        key, timeout = self.draw.choice((None, None, "k1", "k2")), self.draw.choice((None, 0.005, 1.0))
        flow, payload = self.draw.choice(("publish", "revoke")), self.draw.choice(PAYLOADS)
        self.ids.append(self.tracker.reserve(flow, payload, "t-reserve", key=key, timeout_secs=timeout))
        return self.ids[-1]

    def settle(self) -> object:
        found, way = self.draw.choice(self.ids[-6:]), self.draw.choice(("commit", "commit", "rollback", "strict"))
        if way == "commit":
            return self.tracker.commit(found, self.draw.choice(("", "t-commit")))
        return self.tracker.rollback(found, "t-rollback", strict=way == "strict")

    def guard(self) -> object:
        with self.tracker.guard("publish", {"key": "k3"}, "t-guard") as held:
            self.ids.append(held.obligation_id)
            return held.commit() if self.draw.random() < 0.5 else None

    def pass_time(self) -> object:
        self.clock.now += self.draw.choice((-3, 0, 1, 4, 5, 900, 30_000))
        return self.tracker.run_leak_scan() if self.draw.random() < 0.3 else None

    def remains(self) -> object:
        tracker = self.tracker
        records = tracker.list(limit=10_000)
        payloads = [tracker.payload(one.obligation_id) for one in records]
        histories = [tracker.history(one.obligation_id) for one in records[:20]]
        return records, payloads, histories, list(tracker.audit()), tracker.report()


@pytest.mark.req("OBL-INV-5", "OBL-SM-1")
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_answer_the_same_and_leave_the_same_behind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twophp.obligations.runtime.ids_in_order", lambda: map("o-{}".format, count()).__next__)
    short, long = Walk(seed), Walk(seed, metrics=CollectorRegistry())  # A tracker with metrics takes the long way.
    assert isinstance(short.tracker._at_once, MemoryStore)
    assert long.tracker._at_once is None
    for number in range(STEPS):
        for walk in (short, long):
            walk.step()
        assert short.answers[-1] == long.answers[-1], number
    assert short.remains() == long.remains()
    told = {answer[0] for answer in short.answers if isinstance(answer, tuple)}
    assert {"ERR_OBL_DUPLICATE_RESERVE", "ERR_OBL_LEAK_TIMEOUT", "ERR_OBL_ALREADY_COMMITTED"} <= told


def test_what_was_reserved_is_what_was_given_whatever_becomes_of_it_afterwards() -> None:
    payload: dict[str, Any] = {"key": "k1", "rows": [1]}
    with ObligationTracker("memory:", scan_interval_secs=None) as tracker:
        oid = tracker.reserve("publish", payload, "t")
        payload["rows"].append(2)
        payload["key"] = "k2"
        assert (tracker.payload(oid), tracker.get(oid).key) == ({"key": "k1", "rows": [1]}, "k1")
