"""Proofs over HTTP: the tree head, that a row is in it, and that a newer head continues an older one (RFC 9162)."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from twophp.central.api.documents import (
    ConsistencyDocument,
    HeadDocument,
    InclusionDocument,
    RowProofsDocument,
    head_of,
    json_answer,
    row_of,
)
from twophp.central.api.heads import At, signed_head
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe
from twophp.central.api.state import CentralPart, Reader
from twophp.central.ports import LEAVES_PER_PAGE
from twophp.central.proof import merkle
from twophp.central.proof.merkle import TILE_WIDTH
from twophp.wire.rows import Id

MOST: Final = 2**53 - 1
PACKED: Final = "application/vnd.msgpack"

router: Final = APIRouter(tags=["proofs"])

Sequence: TypeAlias = Annotated[int, Path(ge=1, le=MOST)]
First: TypeAlias = Annotated[int, Query(ge=1, le=MOST)]
Size: TypeAlias = Annotated[int, Query(ge=0, le=MOST)]


@router.get("/v1/proofs/head", **describe(HeadDocument))
async def head(central: CentralPart, _principal: Reader) -> Response:
    """The tree head now. A client that notes it elsewhere finds out later if history was rewritten."""
    return json_answer(head_of(await central.store.head()))


@router.get("/v1/proofs/inclusion/{sequence}", **describe(InclusionDocument, 400, 404))
async def inclusion(central: CentralPart, _principal: Reader, sequence: Sequence, size: Size | None = None) -> Response:
    """That leaf `sequence` is in the tree of `size` leaves, by default all there are.

    `root` is told of the whole tree; of a smaller one, the asker has it. `row` is that version, newest or superseded.
    """
    now = await central.store.head()
    size = now.size if size is None else size
    if size > now.size or sequence > size:
        raise ApiProblem("bad_size")
    leaf = await central.store.leaf(sequence)
    if leaf is None:
        raise ApiProblem("not_found")
    path = await central.store.inclusion(sequence, size)
    found = await central.store.version(sequence)
    row = None if found is None else row_of(found)
    root = now.root.hex() if size == now.size else None
    document = {"sequence": sequence, "size": size, "root": root, "leaf": leaf.hex(), "row": row}
    return json_answer(document | {"path": [part.hex() for part in path]})


@router.get("/v1/proofs/rows", **describe(RowProofsDocument, 400, 404, 409))
async def rows(
    central: CentralPart, _principal: Reader, correlation_id: Annotated[Id, Query()], at: At = None
) -> Response:
    """The rows with this id, each with its proof under a signed head: of now, or with `at` of what was so then.

    With `at` it is the last head that was signed at that time or before, and each row in the version it had then. The
    document is whole: with the key, which the reader knows from elsewhere, it can be verified without the ledger.
    """
    head = await signed_head(central, at)
    found = await central.store.rows_in(correlation_id, head.size)
    proofs = []
    for row in found:
        path = [part.hex() for part in await central.store.inclusion(row.sequence, head.size)]
        leaf = merkle.leaf_hash(row.entry).hex()
        proofs.append({"sequence": row.sequence, "leaf": leaf, "path": path, "row": row_of(row)})
    document = {"head": f"{head.size}:{head.root.hex()}", "note": head.note, "key": str(central.heads.public)}
    return json_answer(document | {"proofs": proofs})


_packed: Final[dict[str, Any]] = describe(None, 400)
_packed["responses"][200] = {"description": "`Leaves` as a MessagePack map.", "content": {PACKED: {"schema": {}}}}


@router.get("/v1/proofs/leaves", **_packed)
async def leaves(central: CentralPart, _principal: Reader, first: First = 1) -> Response:
    """4,096 leaves from number `first`, one more than a multiple of 256, as of one moment: a MessagePack map.

    `size`, `root` and `at` are the head of that moment. `hashes` are the leaves' as the tree has them. `newest` are
    pairs of a number and the row that is served under it, `past` are triples of a number, the number that superseded
    it, and the row. A row is what its leaf hashes behind `0x00` and the tag. Until `until` is above `size`, go on from
    `until`.
    """
    if first % TILE_WIDTH != 1:
        raise ApiProblem("bad_size", f"a page begins with 1 or one more than a multiple of {TILE_WIDTH}")
    found = await central.store.leaves(first, LEAVES_PER_PAGE)
    return Response(msgspec.msgpack.encode(found), headers={"Cache-Control": "no-store"}, media_type=PACKED)


@router.get("/v1/proofs/consistency", **describe(ConsistencyDocument, 400))
async def consistency(
    central: CentralPart, _principal: Reader, old_size: Size, new_size: Size | None = None
) -> Response:
    """That the tree of `new_size` leaves, by default all there are, begins with the one of `old_size`."""
    now = await central.store.head()
    size = now.size if new_size is None else new_size
    if old_size > size or size > now.size:
        raise ApiProblem("bad_size")
    path = await central.store.consistency(old_size, size)
    root = now.root.hex() if size == now.size else None
    document = {"old_size": old_size, "new_size": size, "new_root": root}
    return json_answer(document | {"path": [part.hex() for part in path]})
