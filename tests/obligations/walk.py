"""Random walks over a tracker, by threads and by processes, and what they leave behind."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from tests.obligations.scene import Sink
from twophp.obligations import AuditLine, Effect, Obligation, ObligationError, ObligationTracker, Statement

FLOWS = ("publish", "revoke", "publish")
KEYS = ("", "k1", "k2", "k3")
TIMEOUTS_S = (0.004, 0.05, 5.0)
SECONDS = 0.05  # The scan's interval, and the shortest timeout of the tracker's own.
CODES = {
    "commit": {"ERR_OBL_ALREADY_COMMITTED", "ERR_OBL_ALREADY_ROLLED_BACK", "ERR_OBL_LEAK_TIMEOUT"},
    "rollback": {"ERR_OBL_ALREADY_COMMITTED"},
    "reserve": {"ERR_OBL_DUPLICATE_RESERVE"},
}


def make_table(path: Path) -> None:
    """The business table that commits write into."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    connection.execute("CREATE TABLE done (obligation_id TEXT PRIMARY KEY)")
    connection.close()


def effects_file(path: Path) -> Path:
    return path.with_suffix(".effects")


@contextmanager
def acting(url: str) -> Iterator[ObligationTracker]:
    """A tracker whose effects of ``publish`` become visible as lines of a file that all processes share."""
    file = effects_file(Path(url.removeprefix("sqlite:///")))
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def show(effect: Effect) -> None:
        os.write(out, f"{effect.obligation_id}\n".encode())

    try:
        with ObligationTracker(
            url, effects={"publish": show}, leak_timeout_secs=SECONDS, scan_interval_secs=SECONDS
        ) as tracker:
            yield tracker
    finally:
        os.close(out)


class Walk:
    """One thread's steps. A refusal must have a code that the contract has for it."""

    def __init__(
        self, tracker: ObligationTracker, source: random.Random, pass_time: Callable[[], None] | None = None
    ) -> None:
        self._tracker = tracker
        self._source = source
        self._pass_time = pass_time or (lambda: None)
        self._applies = tracker._runtime.store.takes_statements
        self.ids: list[str] = []

    def go(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            step = self._source.choice((self.reserve, self.reserve, self.commit, self.commit, self.rollback, self.rest))
            step()

    def reserve(self) -> None:
        pick = self._source.choice
        with self._refusals("reserve"):
            oid = self._tracker.reserve(
                pick(FLOWS), {"n": len(self.ids), "key": pick(KEYS)}, "t", timeout_secs=pick(TIMEOUTS_S)
            )
            self.ids.append(oid)

    def commit(self) -> None:
        if oid := self._some():
            apply = Statement(sql="INSERT INTO done VALUES (?)", rows=[(oid,)])
            with self._refusals("commit"):
                self._tracker.commit(oid, "t", apply=apply if self._applies else ())

    def rollback(self) -> None:
        if oid := self._some():
            with self._refusals("rollback"):
                for _ in range(self._source.choice((1, 3))):
                    assert self._tracker.rollback(oid, "t").code is None

    def rest(self) -> None:
        self._pass_time()
        if self._source.random() < 0.2:
            self._tracker.run_leak_scan("t-scan")

    def _some(self) -> str | None:
        """One of ours that we made lately, or another thread's."""
        if self._source.random() < 0.3:
            others = self._tracker.list(state="Reserved", limit=5)
            if others:
                return self._source.choice(others).obligation_id
        return self._source.choice(self.ids[-6:]) if self.ids else None

    @contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        try:
            yield
        except ObligationError as error:
            if error.code not in CODES[what]:
                raise


@dataclass
class Remains:
    """Everything that can be seen after a walk, and after one more scan."""

    now: int
    obligations: dict[str, Obligation]
    audit: list[AuditLine]
    effects: Counter[str] | None  # None where no test asks for them.
    applied: list[str] | None  # The business rows; None where the store takes none.


def walk_in_threads(tracker: ObligationTracker, seed: int, pass_time: Callable[[], None], threads: int = 4) -> None:
    """Several threads at once; the first failure of any is raised here."""
    failures: list[BaseException] = []

    def go(number: int) -> None:
        try:
            Walk(tracker, random.Random(f"{seed}/{number}"), pass_time).go(120)  # noqa: S311
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    running = [threading.Thread(target=go, args=(number,)) for number in range(threads)]
    patience = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # So that a thread is interrupted anywhere, and not once in a while.
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(patience)
    if failures:
        raise failures[0]


def remains_of(tracker: ObligationTracker, sink: Sink | None, shown: list[str], path: Path | None) -> Remains:
    """Look at everything, once what is committed has been delivered."""
    tracker.run_leak_scan("t-last")
    found = {one.obligation_id: one for one in tracker.list(limit=10_000)}
    committed = {oid for oid, one in found.items() if one.state == "Committed" and one.flow == "publish"}
    if sink is not None:
        sink.wait_for(len(committed - set(shown)))
    return Remains(
        now=tracker._runtime.store.now(),
        obligations=found,
        audit=list(tracker.audit()),
        effects=None if sink is None else Counter([*shown, *sink.ids]),
        applied=None if path is None else _applied(path),
    )


def _applied(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    try:
        return [row[0] for row in connection.execute("SELECT obligation_id FROM done")]
    finally:
        connection.close()
