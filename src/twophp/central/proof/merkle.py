"""The Merkle tree over what the central ledger has accepted: heads, proofs and their verification (RFC 9162 §2.1).

Theory. Leaves are hashed as ``SHA-256(0x00 || leaf)``, nodes as ``SHA-256(0x01 || left || right)``; a tree of n leaves
splits at the largest power of two below n. A *head* (size and root) binds every leaf and its place. From it follow two
proofs, each of as many hashes as the tree is high: a leaf is in the tree (*inclusion*), and one tree continues another
(*consistency*). The owner of an old head finds out with them that a row was rewritten, removed or slipped in between.

A leaf is one version of one row, in the order of arrival: ``LEAF_TAG``, then the row as one MessagePack array of the
fields of ``LedgerEntry`` in their order, ``sync_timestamp`` as it was assigned. ``indeterminate``, the last and younger
than the tree, is in the array only where it is true, so older leaves have the bytes they had. MessagePack puts the
length before every string and the count before every array, and has one shortest form for each integer, so no two rows
have the same bytes and any language can write them. There is no payload in a row, so erasing payloads, or the keys they
were sealed with, leaves every proof as it was; so does a newer version of a row, which is a leaf of its own.

Kept are *tiles*: 256 neighbouring hashes of every eighth level, so a batch writes a handful of rows and a proof reads a
handful. A node between is computed from its tile. A leaf's *index* counts from 0, as in RFC 9162; a ``sequence`` counts
from 1, so that the size of a head is the sequence of its last leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.consistency import EMPTY_ROOT, HASH_BYTES, node_hash, verify_consistency, verify_inclusion
from twophp.core.entry import LedgerEntry
from twophp.core.errors import Refused

__all__ = ["EMPTY_ROOT", "HASH_BYTES", "node_hash", "verify_consistency", "verify_inclusion"]  # As seen from here.

LEAF_TAG: Final = b"twophp:central-leaf:1\n"
TILE_LEVELS: Final = 8
TILE_WIDTH: Final = 1 << TILE_LEVELS

Range: TypeAlias = tuple[int, int]
"""A subtree, as the half-open range of its leaves' indexes."""
TileKey: TypeAlias = tuple[int, int]
"""A tile: how many times eight levels above the leaves, and its number from the left."""
Tiles: TypeAlias = Mapping[TileKey, bytes]

_PROXY: Final = LedgerEntry.__struct_fields__.index("client_id_is_proxy")
_INDETERMINATE: Final = LedgerEntry.__struct_fields__.index("indeterminate")
_encode: Final = msgspec.msgpack.Encoder().encode
_astuple: Final = msgspec.structs.astuple
BEFORE_LEAF: Final = b"\x00" + LEAF_TAG
"""What is hashed before the row."""


def leaf_bytes(entry: LedgerEntry) -> bytes:
    """What stands for one version of a row."""
    return LEAF_TAG + row_bytes(_astuple(entry))


def leaf_hash(entry: LedgerEntry) -> bytes:
    """The leaf's hash."""
    return hash_of_row(row_bytes(_astuple(entry)))


def row_bytes(fields: Sequence[Any]) -> bytes:
    """The row in a leaf, of the fields of a ``LedgerEntry`` as they are or as a database spells them."""
    spelled = list(bound(fields))
    spelled[_PROXY] = bool(spelled[_PROXY])
    if len(spelled) > _INDETERMINATE:
        spelled[_INDETERMINATE] = True
    return _encode(spelled)


def hash_of_row(row: bytes) -> bytes:
    """The hash of the leaf that has this row."""
    return sha256(BEFORE_LEAF + row).digest()


def bound(fields: Sequence[Any]) -> Sequence[Any]:
    """Those of a row's fields that its leaf has: ``indeterminate`` only where it is true."""
    return fields if fields[-1] else fields[:-1]


# Keeping: what a batch adds. ------------------------------------------------------------------------------------------


def edge_of(size: int) -> list[TileKey]:
    """The tiles that the next leaf continues, from the bottom up; what has no hash yet is not among them."""
    keys = []
    level, count = 0, size
    while count:
        if count % TILE_WIDTH:
            keys.append((level, count // TILE_WIDTH))
        level, count = level + 1, count // TILE_WIDTH
    return keys


def appended(size: int, edge: Tiles, leaves: Sequence[bytes]) -> dict[TileKey, bytes]:
    """The tiles that change when these leaf hashes follow ``size`` others, as they are then. ``edge``: see above."""
    changed: dict[TileKey, bytes] = {}
    level, count, fresh = 0, size, b"".join(leaves)
    while fresh:
        number = count // TILE_WIDTH
        hashes = edge.get((level, number), b"") + fresh
        tiles = [hashes[at : at + TILE_WIDTH * HASH_BYTES] for at in range(0, len(hashes), TILE_WIDTH * HASH_BYTES)]
        changed |= {(level, number + place): tile for place, tile in enumerate(tiles)}
        full = tiles if len(tiles[-1]) == TILE_WIDTH * HASH_BYTES else tiles[:-1]
        level, count, fresh = level + 1, number, b"".join(folded(tile) for tile in full)
    return changed


def folded(hashes: bytes) -> bytes:
    """The root over neighbouring hashes, a power of two of them."""
    level = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(level) > 1:
        level = [sha256(b"\x01" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


# Proving: which subtrees a proof names, and what they hash to. --------------------------------------------------------


def inclusion_path(index: int, size: int) -> list[Range]:
    """The subtrees beside the way from a leaf up to the root, from the bottom (RFC 9162 §2.1.3.1)."""
    path = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append((middle, end))
            end = middle
        else:
            path.append((start, middle))
            start = middle
    return path[::-1]


def consistency_path(old_size: int, new_size: int) -> list[Range]:
    """The subtrees from which both roots follow, from the bottom (RFC 9162 §2.1.4.1)."""
    if old_size in (0, new_size):
        return []  # Every tree continues the empty tree, and itself.
    path = []
    start, end = 0, new_size
    while old_size != end:
        middle = start + _split(end - start)
        if old_size <= middle:
            path.append((middle, end))
            end = middle
        else:
            path.append((start, middle))
            start = middle
    if start:  # A left-most subtree is the old tree itself, whose root the asker has.
        path.append((start, end))
    return path[::-1]


def checked_inclusion(sequence: int, size: int, there: int) -> list[Range]:
    """The path of a leaf in the tree of ``size``, when ``there`` are so many; raises Refused if there is none."""
    if not 0 < sequence <= size <= there:
        message = f"there is no leaf {sequence} in a tree of {size}; this one has {there} leaves"
        raise Refused(message, code="no_such_leaf")
    return inclusion_path(sequence - 1, size)


def checked_consistency(old_size: int, new_size: int, there: int) -> list[Range]:
    """The path between two sizes, when ``there`` are so many leaves; raises Refused if there is none."""
    if not 0 <= old_size <= new_size <= there:
        message = f"a tree of {new_size} leaves does not continue one of {old_size} here; this one has {there}"
        raise Refused(message, code="no_such_tree")
    return consistency_path(old_size, new_size)


def tiles_of(ranges: Iterable[Range]) -> set[TileKey]:
    """The tiles from which the hashes of these subtrees follow."""
    return {_place(level, index)[0] for range_ in ranges for level, index in _complete(*range_)}


def hashes_of(ranges: Iterable[Range], tiles: Tiles) -> list[bytes]:
    """What each subtree hashes to."""
    return [_hash_of(range_, tiles) for range_ in ranges]


def root_of(size: int, tiles: Tiles) -> bytes:
    """The root over the first ``size`` leaves, from the tiles of ``[(0, size)]``."""
    return _hash_of((0, size), tiles) if size else EMPTY_ROOT


def root_if_whole(size: int, tiles: Tiles) -> bytes:
    """The same of tiles that may be missing or cut off; then no root follows, and none is said."""
    try:
        return root_of(size, tiles)
    except (KeyError, ValueError, IndexError):
        return b""


def leaf_hashes(keys: Sequence[TileKey], tiles: Tiles) -> bytes:
    """What neighbouring tiles say, each as long as it must be but the last: what is missing there is zeros."""
    whole = TILE_WIDTH * HASH_BYTES
    found = [tiles.get(key, b"")[:whole] for key in keys]
    return b"".join([*(hashes.ljust(whole, b"\0") for hashes in found[:-1]), *found[-1:]])


def _hash_of(range_: Range, tiles: Tiles) -> bytes:
    """Whole subtrees, smaller and smaller to the right, are joined from the right."""
    nodes = [_node(level, index, tiles) for level, index in _complete(*range_)]
    found = nodes.pop()
    while nodes:
        found = node_hash(nodes.pop(), found)
    return found


def _complete(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The whole subtrees of a range that begins where a subtree of its size may, by level and index."""
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def _place(level: int, index: int) -> tuple[TileKey, int, int]:
    """Where the hashes under a node are kept: the tile, the first of them, and how many."""
    width = 1 << level % TILE_LEVELS
    first = index * width
    return (level // TILE_LEVELS, first // TILE_WIDTH), first % TILE_WIDTH, width


def _node(level: int, index: int, tiles: Tiles) -> bytes:
    key, first, width = _place(level, index)
    return folded(tiles[key][first * HASH_BYTES : (first + width) * HASH_BYTES])


def _split(size: int) -> int:
    """The largest power of two that is smaller than ``size``."""
    return 1 << (size - 1).bit_length() - 1
