"""All about one call: both rows side by side, what happened when, the proof, who called and what it called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from twophp.central.drawing.words import CLASSES, LABELS, duration, row_state
from twophp.central.pages.frame import Routes, Visit, not_found, reading
from twophp.central.pages.rendering import iso, of_pair
from twophp.central.pages.told import ASKED, DOTS, accounts_of, can_be_asked
from twophp.central.ports import Row, Service, TreeHead
from twophp.central.proof.merkle import inclusion_path, leaf_hash, verify_inclusion
from twophp.central.questions import Tree
from twophp.core.calltree import Branch
from twophp.core.entry import FIELDS, LedgerEntry
from twophp.core.intent import Phase
from twophp.core.pairing import Pair, pair_up
from twophp.core.records import Instant

MOST_CHILDREN: Final = 50
TIMES: Final = frozenset({"phase_1_timestamp", "phase_2_timestamp", "sync_timestamp"})
OURS: Final = ("version", "mode", "settled_at", "request_digest", "indeterminate")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the two rows. ``differs`` where both say something and not the same."""

    name: str
    values: tuple[str | None, ...]
    differs: bool
    is_ours: bool


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, by the clock of the side that reports it."""

    at: Instant
    who: str
    what: str
    kind: str = ""
    since_ms: int | None = None  # After the first event of the same clock.


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One hash of an inclusion path: the leaves that it stands for, and the side it is put on."""

    hash: str
    first: int
    last: int
    side: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What the Merkle tree says about one row."""

    row: Row
    leaf: str
    steps: Sequence[Step]
    head: TreeHead
    holds: bool


async def intent(visit: Visit) -> Response:
    """The page."""
    key = visit.asked("client"), visit.asked("server")
    rows = await visit.central.store.of_pairs([key])
    if not rows:
        return not_found(visit, "No row of this call has arrived here. It may not be synced yet: search, or pull.")
    known = await visit.central.questions.known()
    entries = [row.entry for row in rows]
    pair = pair_up(entries, read=known.read(entries))[0]
    tree = await visit.central.questions.tree(pair.client_correlation_id)
    parent, children = _family(tree, pair)
    return visit.page(
        "intent.html",
        pair=pair,
        missing=known.why_missing(pair),
        fields=fields(pair),
        events=events(pair),
        window=_window(pair),
        proofs=[await _proof(visit, row) for row in rows],
        parent=parent,
        children=children[:MOST_CHILDREN],
        more_children=max(len(children) - MOST_CHILDREN, 0),
        calls=sum(1 for _ in tree.tree.calls()),
        pullable=_pullable(pair, known.services),
        accounts=await accounts_of(visit, pair, known.services),
        askable=can_be_asked(pair.rows, known.services),
        dots=DOTS,
        ask=f"{of_pair(pair)}&{ASKED}=1",
    )


def fields(pair: Pair) -> list[Field]:
    """The draft's sixteen fields, then ours, of every row."""
    return [_field(pair, name) for name in (*FIELDS, *OURS)]


_PRIVATE: Final = frozenset(
    {"service_ledger_id", "actor", "source", "target", "parent_reference_id", "phase", "outcome", *TIMES}
    | {"payload_ref", "transaction_reference", "version", "settled_at", "indeterminate"}
)
"""What the two sides may well say differently."""


def _field(pair: Pair, name: str) -> Field:
    values = tuple(_spelled(row, name) for row in pair.rows)
    said = {value for value in values if value is not None}
    return Field(name=name, values=values, differs=len(said) > 1 and name not in _PRIVATE, is_ours=name in OURS)


def _spelled(row: LedgerEntry, name: str) -> str | None:
    value = getattr(row, name)
    if value is None:
        return None
    return iso(value) or str(value) if name in TIMES or name == "settled_at" else str(value)


def events(pair: Pair) -> list[Event]:
    """The events of the rows, in order of time. Two clocks made the times, and they may differ (A-56)."""
    found = [event for row in pair.rows for event in _told_by(row)]
    return sorted(found, key=lambda event: event.at)


def _told_by(row: LedgerEntry) -> list[Event]:
    is_server = row.actor == "server"
    start = row.phase_1_timestamp
    first = "Phase 1 arrived; registered" if is_server else "had the answer to Phase 1; registered"
    told = [Event(at=start, who=row.source, what=first, kind="waiting-confirm")]
    if row.phase_2_timestamp is not None:
        second = "Phase 2 arrived; past the point of no return" if is_server else "had the answer to Phase 2"
        told.append(_after(start, row.phase_2_timestamp, row.source, second, "processing"))
    elif is_server and row.phase is Phase.WAITING_CONFIRM:
        told.append(_after(start, start + row.ttl_ms, row.source, "deadline for Phase 2", "ttl-expired"))
    if row.settled_at is not None:
        state = row_state(row)
        told.append(_after(start, row.settled_at, row.source, LABELS[state].lower(), CLASSES[state]))
    if row.sync_timestamp is not None:
        told.append(
            Event(at=row.sync_timestamp, who="central", what=f"took up version {row.version} of the {row.actor}'s row")
        )
    return told


def _after(start: Instant, at: Instant, who: str, what: str, kind: str) -> Event:
    return Event(at=at, who=who, what=what, kind=kind, since_ms=at - start)


def _window(pair: Pair) -> str | None:
    """How much of its time the confirmation took, in words."""
    row = pair.server or pair.client
    assert row is not None, "a pair has a row"
    if row.phase_2_timestamp is None:
        return None
    took = row.phase_2_timestamp - row.phase_1_timestamp
    return f"confirmed after {duration(took)} of the {duration(row.ttl_ms)} it had"


async def _proof(visit: Visit, row: Row) -> Proof:
    """The inclusion path of the row's newest version, checked here against a leaf made from what the page shows."""
    store = visit.central.store
    head = await store.head()
    path = await store.inclusion(row.sequence, head.size)
    leaf, index = leaf_hash(row.entry), row.sequence - 1
    ranges = inclusion_path(index, head.size)
    steps = [
        Step(hash=hash_.hex(), first=start + 1, last=end, side="left" if end <= index else "right")
        for hash_, (start, end) in zip(path, ranges, strict=True)
    ]
    holds = verify_inclusion(leaf, index, head.size, path, head.root)
    return Proof(row=row, leaf=leaf.hex(), steps=steps, head=head, holds=holds)


def _family(tree: Tree, pair: Pair) -> tuple[Branch | None, list[Branch]]:
    """The call that it was made for, as far as it is known, and the calls that were made for it."""
    parent, mine = None, None
    for call in tree.tree.calls():
        if call.pair.key == pair.key:
            mine = call
        if any(child.pair.key == pair.key for child in call.children):
            parent = call
    return parent, list(mine.children) if mine is not None else []


def _pullable(pair: Pair, services: Sequence[Service]) -> list[Service]:
    """The services on either side that can be asked for their rows now."""
    names = {row.source for row in pair.rows} | {row.target for row in pair.rows if row.target is not None}
    return [service for service in services if service.name in names and service.pull_url is not None]


ROUTES: Final[Routes] = (("/intent", reading(intent), ("GET",)),)
