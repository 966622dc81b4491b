"""Decide a batch of commands: the changes, and each caller's answer once they are durable.

``apply`` does no I/O and knows no driver. A driver loads the records under the commands' keys into slots, applies the
commands in order of arrival, and writes the operations under guards: all of them or none. A record that several
commands touched is written once, as it is in the end; its history is written line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from twophp.core.errors import StoreError
from twophp.core.records import Instant, JournalEvent, Key
from twophp.kernel.overlay import Check, Overlay, Slot, Slots, View
from twophp.ports import Change, Command, Purge, Statement, Synced, Then


class Done(Protocol):
    """The receiver of an outcome that is no callback: a future of asyncio."""

    def done(self) -> bool:
        """Whether it has an outcome, or was cancelled."""
        ...

    def set_result(self, result: Any, /) -> None:
        """The change is durable, and this is the answer."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """The change is not durable, or that is unknown."""
        ...


Job: TypeAlias = tuple[Command, Done | Then]
"""A command that waits for its batch, and the receiver of its outcome."""


class Failure:
    """An error to raise to a caller instead of an answer."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        # A future cannot carry StopIteration.
        self.error = RuntimeError(f"decide raised {error!r}") if isinstance(error, StopIteration) else error


Outcome: TypeAlias = Any | Failure


class Snapshot(msgspec.Struct, frozen=True):
    """The records that a driver has loaded. ``slots`` may hold more than a batch names, and ``apply`` changes it.

    If a later step fails, the driver has to forget the slots: their changes are not undone.
    """

    slots: Slots
    refused: Mapping[Key, Failure] = {}  # Records on which every command is refused.
    check: Check | None = None  # The driver's own constraints on ledger rows, if its database has none.
    takes_statements: bool = True


class Operations(msgspec.Struct, gc=False):
    """What becomes durable together, in the order of the fields: a unique key is freed before another row takes it."""

    at: Instant  # The store's time, which the batch may have moved on.
    purges: list[Purge]  # Each brings its line only if its row was there to be purged.
    dropped: Mapping[Slot, None]  # Rows to delete with their sealed parts, unless they are new (``stored`` is 0).
    changed: Mapping[Slot, None]  # Rows to insert, or to update if they still have the version ``stored``.
    lines: list[tuple[Slot | None, JournalEvent]]  # To be chained once every slot has its id.
    statements: list[Statement]
    synced: list[Synced]  # After all rows are written, so that a row which changes here is not marked.

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.changed or self.dropped or self.lines or self.statements or self.synced or self.purges)


class Applied(msgspec.Struct, frozen=True):
    """The result of a batch."""

    operations: Operations
    answers: list[Outcome]  # One for each command.
    trials: dict[int, tuple[Statement, ...]]  # By the place of the answer that an error of the trial replaces.


def apply(snapshot: Snapshot, commands: Iterable[Command], now: Instant) -> Applied:
    """Decide every command on the loaded records and on the changes of the commands before it.

    An error of a command or of its change goes to its own caller alone.
    """
    overlay = Overlay(snapshot.slots, snapshot.check)
    operations = Operations(now, [], overlay.dropped, overlay.changed, overlay.lines, [], [])
    view, refused = View((), snapshot.slots, now), snapshot.refused
    answers: list[Outcome] = []
    trials: dict[int, tuple[Statement, ...]] = {}
    for command in commands:
        keys = command.keys
        if refused and (failure := _refusal(refused, keys)) is not None:
            answers.append(failure)
            continue
        view.keys = keys
        try:
            change = command.decide(view)
            if not snapshot.takes_statements:
                _refuse_statements(change)
            if change.puts or change.drops:
                overlay.make(change, keys)
            if change.journal or change.statements or change.synced or change.purges:
                _add(operations, change)
            if change.trial:
                trials[len(answers)] = change.trial
        except Exception as error:  # noqa: BLE001 - goes to this caller alone.
            answers.append(Failure(error))
        else:
            answers.append(change.answer)
    for _slot, event in operations.lines:
        operations.at = max(operations.at, event.observed_at)  # It may be ahead of a clock that was set back.
    return Applied(operations, answers, trials)


def look(
    snapshot: Snapshot, commands: Iterable[Command], now: Instant, refuse: Callable[[], Failure], *, must_be_there: bool
) -> list[Outcome]:
    """Decide every command by itself and write nothing: a command that would change a record is refused.

    With ``must_be_there`` a command that finds no record is refused as well.
    """
    view = View((), snapshot.slots, now)
    answers: list[Outcome] = []
    for command in commands:
        keys = command.keys
        if snapshot.refused and (failure := _refusal(snapshot.refused, keys)) is not None:
            answers.append(failure)
            continue
        view.keys = keys
        if must_be_there and all(view.get(key) is None for key in keys):
            answers.append(refuse())
            continue
        try:
            change = command.decide(view)
            answers.append(refuse() if _writes(change) else change.answer)
        except Exception as error:  # noqa: BLE001 - goes to this caller alone.
            answers.append(Failure(error))
    return answers


def _refusal(refused: Mapping[Key, Failure], keys: Sequence[Key]) -> Failure | None:
    return next((refused[key] for key in keys if key in refused), None)


def _refuse_statements(change: Change) -> None:
    if change.statements or change.trial:
        raise StoreError("this store runs no SQL", code="no_sql")


def _writes(change: Change) -> bool:
    return bool(change.puts or change.drops or change.journal or change.statements or change.synced or change.purges)


def _add(operations: Operations, change: Change) -> None:
    """Add the parts of a change that belong to no single record."""
    operations.lines.extend((None, event) for event in change.journal)
    operations.statements.extend(change.statements)
    operations.synced.extend(change.synced)
    operations.purges.extend(change.purges)
