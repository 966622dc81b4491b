"""Clients of several replicas that never give up on a call, and never trust a single replica."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from tests.crash.caller import NOT_YET, Answer, Connection, client_id, request, server_id

OPT_IN: Final = "DTT-2PHP-Enabled: true"
LONGEST_WAIT_S: Final = 0.05
SEED: Final = 4
INDETERMINATE: Final = (500, "FAILED", "Outcome indeterminate.")


class Call(msgspec.Struct, kw_only=True):
    """One intent as its client knows it."""

    name: str
    server: str = ""
    final: Answer | None = None


class Load:
    """Each request goes to any replica. What comes back is an answer, or says honestly when to come again."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._chance = random.Random(SEED)  # noqa: S311 - A run that fails can be run again.
        self._ends = asyncio.Event()
        self._grew = asyncio.Event()
        self.calls: list[Call] = []
        self.refused: list[Answer] = []
        self.paused: list[str] = []  # Intents whose handler stood still beside the calls.
        self.lost = 0
        self.told = 0

    async def caller(self, name: str) -> None:
        """One call after the other, until it is told to stop. What was begun is finished."""
        async with self._connected() as connections:
            while not self._ends.is_set():
                call = Call(name=f"{name}-{len(self.calls)}")
                self.calls.append(call)
                registered = await self._insist(connections, _register(call.name))
                assert registered.phase == "WAITING_CONFIRM"
                call.server = registered.server_id
                call.final = await self._insist(connections, _confirm(call))
                self.told += 1
                self._grew.set()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Sequence[Connection]]:
        """One connection to each replica, closed however it ends."""
        connections = [Connection(port) for port in self._ports]
        try:
            yield connections
        finally:
            for one in connections:
                await one.close()

    async def _insist(self, connections: Sequence[Connection], asked: bytes) -> Answer:
        while True:
            answer = await self._chance.choice(connections).ask(asked)
            if answer is None:
                self.lost += 1
                await self._pause(LONGEST_WAIT_S)
            elif answer.status in NOT_YET:
                self.refused.append(answer)
                await self._pause(float(answer["retry-after"]))
            elif answer.phase == "PROCESSING":  # it ran, and its outcome is not durable yet.
                await self._pause(LONGEST_WAIT_S)
            else:
                return answer

    async def _pause(self, seconds: float) -> None:
        never = asyncio.get_running_loop().create_future()
        await asyncio.wait([never], timeout=min(seconds, LONGEST_WAIT_S))

    async def until(self, count: int) -> None:
        """Until so many more calls were answered for good."""
        wanted = self.told + count
        while self.told < wanted:
            self._grew.clear()
            await self._grew.wait()

    def end(self) -> None:
        self._ends.set()

    async def replay_everything(self) -> None:
        """Both phases of every call, at any replica: what the first answer said, this one says."""
        calls = iter(self.calls)

        async def replaying() -> None:
            async with self._connected() as connections:
                for call in calls:
                    assert call.final is not None
                    assert (await self._insist(connections, _register(call.name))).server_id == call.server
                    again = await self._insist(connections, _confirm(call))
                    said, says = ((one.status, one.phase, one.body) for one in (call.final, again))
                    assert says == said, call.name

        async with asyncio.TaskGroup() as group:
            for _ in self._ports:
                group.create_task(replaying())

    def judge(self, marks: Sequence[str]) -> None:
        """No handler ran twice; each committed call ran; of what failed nobody knows."""
        assert len(marks) == len(set(marks)), "a handler ran twice"
        for call in self.calls:
            assert call.final is not None
            if call.final.phase == "COMMITTED":
                assert call.server in marks
            else:
                said = call.final.status, call.final.phase, call.final["dtt-2php-message"]
                assert said == INDETERMINATE
        assert set(marks) <= {call.server for call in self.calls} | {*self.paused}
        assert {answer.status for answer in self.refused} <= {409, 503}


def _register(name: str) -> bytes:
    return request("POST /quick", OPT_IN, client_id(name), "Content-Type: application/json", body=b"{}")


def _confirm(call: Call) -> bytes:
    return request("POST /quick/confirm", OPT_IN, client_id(call.name), server_id(call.server))
