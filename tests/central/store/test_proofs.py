"""The Merkle tree: what anyone who kept an old head can prove, and find out (RFC 9162)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.central.store.scene import T0, everything, order, send
from twophp.central.ports import TreeHead
from twophp.central.proof import merkle
from twophp.central.proof.folding import Fold
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.core.errors import Refused
from twophp.core.intent import Phase

pytestmark = pytest.mark.anyio


async def test_every_row_is_proven_under_every_head_since_it_arrived(store: CentralStore) -> None:
    heads = [await store.head()]
    for first in range(0, 30, 6):
        await send(store, *(order(number) for number in range(first, first + 6)), at=T0 + first)
        heads.append(await store.head())
    assert (heads[0].size, heads[0].root) == (0, merkle.EMPTY_ROOT)
    assert [head.at for head in heads[1:]] == [T0, T0 + 6, T0 + 12, T0 + 18, T0 + 24]
    for row in await everything(store):
        leaf = merkle.leaf_hash(row.entry)
        assert await store.leaf(row.sequence) == leaf
        for head in heads:
            if row.sequence <= head.size:
                path = await store.inclusion(row.sequence, head.size)
                assert merkle.verify_inclusion(leaf, row.sequence - 1, head.size, path, head.root)
    for old in heads:
        for new in heads:
            if old.size <= new.size:
                path = await store.consistency(old.size, new.size)
                assert merkle.verify_consistency(old.size, old.root, new.size, new.root, path)


async def test_the_same_rows_have_the_same_root_on_every_database(store: CentralStore) -> None:
    """So a move to another database keeps every proof. The root is a vector for other implementations."""
    await send(store, *(order(number) for number in range(300)))
    assert (await store.head()).root.hex() == "8112e73fbeeef892bd951d4e16e5830f45d613d4592efdeb0f755820499b14f9"


async def test_a_version_that_was_replaced_is_still_proven_by_whoever_kept_it(store: CentralStore) -> None:
    await send(store, order(1), order(2), at=T0)
    kept = (await everything(store))[0].entry
    await send(store, order(1, version=2), at=T0 + 1)
    head = await store.head()
    path = await store.inclusion(1, head.size)
    assert merkle.verify_inclusion(merkle.leaf_hash(kept), 0, head.size, path, head.root)
    forged = merkle.leaf_hash(replace(kept, transaction_reference="never said"))
    assert not merkle.verify_inclusion(forged, 0, head.size, path, head.root)


async def test_what_is_not_there_cannot_be_proven(store: CentralStore) -> None:
    await send(store, order(1), order(2))
    assert [await store.leaf(number) for number in (-1, 0, 3)] == [None, None, None]
    for sequence, size in ((0, 2), (3, 2), (1, 3), (-1, 2)):
        with pytest.raises(Refused) as refused:
            await store.inclusion(sequence, size)
        assert refused.value.code == "no_such_leaf"
    for old, new in ((2, 1), (1, 3), (-1, 1)):
        with pytest.raises(Refused) as refused:
            await store.consistency(old, new)
        assert refused.value.code == "no_such_tree"


# A writer of the database can rewrite rows and hashes. An old head finds out. -----------------------------------------


def forge(path: Path, statement: str, *values: object) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    connection.close()


async def noted(path: Path) -> TreeHead:
    store = await open_central(f"sqlite:///{path}")
    await send(store, *(order(number) for number in range(10)))
    head = await store.head()
    await store.close()
    return head


async def test_a_rewritten_row_no_longer_is_what_its_leaf_says(tmp_path: Path) -> None:
    path = tmp_path / "central.db"
    old = await noted(path)
    forge(path, "UPDATE entry SET transaction_reference = 'forged' WHERE sequence = 4")
    store = await open_central(f"sqlite:///{path}")
    rows = await everything(store)
    proven = {
        row.sequence: merkle.verify_inclusion(
            merkle.leaf_hash(row.entry), row.sequence - 1, 10, await store.inclusion(row.sequence, 10), old.root
        )
        for row in rows
    }
    await store.close()
    assert [sequence for sequence, is_so in proven.items() if not is_so] == [4]


async def test_a_tree_that_was_made_anew_does_not_continue_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "central.db"
    old = await noted(path)
    forge(path, "DELETE FROM entry WHERE sequence = 4")
    other = merkle.appended(0, {}, [bytes([number]) * 32 for number in range(10)])
    forge(path, "UPDATE tile SET hashes = ?", other[0, 0])
    store = await open_central(f"sqlite:///{path}")
    await send(store, order(99))
    new = await store.head()
    path_between = await store.consistency(old.size, new.size)
    await store.close()
    assert not merkle.verify_consistency(old.size, old.root, new.size, new.root, path_between)


# The hashing itself, against the definition. --------------------------------------------------------------------------


def hashed(leaves: Sequence[bytes]) -> bytes:
    """RFC 9162 §2.1.1, word for word."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else merkle.EMPTY_ROOT
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return merkle.node_hash(hashed(leaves[:split]), hashed(leaves[split:]))


def leaves_of(count: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.data())
def test_tiles_say_what_the_definition_says(batches: list[int], data: st.DataObject) -> None:
    leaves = leaves_of(sum(batches))
    tiles: dict[merkle.TileKey, bytes] = {}
    size = 0
    for count in batches:
        edge = {key: tiles[key] for key in merkle.edge_of(size)}
        tiles |= merkle.appended(size, edge, leaves[size : size + count])
        size += count
    new = data.draw(st.integers(1, size))
    old, index = data.draw(st.integers(0, new)), data.draw(st.integers(0, new - 1))
    root, old_root = hashed(leaves[:new]), hashed(leaves[:old])
    assert merkle.root_of(new, {key: tiles[key] for key in merkle.tiles_of([(0, new)])}) == root
    path = merkle.inclusion_path(index, new)
    proof = merkle.hashes_of(path, {key: tiles[key] for key in merkle.tiles_of(path)})
    assert merkle.verify_inclusion(leaves[index], index, new, proof, root)
    assert not merkle.verify_inclusion(leaves[index - 1], index, new, proof, root) or new == 1
    path = merkle.consistency_path(old, new)
    proof = merkle.hashes_of(path, tiles)
    assert merkle.verify_consistency(old, old_root, new, root, proof)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 80), st.data())
def test_a_proof_that_was_touched_proves_nothing(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    tiles = merkle.appended(0, {}, leaves)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    root, old_root = hashed(leaves), hashed(leaves[:old])
    inclusion = merkle.hashes_of(merkle.inclusion_path(index, size), tiles)
    consistency = merkle.hashes_of(merkle.consistency_path(old, size), tiles)
    other = b"\xff" * 32
    for place in range(len(inclusion)):
        touched = [*inclusion[:place], other, *inclusion[place + 1 :]]
        assert not merkle.verify_inclusion(leaves[index], index, size, touched, root)
    assert not merkle.verify_inclusion(leaves[index], index, size, [*inclusion, other], root)
    assert not merkle.verify_inclusion(leaves[index], size, size, inclusion, root)
    for place in range(len(consistency)):
        touched = [*consistency[:place], other, *consistency[place + 1 :]]
        assert not merkle.verify_consistency(old, old_root, size, root, touched)
    assert not merkle.verify_consistency(old, old_root, size, root, [*consistency, other])
    assert not merkle.verify_consistency(old, other, size, root, consistency)
    assert not merkle.verify_consistency(size + 1, root, size, root, consistency)


def test_a_leaf_is_the_tag_and_the_row_as_messagepack() -> None:
    entry = replace(order(1), sync_timestamp=T0)
    tag, _newline, row = merkle.leaf_bytes(entry).partition(b"\n")
    assert tag == b"twophp:central-leaf:1"
    fields = list(msgspec.json.decode(msgspec.json.encode(msgspec.structs.astuple(entry))))
    assert msgspec.msgpack.decode(row) == fields[:21], "as it was before there was a field for what is indeterminate"
    failed = replace(order(1, phase=Phase.FAILED), sync_timestamp=T0)
    said = replace(failed, indeterminate=True)
    assert merkle.leaf_bytes(said) != merkle.leaf_bytes(failed)
    assert msgspec.msgpack.decode(merkle.leaf_bytes(said).partition(b"\n")[2])[21:] == [True]


@pytest.mark.parametrize("size", [1_000, 100_000, 10_000_000, 10**12])
def test_a_proof_reads_a_handful_of_tiles_however_many_leaves_there_are(size: int) -> None:
    """At most two tiles of each eighth level, and one more where the tree is not whole."""
    index = size * 7 // 9
    for path in (merkle.inclusion_path(index, size), merkle.consistency_path(index, size), [(0, size)]):
        assert len(merkle.tiles_of(path)) <= 3 * (size.bit_length() // merkle.TILE_LEVELS + 1)
        assert len(path) <= size.bit_length() + 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 900), st.integers(0, 3), st.data())
def test_folding_leaves_as_they_come_gives_the_root_and_goes_on_from_its_edge(
    size: int, tiles: int, data: st.DataObject
) -> None:
    leaves = leaves_of(size)
    first = min(tiles * merkle.TILE_WIDTH, size - size % merkle.TILE_WIDTH)
    begun = Fold()
    begun.add(b"".join(leaves[:first]))
    gone_on = Fold(begun.count, begun.edge)
    gone_on.add(b"".join(leaves[first:]))
    assert (gone_on.count, gone_on.root()) == (size, hashed(leaves))
    old = data.draw(st.integers(first, size))
    then = begun.copy()
    then.add(b"".join(leaves[first:old]))
    assert then.root() == hashed(leaves[:old])
