"""Walking the proofs of a Merkle tree (RFC 9162 §2.1) with nothing but hashes in hand.

Whoever keeps a head needs no more: the central ledger's command line, a witness, and a service that was given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether ``path`` shows that this leaf hash is number ``index`` under ``root`` (RFC 9162 §2.1.3.2)."""
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf
    for beside in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(beside, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, beside)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether ``path`` shows that the tree under ``new_root`` begins with the one under ``old_root`` (§2.1.4.2)."""
    if old_size > new_size or old_size < 0:
        return False
    if old_size == 0:
        return not path and old_root == EMPTY_ROOT
    if old_size == new_size:
        return not path and old_root == new_root
    hashes = list(path) if old_size & (old_size - 1) else [old_root, *path]
    if not hashes:
        return False
    place, last = old_size - 1, new_size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old_found = new_found = hashes[0]
    for beside in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old_found, new_found = node_hash(beside, old_found), node_hash(beside, new_found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new_found = node_hash(new_found, beside)
        place, last = place >> 1, last >> 1
    return last == 0 and old_found == old_root and new_found == new_root
