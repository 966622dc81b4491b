"""Every sealed part gets the active key; what does not open is left and named."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from click.testing import CliRunner

from tests.stores.schemas import Schema
from twophp.cli import main
from twophp.core.errors import SchemaMismatch
from twophp.core.identity import intent_seal_context, seal_context
from twophp.core.intent import Intent
from twophp.core.obligation import by_id
from twophp.stores.postgres import PostgresStore
from twophp.stores.postgres.rotate import rotate
from twophp.stores.testing.scene import confirm, fresh_obligation, obligation_change, pair_of, register, settle, write
from twophp.stores.vault import AesGcmVault, KeyRing

pytestmark = pytest.mark.anyio
OLD = KeyRing({"old": b"o" * 32}, active="old")
BOTH = KeyRing({"old": b"o" * 32, "new": b"n" * 32}, active="new")
NEW = KeyRing({"new": b"n" * 32}, active="new")
SERVICE = "orders"


async def sealed_intent(store: PostgresStore, name: str) -> Intent:
    vault = AesGcmVault(OLD)
    bare = await register(store, name, arrived_at=store.now())
    context = intent_seal_context(SERVICE, bare, "payload")
    running = await confirm(store, bare)
    answer = vault.seal(b"answer", context=intent_seal_context(SERVICE, bare, "response"))
    return await settle(store, running, seals={"payload": vault.seal(b"payload", context=context), "response": answer})


@pytest.mark.req("A-62")
async def test_everything_is_sealed_with_the_active_key(schema: Schema) -> None:
    async with PostgresStore(schema.url) as store:
        intents = [await sealed_intent(store, str(number)) for number in range(70)]
        put = obligation_change(fresh_obligation("o")).puts[0]
        kept = AesGcmVault(OLD).seal(b"effect", context=seal_context(SERVICE, "o", "payload"))
        await write(store, type(put)(record=put.record, journal=put.journal, seals={"payload": kept}))
        await schema.run("UPDATE twophp.intent SET response = '\\x00'::bytea WHERE server_correlation_id = 'server-7'")
        told: list[tuple[int, int]] = []
        done = await rotate(schema.url, BOTH, progress=lambda so_far, total: told.append((so_far, total)))
        assert (done.resealed, done.left, done.active, told[0]) == (2 * 70 - 1 + 1, 0, "new", (0, 2 * 70 + 1))
        assert [(one.subject, one.part) for one in done.unopened] == [("server-7", "response")]
        assert not done.complete
        vault = AesGcmVault(NEW)
        for intent in intents:
            sealed = await store.unseal(pair_of(intent), "payload")
            assert sealed is not None
            assert vault.open(sealed, context=intent_seal_context(SERVICE, intent, "payload")) == b"payload"
        effect = await store.unseal(by_id("o"), "payload")
        assert effect is not None
        assert vault.open(effect, context=seal_context(SERVICE, "o", "payload")) == b"effect"
        assert (await rotate(schema.url, BOTH)).resealed == 0


@pytest.mark.req("A-62")
async def test_no_ledger_is_made_for_it(schema: Schema) -> None:
    with pytest.raises(SchemaMismatch):
        await rotate(schema.url, BOTH)


@pytest.mark.req("A-62", "A-47")
async def test_the_command_line_verifies_and_rotates(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ring of the environment; each command says by its exit code what it found."""

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(words))
        return done.exit_code, done.output

    monkeypatch.setenv("TWOPHP_KEYS", ",".join(f"{name}:{b64encode(key).decode()}" for name, key in BOTH.keys.items()))
    async with PostgresStore(schema.url) as store:
        await sealed_intent(store, "1")
        rotates = await asyncio.to_thread(run, "keys", "rotate", schema.url, "--json")
        assert rotates[0] == 0, rotates
        assert await schema.run("SELECT 1 FROM twophp.intent WHERE payload IS NULL") == []
    code, said = await asyncio.to_thread(run, "ledger", "verify", schema.url)
    assert (code, "the journal holds: 3 lines, 1 record" in said) == (0, True), said
    code, said = await asyncio.to_thread(run, "ledger", "tail", schema.url)
    assert (code, "reads no PostgreSQL yet" in said) == (2, True), said
