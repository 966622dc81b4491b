"""What may be proven of a tree with so many leaves, and which subtrees the proof names."""

from __future__ import annotations

from twophp.central.proof.merkle import Range, consistency_path, inclusion_path
from twophp.core.errors import Refused


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
