"""The draft's questions to a ledger (§10.4) as statements, for a running store and for readers from outside."""

from __future__ import annotations

from typing import Any

import msgspec

from twophp.core.obligation import State
from twophp.ports import MOST_ROWS, Calls, Find, Initiated, Obligations, Question, Stalled, Tail, Tree
from twophp.stores.sqlite.sql import sql


def asked(question: Question) -> tuple[str, tuple[Any, ...]]:
    """The statement that answers a question, and its bindings. Never more than ``MOST_ROWS`` (A-53)."""
    match question:
        case Tree(root):
            return sql("entries_of_tree"), (root, MOST_ROWS)
        case Initiated(source):
            return sql("entries_initiated"), (source, MOST_ROWS)
        case Stalled(lease_ended_by):
            return sql("entries_stalled"), (lease_ended_by or 0, MOST_ROWS)
        case Find(correlation_id):
            return sql("entries_found"), (correlation_id, MOST_ROWS)
        case Calls(ids):
            return sql("entries_of_calls"), (msgspec.json.encode(ids).decode(), MOST_ROWS)
        case Tail(limit):
            return sql("entries_newest"), (min(limit, MOST_ROWS),)


def obligations_asked(wanted: Obligations) -> tuple[str, tuple[Any, ...]]:
    """The statement that finds these obligations, by the narrowest index there is, and its bindings."""
    name = "obligations_found"
    if wanted.state == State.RESERVED:
        name = "obligations_reserved_by_intent" if wanted.intent else "obligations_reserved"
    facts = (wanted.flow, wanted.state, wanted.key, wanted.intent, wanted.trace_id, wanted.before)
    return sql(name), (*facts, min(wanted.limit, MOST_ROWS))
