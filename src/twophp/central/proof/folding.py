"""Folding leaf hashes to a root as they come: memory for as many hashes as the tree is high."""

from __future__ import annotations

from typing import Self

from twophp.central.proof.merkle import EMPTY_ROOT, HASH_BYTES, TILE_LEVELS, TILE_WIDTH, folded, node_hash

_TILE_BYTES = TILE_WIDTH * HASH_BYTES


class Fold:
    """The edge of a tree that grows to the right: the roots of its whole subtrees, which grow smaller to the right."""

    def __init__(self, count: int = 0, edge: bytes = b"") -> None:
        """``edge`` is what another one said when it had as many leaves."""
        levels = [level for level in range(count.bit_length() - 1, -1, -1) if count >> level & 1]
        hashes = [edge[at : at + HASH_BYTES] for at in range(0, len(edge), HASH_BYTES)]
        self.count = count
        self._subtrees = list(zip(levels, hashes, strict=True))

    def add(self, hashes: bytes) -> None:
        """Append leaf hashes, from the beginning of a tile on."""
        assert self.count % TILE_WIDTH == 0, "leaves are added from the beginning of a tile"
        whole = len(hashes) - len(hashes) % _TILE_BYTES
        for at in range(0, whole, _TILE_BYTES):
            self._push(TILE_LEVELS, folded(hashes[at : at + _TILE_BYTES]))
        for at in range(whole, len(hashes), HASH_BYTES):
            self._push(0, hashes[at : at + HASH_BYTES])
        self.count += len(hashes) // HASH_BYTES

    def root(self) -> bytes:
        """Of all leaves so far."""
        *others, (_level, found) = self._subtrees or [(0, EMPTY_ROOT)]
        for _level, left in reversed(others):
            found = node_hash(left, found)
        return found

    @property
    def edge(self) -> bytes:
        """What is enough to go on from here."""
        return b"".join(found for _level, found in self._subtrees)

    def copy(self) -> Self:
        """Another one that goes its own way from here."""
        return type(self)(self.count, self.edge)

    def _push(self, level: int, found: bytes) -> None:
        while self._subtrees and self._subtrees[-1][0] == level:
            found = node_hash(self._subtrees.pop()[1], found)
            level += 1
        self._subtrees.append((level, found))
