"""What verification finds in a ledger that several handles write, whatever database it lies in.

A driver reads the rows, all of them as they were at one moment; here is what each of them must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from twophp.core.call import Call, call_facts
from twophp.core.intent import SETTLED, Intent, Phase, fixed_facts, outcome_facts
from twophp.kernel.journal import FIRST_FACT, GENESIS, PREVIOUS, RECORD, Link, decode_lines, is_intact
from twophp.stores.chains import LINE_BITS, Chain, beginning, placed
from twophp.stores.sqlite.verify import FINDINGS_NAMED, Finding, Progress, ProvenHead, Report, What

REPEATED: Final = {
    "intent": ("server_correlation_id", "phase", "fence"),
    "obligation": ("obligation_id", "state"),
    "job": ("job_id", "state", "attempts"),
    "call": ("client_correlation_id", "stage", "fence"),
}
# The places of a line's facts that are compared, and which of them are numbers.
_FACTS: Final = (0, 1, 2, 3, 4, 7, 9, 5)


class Inspection:
    """One verification. Rows are mappings with the names of the columns that the tables of PostgreSQL have."""

    def __init__(self, expect: ProvenHead | None, progress: Progress | None) -> None:
        self._expect = expect
        self._progress = progress or _ignore
        self._writers: dict[int, Any] = {}  # Their rows.
        self._chains: dict[int, Chain] = {}  # How far they have come, as their links say.
        self._heads: dict[int, bytes | None] = {}  # Hashes of the joined journal where a writer began.
        self._head = ProvenHead(0, GENESIS)
        self._total = self._looked_at = self._records = self._count = 0
        self._findings: list[Finding] = []

    def _report(self) -> Report:
        self._progress(self._total, self._total)
        lines, found = self._head.seq, tuple(self._findings)
        return Report(lines=lines, records=self._records, head=self._head, findings=found, findings_count=self._count)

    def _find(self, what: What, message: str, *, seq: int | None = None, subject: str = "") -> None:
        self._count += 1
        if len(self._findings) < FINDINGS_NAMED:
            self._findings.append(Finding(what=what, message=message, seq=seq, subject=subject))

    def _look(self, count: int) -> None:
        self._looked_at += count
        self._progress(min(self._looked_at, self._total), self._total)

    # The chains.

    def _begin(self, writers: dict[int, Any]) -> None:
        """These have written."""
        self._writers = writers
        self._heads = {row["joined"]: None for row in writers.values()} | {0: GENESIS}

    def _check_link(self, row: Any) -> list[Sequence[Any]]:
        """A link in its writer's chain, and in the joined one. Its lines."""
        first, link = row["first"], Link(*(row[name] for name in Link.__struct_fields__))
        chain = self._chains.get(link.writer) or self._begun(link.writer)
        try:
            lines = decode_lines(link.lines)
            joined = placed(row, first, self._head.digest)
        except (msgspec.DecodeError, TypeError, IndexError):
            self._find("edited_line", f"the lines from {first} on cannot be read", seq=first)
            lines, joined = [], None
        broken = next((place for place, line in enumerate(lines) if not is_intact(line)), 0)
        if chain is not None and link.hash != link.expected(chain.hash):
            self._find("edited_line", f"line {first + broken} was edited, or what stands before it", seq=first + broken)
        before = chain or Chain(link.writer)
        if (link.id, link.seq) != (before.last_line + 1, before.seq + 1):
            self._find("missing_lines", f"lines of writer {link.writer} before line {first} are missing", seq=first)
        if first != self._head.seq + 1:
            self._find(
                "missing_lines", f"lines {self._head.seq + 1} to {first - 1} are missing", seq=self._head.seq + 1
            )
        elif joined is not None and joined.hash != row["joined_hash"]:
            self._find("edited_line", f"the joined journal has another line {first}", seq=first)
        count = link.last_line - (link.writer << LINE_BITS)
        self._chains[link.writer] = Chain(link.writer, link.seq, link.id, count, link.hash)
        self._head = ProvenHead(first + link.count - 1, row["joined_hash"])
        self._pass()
        return [
            (line[0], first + place, line[PREVIOUS], line[RECORD], *(line[FIRST_FACT + fact] for fact in _FACTS))
            for place, line in enumerate(lines)
        ]

    def _begun(self, writer: int) -> Chain | None:
        """Where its chain begins, if that is known: its row says what was there before."""
        row = self._writers.get(writer)
        if row is None or (digest := self._heads[row["joined"]]) is None:
            return None
        return Chain(writer, hash=beginning(row["previous"], row["joined"], digest))

    def _pass(self) -> None:
        if self._head.seq in self._heads:
            self._heads[self._head.seq] = self._head.digest
        expect = self._expect
        if expect is not None and expect.seq == self._head.seq:
            self._expect = None
            if expect.digest != self._head.digest:
                message = (
                    f"line {expect.seq}: the noted hash was {expect.digest.hex()}, found {self._head.digest.hex()}"
                )
                self._find("other_history", message, seq=expect.seq)

    def _check_writers(self) -> None:
        """Each keeps where it has come to. What was cut off its chain does not fit that."""
        number, previous, is_old = self._head.seq, 0, True
        for row in self._writers.values():
            said = Chain(*(row[name] for name in Chain.__struct_fields__))
            begun = self._begun(said.id)
            found = self._chains.pop(said.id, begun or Chain(said.id, hash=said.hash))
            if found.lines < said.lines:
                message = f"writer {said.id} has written {said.lines} lines, and {found.lines} are there"
                self._find("truncated", message, seq=number)
            elif found != said:
                self._find("rewritten_head", f"the row of writer {said.id} does not fit its last link", seq=number)
            if begun is None:
                message = f"writer {said.id} began when line {row['joined']} was the last, and no such head is there"
                self._find("rewritten_head", message, seq=number)
            is_old = is_old and row["previous"] < 0
            if row["previous"] != previous and not is_old:
                message = f"writer {said.id} began after writer {row['previous']}, and {previous} is there before it"
                self._find("rewritten_head", message, seq=number)
            previous = said.id
        for writer in self._chains:
            self._find("rewritten_head", f"the row of writer {writer} is gone", seq=number)

    def _check_expected(self) -> None:
        """After the last link: the head that was noted is one of those that were passed."""
        if self._expect is not None:
            message = f"line {self._expect.seq} was noted earlier as the head, and is not there"
            self._find("other_history", message, seq=self._expect.seq)

    def _check_joined(self, count: int, digest: bytes) -> None:
        """Where the joined journal is said to end."""
        if (count, digest) != (self._head.seq, self._head.digest):
            message = f"the joined journal ends at line {self._head.seq}, and not at {count}"
            self._find("truncated", message, seq=self._head.seq)

    # Records.

    def _check_record(self, kind: str, record: Any, said: Sequence[Any]) -> None:
        names = REPEATED[kind]
        found = attrgetter(*names)(record)
        number, *facts, detail, is_its_own, was_set_back = said
        subject = str(found[0])
        if not is_its_own:
            message = f"{kind} {subject}: the line that it points to is not about it"
            self._find("record_differs", message, subject=subject)
            return
        for name, is_, should in zip(names, found, facts, strict=False):
            if is_ != should:
                message = f"{kind} {subject}: {name} is {is_}, expected {should}, as line {number} says"
                self._find("record_differs", message, seq=number, subject=subject)
        if was_set_back:
            message = f"{kind} {subject}: a later line than {number} is about it"
            self._find("record_differs", message, seq=number, subject=subject)
        if isinstance(record, Call) and detail != call_facts(record):
            message = f"call {subject}: what was called, or its outcome, was changed"
            self._find("record_differs", message, seq=number, subject=subject)

    def _check_bound(self, intent: Intent | None, bound: Any) -> None:
        """What never changes, and the outcome, against the lines that bind them; then the sealed parts."""
        if intent is None:
            return
        subject, is_settled = intent.server_correlation_id, intent.phase in SETTLED
        if bound["registered"] != fixed_facts(intent):
            message = f"intent {subject}: what never changes (who, what, where, when) was changed"
            self._find("record_differs", message, subject=subject)
        if (bound["settled"] != outcome_facts(intent)) if is_settled else intent.status is not None:
            message = f"intent {subject}: its outcome (status, resource, reference, times) was changed"
            self._find("record_differs", message, subject=subject)
        keeps_payload = intent.phase is not Phase.ABANDONED and not bound["is_purged"]
        parts = ("payload", keeps_payload, bound["has_payload"]), ("response", is_settled, bound["has_response"])
        for part, wanted, is_there in parts:
            if wanted and not is_there and not bound["forgotten"]:
                self._find("seal_missing", f"intent {subject}: its sealed {part} is missing", subject=subject)


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches."""
