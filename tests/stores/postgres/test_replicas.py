"""Replicas on one database: Phase 2 comes to another than Phase 1, they die, and still each intent runs once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tests.crash.caller import Answer, Connection, client_id, confirm, register, request, server_id
from tests.patience import PATIENCE_S
from tests.stores.postgres.replica import marks_of
from tests.stores.postgres.replicas import Replicas
from tests.stores.schemas import Schema

pytestmark = pytest.mark.anyio
CONFIRMS = 1_000


async def ask(port: int, message: bytes) -> Answer:
    connection = Connection(port)
    async with asyncio.timeout(PATIENCE_S):
        answer = await connection.insist(message)
    await connection.close()
    return answer


@pytest.mark.req("A-52", "A-33")
async def test_phase_two_may_come_to_another_replica(replicas: Callable[[int], Replicas]) -> None:
    """And its replay to the first one again."""
    here = replicas(2)
    registered = await ask(here.ports[0], register("client-1"))
    told = [await ask(here.ports[number % 2], confirm("client-1", registered.server_id)) for number in (1, 0, 1)]
    assert {(answer.status, answer.phase, answer.body) for answer in told} == {(200, "COMMITTED", told[0].body)}
    assert marks_of(here.folder) == [registered.server_id]


@pytest.mark.req("A-33", "P-8.1-a", "P-8.1-b")
async def test_of_many_confirms_at_four_replicas_one_runs(replicas: Callable[[int], Replicas]) -> None:
    """Everybody has asked before the handler may go on; everybody gets its answer."""
    here = replicas(4)
    os.mkfifo(gate := here.folder / "gate")
    registered = await ask(here.ports[0], register("client-1"))
    connections = [Connection(here.ports[number % 4]) for number in range(CONFIRMS)]
    await asyncio.gather(*(one.send(confirm("client-1", registered.server_id)) for one in connections))
    await asyncio.to_thread(gate.write_bytes, b"go")  # Returns when a handler has opened the other end.
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(one.read() for one in connections))
    await asyncio.gather(*(one.close() for one in connections))
    assert {(answer.status, answer.phase, answer.body) for answer in answers} == {(200, "COMMITTED", answers[0].body)}
    assert marks_of(here.folder) == [registered.server_id]


@pytest.mark.req("A-34")
@pytest.mark.parametrize(
    ("path", "status", "phase", "runs"), [("orders", 500, "FAILED", 1), ("reruns", 200, "COMMITTED", 2)]
)
async def test_what_a_killed_replica_executed_another_one_recovers(
    replicas: Callable[[int], Replicas], path: str, status: int, phase: str, runs: int
) -> None:
    """By the endpoint's policy: it failed and nobody knows what happened, or it runs again."""
    here = replicas(2)
    os.mkfifo(gate := here.folder / "gate")
    opt_in = "DTT-2PHP-Enabled: true"
    begin = request(f"POST /{path}", opt_in, client_id("client-1"), "Content-Type: application/json", body=b"{}")
    registered = await ask(here.ports[0], begin)
    go_on = request(f"POST /{path}/confirm", opt_in, client_id("client-1"), server_id(registered.server_id))
    first = Connection(here.ports[0])
    await first.send(go_on)
    handler = await asyncio.to_thread(os.open, gate, os.O_WRONLY)  # Opens when the handler has begun to wait.
    waits = asyncio.create_task(ask(here.ports[1], go_on))
    gate.unlink()
    here.kill(0)
    os.close(handler)
    answer = await waits
    await first.close()
    assert (answer.status, answer.phase) == (status, phase)
    assert marks_of(here.folder) == [registered.server_id] * runs


@pytest.mark.req("A-34")
async def test_a_replica_that_stood_still_longer_than_its_lease_is_fenced(
    replicas: Callable[[int], Replicas],
) -> None:
    """Another one has ended its intent meanwhile; what the handler answers then changes nothing."""
    here = replicas(2)
    os.mkfifo(gate := here.folder / "gate")
    registered = await ask(here.ports[0], register("client-1"))
    first = Connection(here.ports[0])
    await first.send(confirm("client-1", registered.server_id))
    handler = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
    here.stop(0)
    told = await ask(here.ports[1], confirm("client-1", registered.server_id))
    assert (told.status, told.phase) == (500, "FAILED")
    os.close(handler)
    here.go_on(0)
    async with asyncio.timeout(PATIENCE_S):
        late = await first.read()
    await first.close()
    assert (late.status, late.phase) == (500, "FAILED")
    again = await ask(here.ports[0], confirm("client-1", registered.server_id))
    assert (again.status, again.phase, again.body) == (told.status, told.phase, told.body)
    assert marks_of(here.folder) == [registered.server_id]


@pytest.mark.req("A-52", "P-9.1-a")
async def test_business_rows_are_written_in_the_settling_commit(
    replicas: Callable[[int], Replicas], schema: Schema
) -> None:
    """A row that breaks a constraint fails its own intent, and nothing of it is there."""
    here = replicas(2)
    phases = []
    for number, row in enumerate(("one", "two", "one")):
        body, name = b'{"name": "%b"}' % row.encode(), f"client-{number}"
        fields = "DTT-2PHP-Enabled: true", client_id(name), "Content-Type: application/json"
        registered = await ask(here.ports[0], request("POST /rows", *fields, body=body))
        if not number:
            await schema.run("CREATE TABLE twophp.business (name text PRIMARY KEY)")
        confirms = request("POST /rows/confirm", *fields[:2], server_id(registered.server_id))
        phases.append((await ask(here.ports[1], confirms)).phase)
    assert phases == ["COMMITTED", "COMMITTED", "FAILED"]
    assert {row["name"] for row in await schema.run("SELECT name FROM twophp.business")} == {"one", "two"}
