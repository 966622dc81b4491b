"""Verification: the journal's chain holds, and records and ledger rows agree with it.

First the chain (``verify_chain``). Then every record is compared with the last line about it, intents and obligations
also with what the lines of their beginning and their end bind, and every ledger row with its record. All of it is read
in one snapshot, row by row: memory does not grow with the journal.

A chain alone cannot show a history that was rewritten from some line to the end, head included. An auditor who noted
``seq:hash`` of an earlier head, as every report gives it, finds that too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, Self, TypeAlias

import apsw
import msgspec

from twophp.core.call import IN_LEDGER, Call, call_facts
from twophp.core.entry import LEDGER_ID, LedgerEntry, Writer, client_entry
from twophp.core.errors import ConfigError, JournalBroken, StoreError
from twophp.core.intent import SETTLED, Intent, Phase, fixed_facts, outcome_facts
from twophp.core.obligation import LEAK_EVENT, RESERVED_EVENT, Obligation
from twophp.core.records import Instant
from twophp.kernel.journal import GENESIS
from twophp.ports import Vault
from twophp.stores.sqlite import hashes, verify_registrar
from twophp.stores.sqlite.reading import kept, snapshot
from twophp.stores.sqlite.seals import SealRow
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table
from twophp.stores.sqlite.tables import CALLS, INTENT_HASH, INTENT_PLACE, INTENTS, JOBS, OBLIGATIONS, TABLES, entry_of
from twophp.stores.sqlite.verify_chain import ChainFinding, ChainInspection, Find, Place

FINDINGS_NAMED: Final = 100
PROGRESS_EVERY: Final = 1_000
HASH_BYTES: Final = 32

# Assigned by the central ledger, and by renewals that write no row.
_NOT_MIRRORED: Final = frozenset({"sync_timestamp", "version"})

# What the last line about a record repeats of it: its id, its state and its fence, under the record's own names.
_REPEATED: Final = {
    INTENTS.kind: ("server_correlation_id", "phase", "fence"),
    OBLIGATIONS.kind: ("obligation_id", "state"),  # An obligation has one owner: no fence.
    JOBS.kind: ("job_id", "state", "attempts"),
    CALLS.kind: ("client_correlation_id", "stage", "fence"),
}

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many rows were looked at, of how many."""

What: TypeAlias = Literal[
    "edited_line",  # A line, or the hash of the one before it, was changed.
    "missing_lines",  # Lines were deleted between two that are there.
    "truncated",  # Lines were deleted at the end.
    "rewritten_head",  # The head does not fit the last line, or was set back.
    "other_history",  # The chain does not go through the head that was noted earlier.
    "record_differs",  # A record is not in the state that the last line about it says.
    "record_missing",  # A record was deleted and no line says that it was forgotten.
    "seal_missing",  # The payload or the response that a record must have was deleted.
    "seal_unopened",  # A sealed part does not open: it, or what it is bound to, was changed, or its key is gone.
    "entry_differs",  # A ledger row is not what its record says.
    "entry_missing",  # A ledger row was deleted, and no line says that it was purged.
    "setting_differs",  # A setting that every ledger row repeats is gone, unreadable or not what its line says.
]


class ProvenHead(msgspec.Struct, frozen=True):
    """A place in the journal: the number of a line and its hash."""

    seq: int
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """``SEQ:HASH`` as a report gives it."""
        seq, _colon, digest = text.partition(":")
        try:
            head = cls(int(seq), bytes.fromhex(digest))
        except ValueError:
            head = cls(0, b"")
        if head.seq < 1 or len(head.digest) != HASH_BYTES:
            message = f"{text!r} is not SEQ:HASH, such as 42:{'0a' * HASH_BYTES}"
            raise ConfigError(message, code="bad_head")
        return head

    def __str__(self) -> str:
        return f"{self.seq}:{self.digest.hex()}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    what: What
    message: str
    seq: int | None = None
    subject: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found."""

    lines: int
    records: int
    head: ProvenHead
    findings: tuple[Finding, ...]  # The first of them ...
    findings_count: int  # ... and how many there are.

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings_count

    def require(self) -> None:
        """Raise JournalBroken unless the journal holds."""
        if not self.holds:
            count = "1 finding" if self.findings_count == 1 else f"{self.findings_count:,} findings, the first"
            message = f"{count}: {self.findings[0].message}"
            raise JournalBroken(message)


def verify(
    path: str, *, expect: ProvenHead | None = None, progress: Progress | None = None, vault: Vault | None = None
) -> Report:
    """Walk the whole journal, then every record and ledger row; with a ``vault`` open every sealed part as well.

    Blocking: give it a thread inside a service.
    """
    with snapshot(path) as connection:
        return _Inspection(connection, expect, progress or _ignore, vault).run()


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of this ledger's rows, as far as the store has kept it."""

    source: str | None = None
    service_ledger_id: str | None = None

    def of(self, source: str, ledger_id: str) -> Writer:
        """The expected writer of a row that names these. A setting that was not kept is taken from the row."""
        return Writer(source=self.source or source, service_ledger_id=self.service_ledger_id or ledger_id)

    def problems(self, source: str, ledger_id: str) -> Iterator[str]:
        """The problems of a row that names these, when no record is left to compare it with."""
        expected = self.of(source, ledger_id)
        names = ("source", "service_ledger_id")
        return _differences(names, (source, ledger_id), (expected.source, expected.service_ledger_id))


class _Inspection:
    """One verification under way."""

    def __init__(
        self, connection: apsw.Connection, expect: ProvenHead | None, progress: Progress, vault: Vault | None
    ) -> None:
        self._execute = connection.execute
        self._vault = vault
        self._expect = expect
        self._progress = progress
        self._connection = connection
        self._total = int(self._execute(sql("count_to_verify")).get) + int(
            self._execute(sql("count_registrar_rows")).get
        )
        self._total += 0 if vault is None else int(self._execute(sql("count_seals")).get)
        self._old_lines: int = (self._execute(sql("read_old_head")).fetchone() or (0,))[0]
        self._looked_at = 0
        self._findings: list[Finding] = []
        self._count = 0
        self._writer = _Kept()

    def run(self) -> Report:
        self._progress(0, self._total)
        row: Row | None = self._execute(sql("read_head")).fetchone()
        head = ProvenHead(*row[:2]) if row else None
        expect = None if self._expect is None else Place(self._expect.seq, self._expect.digest)
        chain = ChainInspection(self._connection, Find(self._find_in_chain), self._look, expect)
        chain.run()
        lines = chain.lines
        if row:
            self._check_counters(*row)
        self._check_settings()
        for table in TABLES.values():
            self._check_records(table)
        self._check_what_is_gone()
        self._check_registrar()
        records = self._looked_at - lines
        if self._vault is not None:
            self._check_seals(self._vault)
        self._progress(self._total, self._total)
        return Report(
            lines=lines,
            records=records,
            head=head or ProvenHead(0, GENESIS),
            findings=tuple(self._findings),
            findings_count=self._count,
        )

    def _find(self, what: What, message: str, *, seq: int | None = None, subject: str = "") -> None:
        self._count += 1
        if len(self._findings) < FINDINGS_NAMED:
            self._findings.append(Finding(what=what, message=message, seq=seq, subject=subject))

    def _find_in_chain(self, what: ChainFinding, message: str, seq: int, subject: str) -> None:
        self._find(what, message, seq=seq, subject=subject)

    def _look(self) -> None:
        self._looked_at += 1
        if self._looked_at % PROGRESS_EVERY == 0:
            self._progress(self._looked_at, self._total)

    # The chain.

    def _check_counters(self, seq: int, _digest: bytes, at: Instant, next_id: int) -> None:
        """A head that was set back would give an id away twice, and let time run backwards."""
        largest: int = self._execute(sql("largest_id")).get
        if next_id <= largest:
            self._find("rewritten_head", f"the head's next id is {next_id}, and {largest} was given away", seq=seq)
        line, noted_at = self._execute(sql("newest_in_store_time")).fetchone() or (0, at)
        if at < noted_at:
            message = f"the head's time is {at}, before that of line {line}, which was noted at {noted_at}"
            self._find("rewritten_head", message, seq=line)

    # Settings.

    def _check_settings(self) -> None:
        """What every ledger row repeats. Of it a line binds a GUID that was issued, and no line the first one."""
        source, ledger_id = self._setting("service"), self._setting(LEDGER_ID)
        seq, issued = self._newest_restamp()
        if issued and ledger_id and ledger_id != issued:
            message = f"the setting {LEDGER_ID} is {ledger_id}, expected {issued}, as line {seq} says"
            self._find("setting_differs", message, seq=seq)
        self._writer = _Kept(source=source, service_ledger_id=issued or ledger_id)

    def _setting(self, name: str) -> str | None:
        """Where it is not there, each row would be compared with itself and hold, so that is a finding of its own."""
        try:
            value = kept(self._connection, name)
        except StoreError as error:
            self._find("setting_differs", error.message)
            return None
        if not value and self._execute(sql("any_entry")).get:
            self._find("setting_differs", f"the setting {name} is gone, and every ledger row repeats it")
        return value

    def _newest_restamp(self) -> tuple[int | None, str]:
        try:
            row: tuple[int, str] | None = self._execute(sql("newest_restamp")).fetchone()
        except UnicodeDecodeError:
            return None, ""  # The chain has named the line.
        return row or (None, "")

    # Records and ledger rows.

    def _check_records(self, table: Table) -> None:
        try:
            for seq, subject, after, fence, *columns in self._execute(sql(f"{table.kind}s_with_last_line")):
                self._look()
                self._check_record(table, tuple(columns), seq, (subject, after, fence))
        except UnicodeDecodeError:
            self._find(
                "record_differs", f"a row of table {table.kind}, or a line about it, holds text that cannot be read"
            )

    def _check_record(self, table: Table, row: Row, seq: int | None, said: Row) -> None:
        try:
            record: Any = table.record(row)
        except (KeyError, TypeError):
            self._find("record_differs", f"{table.kind} {row[0]} cannot be read", seq=seq, subject=str(said[0] or ""))
            return
        names = _REPEATED[table.kind]
        found = attrgetter(*names)(record)
        subject = found[0]
        if seq is None:
            self._find("record_differs", f"{table.kind} {subject}: the journal has no line about it", subject=subject)
            return
        self._compare(f"{table.kind} {subject}", names, found, said[: len(names)], seq=seq, subject=subject)
        # In the old journal a record's lines were found by an index.
        newest = seq if seq > self._old_lines else 0
        self._compare(
            f"{table.kind} {subject}", ("last_line",), (row[table.line_column],), (newest,), seq=seq, subject=subject
        )
        if isinstance(record, Intent):
            place = ("client_hash", "is in the index"), (row[INTENT_HASH], row[INTENT_PLACE] is not None)
            hashed = hashes.client_hash(record.client_correlation_id), True
            self._compare(f"{table.kind} {subject}", *place, hashed, seq=seq, subject=subject)
            self._check_facts(row[0], record, seq)
        elif isinstance(record, Call):
            self._check_call(row[0], record, seq)
        elif isinstance(record, Obligation):
            self._check_obligation(row[0], record, seq)

    def _compare(self, about: str, names: Any, found: Any, said: Any, *, seq: int, subject: str) -> None:
        for problem in _differences(names, found, said):
            self._find("record_differs", f"{about}: {problem}, as line {seq} says", seq=seq, subject=subject)

    def _check_facts(self, id_: int, intent: Intent, seq: int) -> None:
        """What never changes, and the outcome, against the lines that bind them; then the sealed parts."""
        subject, is_settled = intent.server_correlation_id, intent.phase in SETTLED
        facts = next(self._execute(sql("facts_of_intent"), (id_, subject)))
        registered, settled, is_purged, is_forgotten, has_payload, has_response, row_version = facts
        self._check_bound(intent, registered, settled, seq)
        if not row_version:
            self._find("entry_missing", f"intent {subject}: its ledger row is missing", seq=seq, subject=subject)
        elif row_version > intent.version:
            message = f"ledger row of intent {subject}: version is {row_version}, its record has {intent.version}"
            self._find("entry_differs", message, seq=seq, subject=subject)
        if is_forgotten:
            message = f"intent {subject}: a line says that it was forgotten, and it is there"
            self._find("record_differs", message, seq=seq, subject=subject)
        # Judged by the history, not by the column: an edit that deletes a payload changes the column as well.
        keeps_payload = intent.phase is not Phase.ABANDONED and not is_purged
        if intent.has_payload is not keeps_payload:
            message = (
                f"intent {subject}: has_payload is {intent.has_payload}, expected {keeps_payload}: see its history"
            )
            self._find("record_differs", message, seq=seq, subject=subject)
        for part, wanted, is_there in (
            ("payload", keeps_payload, has_payload),
            ("response", is_settled, has_response),
        ):
            if wanted and not is_there:
                message = f"intent {subject}: its sealed {part} is missing"
                self._find("seal_missing", message, seq=seq, subject=subject)

    def _check_bound(self, intent: Intent, registered: str | None, settled: str | None, seq: int | None) -> None:
        """What never changes, and the outcome, of one that is there or was forgotten."""
        subject, is_settled = intent.server_correlation_id, intent.phase in SETTLED
        if registered != fixed_facts(intent):
            message = f"intent {subject}: what never changes (who, what, where, when) was changed"
            self._find("record_differs", message, seq=seq, subject=subject)
        if (settled != outcome_facts(intent)) if is_settled else intent.status is not None:
            message = f"intent {subject}: its outcome (status, resource, reference, times) was changed"
            self._find("record_differs", message, seq=seq, subject=subject)

    def _check_obligation(self, id_: int, one: Obligation, seq: int) -> None:
        """How it began against the line that reserved it, how it ended against the last line about it."""
        subject, about = one.obligation_id, f"obligation {one.obligation_id}"
        row: Row | None = self._execute(sql("line_that_reserved"), (id_,)).fetchone()
        begun, *said = row or (seq, None, None, None)
        beginning = one.trace_id, one.flow, one.reserved_at
        self._compare(about, ("trace_id", "flow", "reserved_at"), beginning, said, seq=begun, subject=subject)
        said = _end_of(one, *next(self._execute(sql("line_that_ended"), (seq,))))
        end = one.resolution, one.settled_at
        self._compare(about, ("resolution", "settled_at"), end, said, seq=seq, subject=subject)

    def _check_call(self, id_: int, call: Call, seq: int) -> None:
        """Every line about a call binds what the call then was."""
        subject = call.client_correlation_id
        if self._execute(sql("detail_of_line"), (seq,)).get != call_facts(call):
            message = f"call {subject}: what was called, or its outcome, was changed"
            self._find("record_differs", message, seq=seq, subject=subject)
        if call.stage in IN_LEDGER:
            self._check_entry(id_, call, seq)

    def _check_entry(self, id_: int, call: Call, seq: int) -> None:
        subject = call.client_correlation_id
        row: Row | None = self._execute(sql("entry_of_record"), (id_,)).fetchone()
        if row is None:
            self._find("entry_missing", f"call {subject}: its ledger row is missing", seq=seq, subject=subject)
            return
        for problem in self._entry_problems(row, call):
            self._find("entry_differs", f"ledger row of call {subject}: {problem}", seq=seq, subject=subject)

    def _entry_problems(self, row: Row, call: Call) -> Iterator[str]:
        try:
            entry = entry_of(row)
        except KeyError as error:
            yield f"holds {error}, which is no phase and no mode"
            return
        mirrored = client_entry(call, self._writer.of(entry.source, entry.service_ledger_id))
        names = [name for name in LedgerEntry.__struct_fields__ if name not in _NOT_MIRRORED]
        found, expected = ([getattr(e, name) for name in names] for e in (entry, mirrored))
        yield from _differences(names, found, expected)
        if entry.version > call.version:
            yield f"version is {entry.version}, its record has {call.version}"

    def _check_what_is_gone(self) -> None:
        try:
            self._check_lines_of_the_gone()
            self._check_rows_of_the_forgotten("entries_without_intent", "server_correlation_id")
            self._check_rows_of_the_forgotten("entries_without_call", "client_correlation_id")
            self._check_facts_of_the_forgotten()
        except UnicodeDecodeError:
            self._find("entry_differs", "a line or a ledger row of what is gone holds text that cannot be read")

    def _check_facts_of_the_forgotten(self) -> None:
        for row in self._execute(sql("forgotten_intents")):
            intent: Any = INTENTS.record(row)
            facts = self._execute(sql("facts_of_intent"), (row[0], intent.server_correlation_id)).fetchone()
            if facts is not None and facts[0] is not None:
                self._check_bound(intent, facts[0], facts[1], None)

    def _check_lines_of_the_gone(self) -> None:
        for kind in TABLES:
            for seq, subject in self._execute(sql(f"{kind}s_gone")):
                message = f"{kind} {subject}: registered by line {seq}, gone, and no line says that it was forgotten"
                self._find("record_missing", message, seq=seq, subject=subject)
        for seq, subject in self._execute(sql("entries_gone")):
            message = (
                f"the ledger row of {subject}, registered by line {seq}, is missing, and no line says it was purged"
            )
            self._find("entry_missing", message, seq=seq, subject=subject)

    def _check_registrar(self) -> None:
        try:
            for row in self._execute(sql("registrar_rows_gone")):
                self._find_all([verify_registrar.of_gone(*row)])
            for name in verify_registrar.STATEMENTS:
                for row in self._execute(sql(name)):
                    self._look()
                    self._find_all(verify_registrar.of_row(name, row))
        except UnicodeDecodeError:
            self._find("record_differs", "a row of the registrar, or a line about it, holds text that cannot be read")

    def _find_all(self, problems: Sequence[verify_registrar.Problem]) -> None:
        for problem in problems:
            self._find(problem.what, problem.message, seq=problem.seq, subject=problem.subject)

    def _check_seals(self, vault: Vault) -> None:
        service = kept(self._connection, "service") or ""
        for columns in self._execute(sql("all_seals")):
            self._look()
            if problem := (row := SealRow(*columns)).problem(vault, service):
                self._find("seal_unopened", problem, subject=row.name)

    def _check_rows_of_the_forgotten(self, statement: str, id_name: str) -> None:
        for seq, *said, subject, phase, indeterminate, source, ledger_id in self._execute(sql(statement)):
            about = f"ledger row of {subject}"
            if seq is None:
                self._find("entry_differs", f"{about}: the journal has no line about it", subject=subject)
                continue
            names, found = (id_name, "phase", "indeterminate"), (subject, phase, indeterminate)
            for problem in _differences(names, found, said):
                self._find("entry_differs", f"{about}: {problem}, as line {seq} says", seq=seq, subject=subject)
            for problem in self._writer.problems(source, ledger_id) if source is not None else ():
                self._find("entry_differs", f"{about}: {problem}", seq=seq, subject=subject)


def _end_of(one: Obligation, event: str, detail: str, noted_at: Instant) -> list[str | Instant | None]:
    """Who settled an obligation and when, by its last line: empty if that is the line that reserved it."""
    if event == RESERVED_EVENT:
        return ["", None]
    # The line of a leak has the error's code where others say who it was. No end is before its beginning.
    return ["leak_scan" if event == LEAK_EVENT else detail, max(noted_at, one.reserved_at)]


def _differences(names: Any, found: Any, expected: Any) -> Iterator[str]:
    for name, is_, should in zip(names, found, expected, strict=True):
        if is_ != should:
            yield f"{name} is {_plain(is_)}, expected {_plain(should)}"


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)


def _ignore(_done: int, _total: int) -> None:
    """Show no progress."""
