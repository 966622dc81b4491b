"""Every batch says for itself how durable it is to be, whatever session, role or server were set to since."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.stores.schemas import Schema
from twophp.core.errors import ConfigError
from twophp.core.intent import Phase
from twophp.ports import Command
from twophp.stores.postgres import PostgresStore, batch
from twophp.stores.testing.scene import confirm, register

pytestmark = pytest.mark.anyio
ALL = "synchronous_commit", "transaction_isolation", "transaction_read_only"
END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'twophp'"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """How each batch is set up."""
    found: list[tuple[str, ...]] = []
    run = batch.Batch.run

    async def watched(self: batch.Batch, commands: Sequence[Command]) -> Any:
        found.append(tuple([await self._connection.fetchval(f"SHOW {name}") for name in ALL]))
        return await run(self, commands)

    monkeypatch.setattr(batch.Batch, "run", watched)
    return found


@asynccontextmanager
async def setting(schema: Schema, name: str, value: str) -> AsyncIterator[None]:
    """The role's default, for every session from here on."""
    await schema.run(f"ALTER ROLE twophp SET {name} = '{value}'")
    try:
        yield
    finally:
        await schema.run(f"ALTER ROLE twophp RESET {name}")


@pytest.mark.req("A-84", "P-12.2-a")
@pytest.mark.parametrize("option", ["", "&pgbouncer=1"])
@pytest.mark.parametrize(
    ("commit", "counts"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
)
async def test_a_session_that_was_set_up_weaker_is_not_believed(
    schema: Schema, seen: list[tuple[str, ...]], option: str, commit: str, counts: str
) -> None:
    """Behind a pooler it may be anybody's, with what they have left there."""
    async with PostgresStore(schema.url + option) as store:
        intent = await register(store, arrived_at=store.now())
        session = store._writer._connection  # type: ignore[union-attr]
        await session.execute(f"SET synchronous_commit = {commit}")
        await session.execute("SET default_transaction_isolation = serializable")
        await session.execute("SET default_transaction_read_only = on")
        assert (await confirm(store, intent)).phase is Phase.PROCESSING
        assert seen[-1] == (counts, "read committed", "off")
        assert await session.fetchval("SHOW synchronous_commit") == commit, "it ends with the transaction"


@pytest.mark.req("A-84", "P-12.2-a")
async def test_a_new_session_is_looked_at_as_the_first_one_was(schema: Schema) -> None:
    """After a failover the name of the primary may be another server's."""
    async with PostgresStore(schema.url) as store:
        intent = await register(store, arrived_at=store.now())
        async with setting(schema, "synchronous_commit", "off"):
            await schema.run(END_ALL)
            with pytest.raises(ConfigError) as weak:
                await confirm(store, intent)
            assert weak.value.code == "weak_durability"
        assert (await confirm(store, intent)).phase is Phase.PROCESSING
