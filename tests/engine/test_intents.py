"""The flows against a store whose commits fail: the outcome of a change is found out, and acted on once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.faults.handshake import PAYLOAD, POLICY, VAULT, WRITER
from twophp.core.errors import CommitUnknown, StorePoisoned, StoreUnavailable
from twophp.core.intent import Mode, Phase
from twophp.core.intent_commands import Confirm, Register
from twophp.core.machine import Goto, Replay
from twophp.engine.intents import Intents
from twophp.stores.sqlite import SQLiteStore

NOW = 1_700_000_000_000
REGISTER = Register(
    client_correlation_id="client-1",
    server_correlation_id="server-1",
    principal="ab" * 32,
    replay_key="cd" * 32,
    mode=Mode.STANDARD,
    service_endpoint="orders/orders",
    path="/orders",
    arrived_at=NOW,
)
CONFIRM = Confirm(
    client_correlation_id="client-1",
    server_correlation_id="server-1",
    principal="ab" * 32,
    path="/orders",
    arrived_at=NOW,
    owner="worker",
    provisional_resource_id="r-1",
)


def break_next_commit(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, *, written: bool) -> None:
    """The next commit reports an I/O error, whether or not it reached the disk. The one after that works again."""
    writer = store._writer

    def broken() -> None:
        monkeypatch.undo()
        if written:
            writer._connection.execute("COMMIT")
        raise apsw.IOError("injected")

    monkeypatch.setattr(writer, "_sync", broken)


@pytest.mark.req("A-42", "REG-S1")
@pytest.mark.parametrize("written", [True, False])
def test_an_unknown_commit_is_found_out_and_acted_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    async def scene() -> None:
        async with SQLiteStore(str(tmp_path / "ledger.db"), clock=lambda: NOW) as store:
            intents = Intents(store, VAULT, WRITER)
            break_next_commit(store, monkeypatch, written=written)
            registered = await intents.register(REGISTER, PAYLOAD, POLICY)
            assert isinstance(registered.verdict, Goto)
            break_next_commit(store, monkeypatch, written=written)
            confirmed = await intents.confirm(CONFIRM, POLICY)
            assert isinstance(confirmed.verdict, Goto), "the caller that crossed the PONR has to run it"
            assert confirmed.intent is not None
            assert (confirmed.intent.phase, confirmed.intent.fence) == (Phase.PROCESSING, 1)
            assert await intents.payload(confirmed.intent) == PAYLOAD
            assert isinstance((await intents.confirm(CONFIRM, POLICY)).verdict, Replay)

    asyncio.run(scene())


@pytest.mark.req("A-42")
def test_what_may_have_been_written_is_not_said_to_be_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise StoreUnavailable("the disk is away")

    async def scene() -> None:
        async with SQLiteStore(str(tmp_path / "ledger.db"), clock=lambda: NOW) as store:
            intents = Intents(store, VAULT, WRITER)
            await intents.register(REGISTER, PAYLOAD, POLICY)
            break_next_commit(store, monkeypatch, written=True)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(store, "reopen", away)
                with pytest.raises(CommitUnknown):
                    await intents.confirm(CONFIRM, POLICY)
                with pytest.raises(StoreUnavailable):  # Of this one nothing was: the store had stopped before.
                    await intents.confirm(CONFIRM, POLICY)

    asyncio.run(scene())


def test_many_may_reopen_a_poisoned_store_at_once(tmp_path: Path) -> None:
    async def scene() -> list[Any]:
        async with SQLiteStore(str(tmp_path / "ledger.db"), clock=lambda: NOW) as store:
            store._writer._poison = StorePoisoned("injected")
            intents = Intents(store, VAULT, WRITER)
            return await asyncio.gather(*(intents.register(REGISTER, PAYLOAD, POLICY) for _ in range(8)))

    decisions = asyncio.run(scene())
    assert len(decisions) == 8
    assert {decision.intent.server_correlation_id for decision in decisions} == {"server-1"}
    assert {decision.intent.version for decision in decisions} == {1}


def test_a_store_that_was_closed_refuses_and_finishes_what_it_accepted(tmp_path: Path) -> None:
    async def scene() -> tuple[Any, BaseException]:
        store = SQLiteStore(str(tmp_path / "ledger.db"), clock=lambda: NOW)
        intents = Intents(store, VAULT, WRITER)
        accepted = asyncio.create_task(intents.register(REGISTER, PAYLOAD, POLICY))
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        refused = await asyncio.gather(intents.confirm(CONFIRM, POLICY), return_exceptions=True)
        await closing
        return await accepted, refused[0]  # type: ignore[return-value]

    accepted, refused = asyncio.run(scene())
    assert isinstance(accepted.verdict, Goto)
    assert isinstance(refused, StoreUnavailable)
    assert refused.code == "store_closed"
