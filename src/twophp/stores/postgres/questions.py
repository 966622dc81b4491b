"""The draft's questions to a ledger (§10.4), and a tracker's to its obligations, as statements."""

from __future__ import annotations

from typing import Any

from twophp.core.obligation import State
from twophp.ports import MOST_ROWS, Calls, Find, Initiated, Obligations, Question, Stalled, Tail, Tree


def asked(question: Question) -> tuple[str, tuple[Any, ...]]:
    """The name of the statement that answers a question, and its bindings. Never more than ``MOST_ROWS`` (A-53)."""
    match question:
        case Tree(root):
            return "entries_of_tree", (root, MOST_ROWS)
        case Initiated(source):
            return "entries_initiated", (source, MOST_ROWS)
        case Stalled(lease_ended_by):
            return "entries_stalled", (lease_ended_by or 0, MOST_ROWS)
        case Find(correlation_id):
            return "entries_found", (correlation_id, MOST_ROWS)
        case Calls(ids):
            return "entries_of_calls", (list(ids), MOST_ROWS)
        case Tail(limit):
            return "entries_newest", (min(limit, MOST_ROWS),)


def obligations_asked(wanted: Obligations) -> tuple[str, tuple[Any, ...]]:
    """The name of the statement that finds these obligations, and its bindings."""
    name = "obligations_reserved" if wanted.state == State.RESERVED else "obligations_found"
    facts = (wanted.flow, wanted.state, wanted.key, wanted.intent, wanted.trace_id, wanted.before)
    return name, (*facts, min(wanted.limit, MOST_ROWS))
