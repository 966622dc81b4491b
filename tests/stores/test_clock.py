"""Where ids come from: the system's generator, drawn from many at a time."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from twophp.stores.clock import mint_uuid

UUID_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.req("P-5.2.2-c", "P-13.1-b", "A-13")
def test_an_id_is_a_uuid_4_and_no_two_are_alike() -> None:
    minted = [mint_uuid() for _ in range(2_000)]
    assert all(UUID_4.fullmatch(one) for one in minted)
    assert len(set(minted)) == len(minted)


def test_no_two_threads_get_the_same() -> None:
    with ThreadPoolExecutor(8) as threads:
        lots = threads.map(lambda _number: [mint_uuid() for _ in range(5_000)], range(8))
        minted = [one for lot in lots for one in lot]
    assert len(set(minted)) == len(minted)


def test_no_child_gets_what_its_parent_has_drawn() -> None:
    mint_uuid()  # Something is in store.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "\n".join(mint_uuid() for _ in range(300)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="ascii") as told:
        theirs = set(told.read().split())
    os.waitpid(child, 0)
    assert len(theirs) == 300
    assert not theirs & {mint_uuid() for _ in range(300)}
