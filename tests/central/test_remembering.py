"""Services remember the heads that they were given: a rewritten history is noticed by the parties themselves."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.central.served import Central, central
from tests.central.tampering import tamper
from tests.central.test_ship import shipper
from tests.cli.doctoring import doctor
from tests.cli.world import participants
from twophp.central.proof import merkle
from twophp.identity import notes
from twophp.shipping.remembering import ALARM, HEAD, GivenHead, Remembering
from twophp.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def rewrite(here: Central, url: str, size: int) -> None:
    """The first row, the tree over it, and the root that was signed: nothing in the database tells."""
    tamper(url, "UPDATE entry SET transaction_reference = 'forged' WHERE sequence = 1")
    page = here.do(here.state.store.leaves(1, 256))
    tiles = merkle.appended(0, {}, [merkle.hash_of_row(leaf) for _number, leaf in page.newest])
    tamper(url, "UPDATE tile SET hashes = ? WHERE level = 0", tiles[0, 0])
    tamper(url, "UPDATE head_history SET root = ? WHERE size = ?", merkle.root_of(size, tiles), size)


async def test_a_service_notices_that_history_was_rewritten_and_signed_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c").mkdir()
    url = f"sqlite:///{tmp_path}/c/central.db"
    with central(tmp_path / "c") as here:
        secret, guid = here.join("serviceA")
        async with participants(tmp_path, "serviceA") as who:
            one = who["serviceA"]

            async def ship(number: int) -> int:
                """A row is sent, and everything is signed; the next answer tells of it."""
                await one.registers(number)
                sending = shipper(one, here.url, secret, ledger_id=guid)
                assert await sending.ship() == 1
                here.do(here.state.heads.sign())
                return sending.broken_promises

            assert [await ship(number) for number in (1, 2, 3)] == [0, 0, 0]
            kept = Remembering(one.store)
            assert await kept.size() >= 1, "it is in the service's own database, for the next process"
            rewrite(here, url, 3)
            assert await ship(4) in (0, 1), "the head of before may have been told once more"
            caplog.set_level(logging.ERROR, "twophp.ship")
            assert await ship(5) == 1
        said = [record.getMessage() for record in caplog.records if record.name == "twophp.ship"]
        assert any("[fork] head" in line for line in said)
        level, means, _remedy = doctor(tmp_path / "serviceA.db", "--no-write")["central.history"]
        assert (level, "fork: head" in means) == ("fail", True)


def given(signer: notes.Signer, leaves: list[bytes], number: int, seen: int) -> GivenHead:
    tiles = merkle.appended(0, {}, leaves)
    root = merkle.root_of(len(leaves), tiles)
    head = notes.Head(origin=signer.public.name, size=len(leaves), root=root, number=number, at=number)
    path = merkle.hashes_of(merkle.consistency_path(seen, len(leaves)), tiles) if seen <= len(leaves) else []
    return GivenHead(signer.sign(head.text()), str(signer.public), [part.hex() for part in path])


LEAVES = [bytes([number]) * 32 for number in range(9)]


async def test_what_continues_is_remembered_and_nothing_else() -> None:
    store, signer = MemoryStore(), notes.Signer("central", bytes(32))
    one = Remembering(store)
    await one.look(given(signer, LEAVES[:3], 1, 0))
    await one.look(given(signer, LEAVES[:7], 2, 3))
    assert (await one.size(), one.broken) == (7, 0)
    await one.look(given(signer, LEAVES[:7], 2, 7))
    assert one.broken == 0, "told once more"
    another = Remembering(store)  # As after a restart.
    assert await another.size() == 7
    await another.look(given(signer, [*LEAVES[:2], bytes(32), *LEAVES[3:]], 3, 7))
    await another.look(given(signer, LEAVES[:4], 3, 7))
    await another.look(given(notes.Signer("central", bytes([1]) * 32), LEAVES, 3, 7))
    await another.look(GivenHead("no note", str(signer.public), ["no hash"]))
    assert (await another.size(), another.broken) == (7, 4)
    assert '"what":"fork"' in await store.get_or_set_meta(ALARM, ""), "the first one is the evidence"
    await another.look(given(signer, LEAVES, 3, 7))
    assert (await another.size(), another.broken) == (9, 4)
    assert "central" in await store.get_or_set_meta(HEAD, "")


async def test_a_setting_says_who_is_believed() -> None:
    believed, other = notes.Signer("central", bytes(32)), notes.Signer("central", bytes([1]) * 32)
    one = Remembering(MemoryStore(), str(believed.public))
    await one.look(given(other, LEAVES[:3], 1, 0))
    assert (await one.size(), one.broken) == (0, 1)
    await one.look(given(believed, LEAVES[:3], 1, 0))
    assert (await one.size(), one.broken) == (3, 1)
