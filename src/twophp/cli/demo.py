"""``twophp demo``: the kernel in one minute, on a database of its own and a clock moved by hand."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from twophp.cli.output import FOUND, examples, out
from twophp.core.identity import intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.phase import Confirm, Decision, Register, Settle
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.engine.ledger import open_ledger
from twophp.ports import Tail
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import Report, verify
from twophp.stores.vault import AesGcmVault, KeyRing

START: Final = 1_767_225_600_000  # 2026-01-01, so that every run shows the same.
POLICY: Final = Policy.standard()
PRINCIPAL: Final = principal_digest("demo", "", "alice")
PATH: Final = "/orders"
WORKER: Final = "worker-1"


class HandClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        """The time it was last set to."""
        return self.now

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self.now += by_ms


@click.command(epilog=examples("demo --once"))
@click.option("--once", is_flag=True, help="End when the story is told. (It always does, for now.)")
@click.pass_context
def demo(ctx: click.Context, *, once: bool) -> None:  # noqa: ARG001 - part of the contract already.
    """See it work: one order that runs once, one that nobody confirmed, and the ledger that proves both."""
    with tempfile.TemporaryDirectory(prefix="twophp-demo-") as folder:
        told = asyncio.run(_Story(out(), Path(folder) / "orders.db").tell())
    ctx.exit(0 if told else FOUND)


class _Story:
    """Six steps, each said before it is done; ``tell`` is true only if everything ended as it was said."""

    def __init__(self, console: Console, database: Path) -> None:
        self._console = console
        self._path = str(database)
        self._clock = HandClock(START)
        self._step = 0

    async def tell(self) -> bool:
        self._print("A service keeps its ledger in one SQLite file. Nothing runs before both sides have registered it.")
        async with SQLiteStore(self._path, clock=self._clock) as store:
            self._intents = await self._open(store)
            order = await self._register("order-1")
            order = await self._confirm(order)
            await self._settle(order)
            replayed = await self._replay(order)
            expired = await self._let_expire()
            rows = await self._show_ledger(store)
        return self._verify().holds and replayed and expired and rows

    async def _open(self, store: SQLiteStore) -> Intents:
        vault = AesGcmVault(
            KeyRing.generate()
        )  # Forgotten with the folder; a service has its ring beside the database.
        return Intents(store, vault, await open_ledger(store, "orders", mint_uuid))

    async def _register(self, client_id: str) -> Intent:
        self._say("Register", "a client sends the order; it is stored, sealed, and does nothing yet")
        decision = await self._intents.register(_registration(client_id, self._clock()), b'{"item": "tea"}', POLICY)
        return self._show(decision)

    async def _confirm(self, order: Intent) -> Intent:
        self._clock.advance(1_000)
        self._say("Confirm", "a second later the client says go; from here on it runs, and only once")
        return self._show(await self._intents.confirm(_confirmation(order, self._clock()), POLICY))

    async def _settle(self, order: Intent) -> None:
        self._say("Settle", "the handler is done; outcome, answer, ledger row and history become durable in one step")
        command = Settle(fence=order.fence, succeeded=True, status=201, resource_id="tea-1")
        self._show(await self._intents.settle(order, command, b'{"order": "tea-1"}', POLICY))

    async def _replay(self, order: Intent) -> bool:
        self._clock.advance(60_000)
        self._say("Remember", "the client missed the answer and confirms again, a minute late; it gets the same answer")
        decision = await self._intents.confirm(_confirmation(order, self._clock()), POLICY)
        answer = await self._intents.response(self._show(decision))
        self._print(f"   the stored answer: {answer!r}; nothing ran a second time")
        return not decision.changed and answer == b'{"order": "tea-1"}'

    async def _let_expire(self) -> bool:
        order = await self._register("order-2")
        self._clock.advance(POLICY.ttl_ms + POLICY.delta_ms)
        self._say(
            "Expire", "this one is never confirmed; when its time is up the sweeper finds it and destroys its payload"
        )
        done = await self._intents.sweep(lambda _intent: POLICY, WORKER, before=self._clock() + 1)
        abandoned = [self._show(decision) for decision in done]
        phases = [intent.phase for intent in abandoned]
        return phases == [Phase.ABANDONED] and await self._intents.payload(order) is None

    async def _show_ledger(self, store: SQLiteStore) -> bool:
        self._print("\nThe ledger: one row for each call, seen from this side.")
        entries = await store.entries(Tail())
        table = Table("client id", "server id", "phase", "outcome", "payload", box=None)
        for entry in reversed(entries):
            payload = "sealed" if entry.payload_ref else "destroyed"
            short_id = entry.server_correlation_id[:8]
            table.add_row(entry.client_correlation_id, short_id, entry.phase, entry.outcome, payload)
        self._console.print(table)
        return [entry.phase for entry in entries] == [Phase.ABANDONED, Phase.COMMITTED]

    def _verify(self) -> Report:
        report = verify(self._path)
        verdict = "[green]holds[/green]" if report.holds else "[red]does not hold[/red]"
        self._print(f"\nThe journal {verdict}: {report.lines} lines, each chained to the one before by its hash.")
        for finding in report.findings:
            self._print(f"   {finding.message}")
        return report

    def _say(self, title: str, text: str) -> None:
        self._step += 1
        self._print(f"\n[bold]{self._step}. {title}[/bold]: {text}.")

    def _show(self, decision: Decision) -> Intent:
        intent = decision.intent
        assert intent is not None, decision
        did = " -> ".join(step.after for step in decision.steps) or f"{intent.phase}, unchanged"
        self._print(f"   {intent.client_correlation_id}: [cyan]{did}[/cyan]")
        return intent

    def _print(self, text: str) -> None:
        self._console.print(text)


def _registration(client_id: str, now: int) -> Register:
    payload = payload_digest("application/json", b'{"item": "tea"}')
    return Register(
        client_correlation_id=client_id,
        server_correlation_id=mint_uuid(),
        principal=PRINCIPAL,
        replay_key=intent_replay_key(
            principal=PRINCIPAL, client_correlation_id=client_id, method="POST", target=PATH, payload=payload
        ),
        mode=Mode.STANDARD,
        service_endpoint=f"orders{PATH}",
        path=PATH,
        arrived_at=now,
    )


def _confirmation(order: Intent, now: int) -> Confirm:
    return Confirm(
        client_correlation_id=order.client_correlation_id,
        server_correlation_id=order.server_correlation_id,
        principal=PRINCIPAL,
        path=PATH,
        arrived_at=now,
        owner=WORKER,
    )
