"""What a ledger holds about one call beside its rows, as a document and in words.

A file is read for itself. A central ledger has rows alone: it asks the services on both sides, if they can be asked and
if its caller may pull (A-47, A-63).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from twophp.cli.output import note, out, safe, show, table
from twophp.cli.rows import lasted
from twophp.ports import Evidence
from twophp.stores.sqlite.reader import MOST_DETAILS
from twophp.wire.instant import parse_instant, spelled

_INTENT_FACTS: Final = (
    *("method", "path", "mode", "received_at", "deadline_at", "confirmed_at", "settled_at", "status", "resource_id"),
    *("owner", "lease_until", "fence", "has_payload", "indeterminate"),
)
_CALL_FACTS: Final = (
    *("method", "url", "mode", "sent_at", "registered_at", "confirm_by", "confirmed_at", "settled_at", "status"),
    *("resource_id", "acknowledged_at", "answered_at", "attempts", "last_error", "indeterminate"),
)
_JOB_FACTS: Final = ("job_id", "work", "name", "state", "attempts", "created_at", "due_at", "last_error")
_OBLIGATION_FACTS: Final = (
    *("obligation_id", "flow", "key", "trace_id", "state", "resolution", "reserved_at", "settled_at"),
)
_LINE_FACTS: Final = ("kind", "subject", "event", "before", "after", "at", "observed_at", "fence", "trace_id", "detail")
_DIGESTS: Final = frozenset({"intent", "call"})  # The detail of their lines is of use to `verify` alone.


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """What a file says, its instants spelled out."""
    return {
        "intent": None if evidence.intent is None else spelled(evidence.intent, _INTENT_FACTS),
        "call": None if evidence.call is None else spelled(evidence.call, _CALL_FACTS),
        "journal": [{"seq": line.seq} | spelled(line.event, _LINE_FACTS) for line in evidence.lines],
        "jobs": [spelled(job, _JOB_FACTS) for job in evidence.jobs],
        "obligations": [spelled(obligation, _OBLIGATION_FACTS) for obligation in evidence.obligations],
    }


def print_evidence(ledger: str, told: Mapping[str, Any]) -> None:
    """The same for people, of a file or of a service: a service leaves out what could quote business data."""
    out().print(f"\nIn {safe(ledger)}", markup=False)
    _print_facts(told["intent"])
    _print_facts(told["call"])
    _print_history(told["journal"])
    _print_records("Owed to others (outbox)", told["jobs"], _JOB_FACTS)
    _print_records("Obligations", told["obligations"], _OBLIGATION_FACTS)


def _print_facts(record: Mapping[str, Any] | None) -> None:
    if record is None:
        return
    facts = table("", "")
    for name, value in record.items():
        if value not in (None, ""):
            facts.add_row(f"  {name}", safe(str(value)))
    facts.show_header = False
    show(facts)


def _print_history(lines: Sequence[Mapping[str, Any]]) -> None:
    if not lines:
        return
    out().print("History")
    history = table("  line", "at", "about", "event", "from", "to", "")
    for line in lines:
        late = _instant(line["observed_at"]) - _instant(line["at"])
        remark = f"noticed {lasted(late)} later" if late > 0 else "" if line["kind"] in _DIGESTS else line["detail"]
        about = f"{line['kind']} {line['subject']}"
        cells = (line["at"], about, line["event"], line["before"], line["after"], remark)
        history.add_row(f"  {line['seq']}", *map(safe, cells))
    show(history)
    if len(lines) >= MOST_DETAILS:
        note(f"only the first {MOST_DETAILS:,} lines are shown")


def _instant(text: str) -> int:
    return parse_instant(text.encode()) or 0


def _print_records(title: str, records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    if not records:
        return
    out().print(title)
    shown = [name for name in names if name in records[0]]
    listed = table(*(f"  {name}" if name == shown[0] else name for name in shown))
    for record in records:
        first, *others = ("" if record[name] is None else safe(str(record[name])) for name in shown)
        listed.add_row(f"  {first}", *others)
    show(listed)
    if len(records) >= MOST_DETAILS:
        note(f"only the first {MOST_DETAILS:,} are shown")
