"""The call tree: who called whom, put together from ledger rows alone (draft §10).

Theory. There is no parent on the wire and none is needed (A-51). Every row a service writes while it serves one inbound
call has that call's client correlation id as ``parent_reference_id``; a root, which serves no call, has its own (A-50).
So a server's row always points at its own call, and the children of a call are the client's rows that point at it,
except its own row. The draft's recursive query follows from that, and so does its end: rows that are their own parents
would loop forever, so an id that was seen is not visited again (A-53).

* The top of a tree is found by climbing from any member: from a client's row to its parent, until a row is its own
  parent, or no client's row is known. Any parent above that is in a ledger that was not read.
* Two identities may use the same client id (A-32), and then two pairs share it. A child belongs to the pair whose
  service made the child's call.
* ``CallTree.rows`` is the draft's table (§10.3): calls breadth first, siblings in the order they were made, of each
  call the client's row before the server's. Nothing depends on the order of the rows that are given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from twophp.core.entry import LedgerEntry
from twophp.core.pairing import Pair, pair_up

MAX_DEPTH: Final = 100
"""Calls that are nested deeper are left out, and the tree says so (A-53)."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One call, and the calls that were made to serve it."""

    pair: Pair
    depth: int
    children: tuple[Branch, ...] = ()


class CallTree(msgspec.Struct, frozen=True, kw_only=True):
    """All calls that one root led to. Several roots have a caller in common that has no row."""

    roots: tuple[Branch, ...]
    above: str | None = None  # The client id of the call that the roots were made for, where no row of it is known.
    too_deep: bool = False  # Whether calls were left out.

    def calls(self) -> Iterator[Branch]:
        """Every call, breadth first."""
        level = list(self.roots)
        while level:
            yield from level
            level = [child for call in level for child in call.children]

    def rows(self) -> list[LedgerEntry]:
        """Every row, in the order of the draft's table: E01 to E14 of its worked example."""
        return [row for call in self.calls() for row in call.pair.rows]


def related_ids(entries: Iterable[LedgerEntry]) -> set[str]:
    """The client ids whose rows belong to the same tree as these. All their rows together are the tree."""
    return {id_ for entry in entries for id_ in (entry.client_correlation_id, entry.parent_reference_id)}


def call_tree(entries: Iterable[LedgerEntry], member: str, *, read: Container[str] = frozenset()) -> CallTree:
    """The whole tree that ``member`` belongs to, which is any correlation id of any of its calls.

    Rows of other trees may be among the entries. Without a row of ``member`` the tree has no roots. See ``pair_up``
    for ``read``.
    """
    return _Forest(pair_up(entries, read=read)).tree_of(member)


class _Forest:
    """Pairs, found by what a tree is made of."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._by_client_id: defaultdict[str, list[Pair]] = defaultdict(list)
        self._made_for: defaultdict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            self._by_client_id[pair.client_correlation_id].append(pair)
            if (parent := _parent(pair)) is not None:
                self._made_for[parent].append(pair)

    def tree_of(self, member: str) -> CallTree:
        top = self._top(self._client_id(member))
        roots = self._by_client_id.get(top, [])
        above = None
        if not roots:
            roots, above = self._made_for.get(top, []), top
        levels, is_cut = self._levels(roots)
        return CallTree(roots=_nested(levels), above=above if roots else None, too_deep=is_cut)

    def _client_id(self, member: str) -> str:
        """A server's id stands for the call it was given to."""
        if member in self._by_client_id or member in self._made_for:
            return member
        found = (pair.client_correlation_id for pair in self._pairs if pair.server_correlation_id == member)
        return next(found, member)

    def _top(self, member: str) -> str:
        """Climb until there is no parent, or until an id comes again: no correct service writes a loop (A-53)."""
        current, seen = member, {member}
        while (parent := self._parent_of(current)) is not None:
            if parent in seen:
                return member
            seen.add(parent)
            current = parent
        return current

    def _parent_of(self, client_id: str) -> str | None:
        parents = (_parent(pair) for pair in self._by_client_id.get(client_id, ()))
        return next((parent for parent in parents if parent is not None), None)

    def _levels(self, roots: Sequence[Pair]) -> tuple[list[list[tuple[Pair, int]]], bool]:
        """Level by level, each pair with the place of its parent in the level above; and whether there were more."""
        seen = {pair.key for pair in roots}
        levels = [[(pair, 0) for pair in roots]]
        while levels[-1]:
            if len(levels) > MAX_DEPTH:
                return levels[:-1], True
            below = []
            for place, (pair, _above) in enumerate(levels[-1]):
                fresh = [child for child in self._children(pair) if child.key not in seen]
                seen.update(child.key for child in fresh)
                below += [(child, place) for child in fresh]
            levels.append(below)
        return levels[:-1], False

    def _children(self, pair: Pair) -> list[Pair]:
        """In the order they were made; of pairs that share a client id, each has the calls of its own service."""
        children = self._made_for.get(pair.client_correlation_id, [])
        sharing = self._by_client_id[pair.client_correlation_id]
        return [child for child in children if len(sharing) == 1 or _served_by(sharing, child) is pair]


def _parent(pair: Pair) -> str | None:
    """The call that it was made for; None for a root, and where its client's row is not known."""
    if pair.client is None or pair.client.parent_reference_id == pair.client_correlation_id:
        return None
    return pair.client.parent_reference_id


def _served_by(sharing: Sequence[Pair], child: Pair) -> Pair:
    made_by = child.client.source if child.client is not None else ""
    return next((pair for pair in sharing if _callee(pair) == made_by), sharing[0])


def _callee(pair: Pair) -> str | None:
    if pair.server is not None:
        return pair.server.source
    return pair.client.target if pair.client is not None else None


def _nested(levels: Sequence[Sequence[tuple[Pair, int]]]) -> tuple[Branch, ...]:
    """From the leaves up, so that no depth is too much for the interpreter."""
    below: dict[int, list[Branch]] = {}
    calls: list[Branch] = []
    for depth, level in reversed(list(enumerate(levels))):
        calls, above = [], defaultdict[int, list[Branch]](list)
        for place, (pair, parent) in enumerate(level):
            call = Branch(pair=pair, depth=depth, children=tuple(below.get(place, ())))
            calls.append(call)
            above[parent].append(call)
        below = above
    return tuple(calls)
