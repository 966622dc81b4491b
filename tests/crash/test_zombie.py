"""A server that is only believed to be dead: it still runs its handler when another has taken its intent over."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.crash import caller, remains
from tests.crash.caller import Answer, Connection
from tests.crash.life import LATER_MS, Life
from tests.crash.rig import Rig
from tests.patience import PATIENCE_S

CLIENT: Final = "client-1"


async def overtaken(rig: Rig, life: Life) -> tuple[Answer, Answer]:
    """What the zombie's client hears, and what was decided while its handler stood at the gate."""
    late, quick = Connection(rig.ports[0]), Connection(rig.ports[1])
    registered = await late.insist(caller.register(CLIENT))
    await late.send(caller.confirm(CLIENT, registered.server_id))
    gate = await asyncio.to_thread(Path(life.gate).open, "wb")  # Returns when the handler has opened the other end.
    os.unlink(f"{life.database}.owners")  # noqa: PTH108 - As on another host: nobody can tell whether it lives.
    with gate:
        heir = msgspec.structs.replace(life, listener=rig.listeners[1], ahead_ms=LATER_MS, gated=False)
        rig.begin(heir)
        decided = await quick.insist(caller.confirm(CLIENT, registered.server_id))
    async with asyncio.timeout(PATIENCE_S):  # The gate is open.
        heard = await late.read()
    await late.close()
    await quick.close()
    return heard, decided


@pytest.mark.req("A-34", "P-8.1-a")
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
def test_who_was_overtaken_changes_nothing_and_answers_what_was_decided(
    rig: Rig, tmp_path: Path, on_crash: str
) -> None:
    told = {"folder": str(tmp_path), "listener": rig.listeners[0], "on_crash": on_crash, "effect": "row", "gated": True}
    life = msgspec.convert(told, Life)
    os.mkfifo(life.gate)
    rig.begin(life)
    heard, decided = asyncio.run(overtaken(rig, life))
    rig.kill_all()
    left = remains.of(life)
    assert heard == decided
    assert decided.phase == left.phase == ("FAILED" if on_crash == "fail" else "COMMITTED")
    assert [run for _subject, run in left.rows] == ([] if on_crash == "fail" else [decided.run])
