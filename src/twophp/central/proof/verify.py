"""Verification of a central ledger: every leaf is hashed anew from the row that is served, and all of them are folded.

What can be found, each under its number (ADR 47):

    rewritten      the row that is served is not what its leaf says
    removed        a leaf has no row
    slipped_in     a row stands beside the tree, or a second one under a leaf
    superseded     an older version is served as the newest, or what is kept as superseded was not
    other_tree     the tree does not follow from its leaves
    other_history  the tree does not continue a head that was noted earlier: rewritten consistently, or cut off

Where row and leaf differ, the stored hash goes into the fold. So if the tree still is what a noted head says, the leaf
is right and the row is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import apsw
import msgspec

from twophp.central.ports import Leaves, TreeHead
from twophp.central.proof.folding import Fold
from twophp.central.proof.merkle import BEFORE_LEAF, HASH_BYTES, TILE_WIDTH
from twophp.core.errors import ConfigError, Refused
from twophp.stores.named_sql import named

FINDINGS_NAMED: Final = 100
KEY_BYTES: Final = 16
BY_NOTHING: Final = -1

What: TypeAlias = Literal["rewritten", "removed", "slipped_in", "superseded", "other_tree", "other_history"]

SQL: Final = named(files(__package__).joinpath("verify.sql").read_text(encoding="utf-8"))


class Noted(msgspec.Struct, frozen=True, order=True):
    """A head that was noted earlier."""

    size: int
    root: bytes

    def __str__(self) -> str:
        return f"{self.size}:{self.root.hex()}"


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be; ``sequence`` is None if it is about the whole tree."""

    what: What
    sequence: int | None
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification has found out."""

    head: TreeHead
    is_whole: bool  # The head's root follows from the leaves.
    leaves: int
    rows: int  # Of them served as the newest version,
    past: int  # superseded by a newer one,
    without_row: int  # and superseded before versions were kept.
    findings: Sequence[Finding]  # At most ``FINDINGS_NAMED`` of them.
    findings_count: int

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_count


class _Key(msgspec.Struct, array_like=True, gc=False):
    """The beginning of a row: what it is found by."""

    client_correlation_id: str
    server_correlation_id: str
    service_ledger_id: str
    service_endpoint: str
    actor: str


_key: Final = msgspec.msgpack.Decoder(_Key).decode


class Verification:
    """One verification, fed with neighbouring leaves in their order. ``path`` is where it keeps what it has seen."""

    def __init__(self, path: str, about: str, noted: Sequence[Noted] = ()) -> None:
        """Begin, or go on where one of the same ledger and the same heads was interrupted."""
        self._path = path
        self._noted = sorted(noted)
        # As a digest: the URL of a database may have a password in it, and this file is kept.
        self._about = sha256("\n".join([about, *map(str, self._noted)]).encode()).digest()
        self._state = _opened(path)
        found = self._rows("progress")
        about_, count, edge, roots, without_row = found[0] if found else (self._about, 0, b"", b"", 0)
        if about_ != self._about:
            message = f"{path} is of a verification of another ledger, or with other heads; give another file"
            raise ConfigError(message, code="other_verification")
        for statement in ("forget_seen", "forget_findings"):  # What the last page said before it was whole.
            self._state.execute(SQL[statement], (count,))
        self._without_row: int = without_row
        self._fold = Fold(count, edge)
        self._roots = [roots[at : at + HASH_BYTES] for at in range(0, len(roots), HASH_BYTES)]
        self._last: Leaves | None = None

    @property
    def wanted(self) -> int:
        """The number of the leaf to go on with."""
        return self._fold.count + 1

    def take(self, page: Leaves) -> bool:
        """Look at a page; whether there are more."""
        if page.first != self.wanted or (page.until - page.first) % TILE_WIDTH or page.until <= page.first:
            raise Refused("the answer is not the central ledger's: these are other leaves", code="bad_answer")
        expected = max(0, min(page.until - 1, page.size) - page.first + 1)
        hashes = page.hashes[: expected * HASH_BYTES]
        found: list[Finding] = []
        if len(page.hashes) != expected * HASH_BYTES:
            there = page.first - 1 + len(page.hashes) // HASH_BYTES
            found.append(
                _finding("other_tree", f"the tree has hashes of {there} leaves here, its head says {page.size}")
            )
            hashes = hashes.ljust(expected * HASH_BYTES, b"\0")
        seen = list(self._looked_at(page, hashes, expected, found))
        self._note_roots(hashes)
        self._fold.add(hashes)
        self._last = page
        self._keep(seen, found, more=page.until <= page.size)
        return page.until <= page.size

    def finish(self) -> Report:
        """Compare the tree with its head and the noted ones, and every row with its other versions."""
        assert self._last is not None, "there is no report before the last page"
        last, fold = self._last, self._fold
        if last.root != fold.root():
            self._find(_finding("other_tree", f"the head's root does not follow from the {fold.count} leaves"))
        self._note_roots(b"")
        for noted, root in zip(self._noted, self._roots, strict=False):
            if root != noted.root:
                self._find(_finding("other_history", f"the first {noted.size} leaves are not those of {noted}"))
        for noted in self._noted[len(self._roots) :]:
            self._find(_finding("other_history", f"there are {fold.count} leaves, and {noted} had more"))
        for row in self._rows("out_of_order"):
            self._find(_out_of_order(*row))
        ((seen, past),), ((count,),) = self._rows("count_seen"), self._rows("count_findings")
        return Report(
            head=TreeHead(size=last.size, root=last.root, at=last.at),
            is_whole=last.root == fold.root(),
            leaves=fold.count,
            rows=seen - past,
            past=past,
            without_row=self._without_row,
            findings=[Finding(*row) for row in self._rows("findings", FINDINGS_NAMED)],
            findings_count=count,
        )

    def close(self, *, forget: bool) -> None:
        """Let go of the file; remove it unless a later verification is to go on from it."""
        self._state.close()
        if forget:
            for suffix in ("", "-wal", "-shm"):
                Path(self._path + suffix).unlink(missing_ok=True)

    def _looked_at(self, page: Leaves, hashes: bytes, count: int, found: list[Finding]) -> Iterator[tuple[Any, ...]]:
        """What is kept of each leaf that has its row."""
        newest, size = dict(page.newest), page.size
        past = {sequence: (superseded_by, row) for sequence, superseded_by, row in page.past}
        at = 0
        for sequence in range(page.first, page.first + count):
            row, superseded_by, is_past = newest.pop(sequence, None), 0, False
            if row is None and (is_past := sequence in past):
                by, row = past.pop(sequence)
                superseded_by = by or BY_NOTHING
            stored, at = hashes[at : at + HASH_BYTES], at + HASH_BYTES
            if row is None:
                self._note_absent(sequence, found, may_be=is_past and sequence <= page.kept_from)
            elif sha256(BEFORE_LEAF + row).digest() != stored:
                found.append(_finding("rewritten", f"{_name(row)} is not what leaf {sequence} says", sequence))
            elif key := _key_of(row):
                yield key, sequence, superseded_by, size
            else:
                found.append(_finding("rewritten", f"leaf {sequence} has no row that can be read", sequence))
        outside = [*newest.items(), *((sequence, row) for sequence, (_by, row) in past.items())]
        found += [_finding("slipped_in", _beside(sequence, row, size), sequence) for sequence, row in sorted(outside)]

    def _note_absent(self, sequence: int, found: list[Finding], *, may_be: bool) -> None:
        if may_be:
            self._without_row += 1
        else:
            found.append(_finding("removed", f"leaf {sequence} has no row", sequence))

    def _note_roots(self, hashes: bytes) -> None:
        """The roots at the sizes of noted heads that lie in these leaves, or before them."""
        reached = self._fold.count + len(hashes) // HASH_BYTES
        for noted in self._noted[len(self._roots) :]:
            if noted.size > reached:
                return
            then = self._fold.copy()
            if noted.size > then.count:
                then.add(hashes[: (noted.size - then.count) * HASH_BYTES])
            self._roots.append(then.root())

    def _keep(self, seen: Sequence[tuple[Any, ...]], found: Sequence[Finding], *, more: bool) -> None:
        with self._state:
            self._state.executemany(SQL["keep_seen"], seen)
            self._state.executemany(SQL["keep_finding"], [(one.what, one.sequence, one.message) for one in found])
            if more:  # The last page may end within a tile; it is looked at again.
                place = self._fold.count, self._fold.edge, b"".join(self._roots), self._without_row
                self._state.execute(SQL["keep_progress"], (self._about, *place))

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._state.execute(SQL[statement], values).fetchall()

    def _find(self, found: Finding) -> None:
        self._state.execute(SQL["keep_finding"], (found.what, found.sequence, found.message))


def _opened(path: str) -> apsw.Connection:
    try:
        state = apsw.Connection(path)
        state.execute(SQL["make"]).fetchall()  # All of it: a statement that answers would be the last.
    except apsw.Error as error:
        raise ConfigError(f"{path} is not what a verification keeps: {error}", code="bad_state") from error
    return state


def _finding(what: What, message: str, sequence: int | None = None) -> Finding:
    return Finding(what, sequence, message)


def _key_of(row: bytes) -> bytes | None:
    """Stands for what a row is found by; None if it is no row."""
    try:
        found = _key(row)
    except msgspec.DecodeError:
        return None
    ids = f"{found.client_correlation_id}\0{found.server_correlation_id}\0{found.service_ledger_id}\0{found.actor}"
    return sha256(ids.encode()).digest()[:KEY_BYTES]


def _name(row: bytes | None) -> str:
    """A row as an operator looks for it."""
    with suppress(msgspec.DecodeError, TypeError):
        found = _key(row or b"")
        return f"the {found.actor} row of ({found.client_correlation_id}, {found.server_correlation_id})"
    return "a row"


def _beside(sequence: int, row: bytes | None, size: int) -> str:
    where = f"a second time under leaf {sequence}" if 0 < sequence <= size else f"under {sequence}, outside the tree"
    return f"{_name(row)} stands {where}"


def _out_of_order(sequence: int, superseded_by: int, following: int | None) -> Finding:
    if superseded_by == 0:
        message = f"row {sequence} is served as the newest, and leaf {following} is a newer version of it"
    else:
        said = "nothing" if superseded_by == BY_NOTHING else f"leaf {superseded_by}"
        newer = "there is no newer version of it" if following is None else f"the next version is leaf {following}"
        message = f"leaf {sequence} is kept as superseded by {said}, and {newer}"
    return _finding("superseded", message, sequence)
