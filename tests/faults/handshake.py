"""The victim: opens a store, makes one handshake, and says on its standard output what it was told, as it is told.

It is a process that forks: importing takes longer than dying, so it imports once and then makes one victim for each
line on its standard input: ``<path> <where to pause> <what to do when nobody knows>``. A victim pauses where it was
told to until it reads a line itself, so that somebody can attach to it. Its last word comes from the parent: ``exit``
and a status.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from twophp.core.entry import Writer
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.intent import Intent, Mode, by_logical_key
from twophp.core.intent_commands import Confirm, Register, Settle
from twophp.core.phase import IntentDecision
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.commit_place import CommitPlace
from twophp.stores.sqlite.new_file import left_by
from twophp.stores.sqlite.sql import migrations
from twophp.stores.vault import AesGcmVault, KeyRing

NOW: Final = 1_700_000_000_000
STEPS: Final = ("register", "confirm", "settle")
PAYLOAD, RESPONSE = b"payload " * 1_000, b"response " * 1_000
VAULT: Final = AesGcmVault(KeyRing({"k": bytes(32)}, "k"))
WRITER: Final = Writer(source="orders", service_ledger_id="00000000-0000-4000-8000-000000000001")
POLICY: Final = Policy.standard()
TRIES: Final = 2


def say(*words: object) -> None:
    """At once and unbuffered: what was said before a kill was said."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def wait() -> None:
    """Until somebody says go."""
    os.read(0, 3)


class Victim:
    """One handshake, made in spite of one fault."""

    def __init__(self, path: str, pause: str, when_unknown: str) -> None:
        self._path = path
        self._pause = pause
        self._when_unknown = when_unknown

    async def live(self) -> None:
        self._pause_at("start")
        self._store = self._opened()
        self._intents = Intents(self._store, VAULT, WRITER, resolves=False)
        self._pause_at("opened")
        await self._insist("register", self._register)
        confirmed = await self._insist("confirm", self._confirm)
        assert confirmed.intent is not None
        await self._insist("settle", lambda: self._settle(confirmed.intent))
        self._pause_at("closing")
        await self._store.close()
        say("done")

    def _pause_at(self, place: str) -> None:
        if place == self._pause:
            say("at", place)
            wait()

    def _struck(self, where: str, error: StoreError) -> None:
        """Report the fault, and let whoever attached let go: each new thread would meet it anew."""
        say("error", where, error.code)
        if self._pause != "never" and self._when_unknown != "die":
            wait()

    def _opened(self) -> SQLiteStore:
        for _try in range(TRIES):
            try:
                return SQLiteStore(self._path, clock=lambda: NOW)
            except StoreError as error:
                self._struck("open", error)
        raise AssertionError("it cannot be opened")

    async def _insist(self, step: str, call: Callable[[], Awaitable[IntentDecision]]) -> IntentDecision:
        """Call until there is an answer, by the book: repeat what was refused, find out what is unknown."""
        for _try in range(TRIES):
            try:
                decision = await call()
            except StoreUnavailable as error:
                self._struck(step, error)
            except (CommitUnknown, StorePoisoned) as error:
                self._struck(step, error)
                await self._find_out(step, call)
            else:
                say("ack", step)
                return decision
        raise AssertionError(f"{step}: no answer after {TRIES} tries")

    async def _find_out(self, step: str, call: Callable[[], Awaitable[IntentDecision]]) -> None:
        if self._when_unknown == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await call()
        except StorePoisoned:
            say("poisoned", step)
        await self._store.reopen()
        key = by_logical_key("alice", "client-1")
        (intent,) = await self._store.read((key,))
        say("found", step, 0 if intent is None else intent.version)
        if self._when_unknown == "look":
            os.kill(os.getpid(), signal.SIGKILL)

    async def _register(self) -> IntentDecision:
        command = Register(
            client_correlation_id="client-1",
            server_correlation_id="server-1",
            principal="alice",
            replay_key="what was meant",
            mode=Mode.STANDARD,
            service_endpoint="orders/orders",
            path="/orders",
            arrived_at=NOW,
        )
        return await self._intents.register(command, PAYLOAD, POLICY)

    async def _confirm(self) -> IntentDecision:
        command = Confirm(
            client_correlation_id="client-1",
            server_correlation_id="server-1",
            principal="alice",
            path="/orders",
            arrived_at=NOW,
            owner="victim",
        )
        return await self._intents.confirm(command, POLICY)

    async def _settle(self, intent: Intent | None) -> IntentDecision:
        assert intent is not None
        return await self._intents.settle(intent, Settle(fence=1, succeeded=True, status=200), RESPONSE, POLICY)


def make_victim(path: str, pause: str, when_unknown: str) -> None:
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)  # PR_SET_PTRACER: anybody may attach.
        say("pid", os.getpid())
        asyncio.run(Victim(path, pause, when_unknown).live())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    say("exit", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    # strace counts calls thread by thread, so every commit of a victim has to happen in the same one.
    CommitPlace.is_on_loop = lambda _place, _now_s: False  # type: ignore[method-assign,assignment]
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    left_by(migrations())  # So that a victim opens no file but the database's.
    say("ready")
    line = b""
    while byte := os.read(0, 1):  # Unbuffered: what follows the line is for the victim.
        line += byte
        if byte == b"\n":
            make_victim(*line.decode().split())
            line = b""
