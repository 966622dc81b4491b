"""``twophp ledger stalled | initiated | tail`` over real ledgers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import FOUND, OK, command, document, run
from tests.cli.world import Clock, call, fan_out, ledgers, participants
from twophp.cli import ledger_rows, sources
from twophp.core.entry import FIELDS
from twophp.core.intent import Phase
from twophp.stores.sqlite import history

LATER = 10_000_000
"""Milliseconds: longer than any TTL, grace or lease here."""


async def _some_stalled(folder: Path, clock: Clock) -> None:
    async with participants(folder, "shop", "orders", clock=clock) as who:
        await call(who["shop"], who["orders"], 1)
        await who["orders"].registers(2)
        clock.now += 31_000
        await who["orders"].sweeps()  # In its grace: expired, not abandoned.
        await who["orders"].registers(3)
        await who["shop"].is_told(3, Phase.WAITING_CONFIRM, callee="orders")
        await who["orders"].registers(4)
        await who["orders"].confirms(4)


@pytest.mark.req("P-10.4-d", "A-54", "P-3.2-a")
def test_what_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    asyncio.run(_some_stalled(tmp_path, clock))
    monkeypatch.setattr(ledger_rows, "system_clock", clock)
    result = run("ledger", "stalled", *ledgers(tmp_path))
    assert result.exit_code == FOUND
    rows = [line.split() for line in result.stdout.splitlines() if "corr-id" in line]
    assert [(row[2], row[3]) for row in rows] == [
        ("TTL_EXPIRED", "server"),
        ("WAITING_CONFIRM", "server"),
        ("WAITING_CONFIRM", "client"),
    ]
    assert result.stdout.count("may still be confirmed for 30.0 s") == 1
    assert "the client has heard of no outcome; unless it has confirmed already, it may for 30.0 s" in result.stdout
    assert result.stdout.endswith("3 rows stalled, 0 running past the lease\n")
    clock.now += LATER
    found = document(run("ledger", "stalled", *ledgers(tmp_path), "--json"))
    assert [row["phase"] for row in found["stalled"]] == ["TTL_EXPIRED", "WAITING_CONFIRM", "WAITING_CONFIRM"]
    assert [row["client_correlation_id"] for row in found["processing_past_lease"]] == ["client-corr-id4"]
    assert list(found["stalled"][0])[:16] == list(FIELDS)
    assert found["stalled"][0]["age_ms"] > LATER
    printed = run("ledger", "stalled", *ledgers(tmp_path)).stdout
    assert "Running, and not heard of since the lease ended" in printed
    assert "its time was up 2 h ago; the client finds out what became of it" in printed
    assert "3 rows stalled, 1 running past the lease" in printed


def test_nothing_stalled_is_fine(tmp_path: Path) -> None:
    asyncio.run(fan_out(tmp_path))
    result = run("ledger", "stalled", *ledgers(tmp_path))
    assert (result.exit_code, result.stdout) == (OK, "nothing is stalled\n")
    assert document(run("ledger", "stalled", *ledgers(tmp_path), "--json")) == {
        "stalled": [],
        "processing_past_lease": [],
        "cut": False,
    }


@pytest.mark.req("P-10.4-b")
def test_what_a_service_initiated(tmp_path: Path) -> None:
    asyncio.run(fan_out(tmp_path))
    result = run("ledger", "initiated", "serviceA", *ledgers(tmp_path))
    assert result.exit_code == OK
    rows = [line.split() for line in result.stdout.splitlines()[1:-1]]
    assert [(row[2], row[4], row[6]) for row in rows] == [
        ("serviceB1", "client-corr-id2", "client-corr-id1"),
        ("serviceB2", "client-corr-id3", "client-corr-id1"),
        ("serviceB3", "client-corr-id4", "client-corr-id1"),
    ]
    assert result.stdout.endswith("serviceA made 3 calls\n")
    found = document(run("ledger", "initiated", "client", *ledgers(tmp_path), "--json"))
    assert [(row["target"], row["actor"]) for row in found["rows"]] == [("serviceA", "client")]
    assert run("ledger", "initiated", "serviceE1", *ledgers(tmp_path)).stdout == "serviceE1 made 0 calls\n"


@pytest.mark.req("A-53")
def test_more_rows_than_are_shown_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_some_stalled(tmp_path, Clock()))
    for module in (history, sources):
        monkeypatch.setattr(module, "MOST_ROWS", 1)
    for arguments in (("stalled",), ("initiated", "shop")):
        assert "note: there may be more" in run("ledger", *arguments, *ledgers(tmp_path)).stderr
        assert document(run("ledger", *arguments, *ledgers(tmp_path), "--json"))["cut"] is True


def test_the_newest_rows_last(tmp_path: Path) -> None:
    asyncio.run(fan_out(tmp_path))
    result = run("ledger", "tail", *ledgers(tmp_path), "-n", 2)
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["server", "client"]
    assert "serviceB3 -> serviceE1/orders  client-corr-id7 / server-corr-id7" in result.stdout.splitlines()[1]
    assert result.stderr == "note: only the newest 2 rows; see --limit\n"
    everything = document(run("ledger", "tail", *ledgers(tmp_path), "--json"))
    assert (len(everything["rows"]), everything["cut"]) == (14, False)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_following_a_running_service_until_interrupted(tmp_path: Path) -> None:
    async with participants(tmp_path, "shop", "orders") as who:
        await who["orders"].registers(1)
        arguments = command("ledger", "tail", *ledgers(tmp_path), "--follow", "--interval", "0.05", "--json")
        process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None

        async def next_row() -> tuple[str, str, str]:
            assert process.stdout is not None
            row = json.loads(await process.stdout.readline())
            return row["actor"], row["client_correlation_id"][-1], row["phase"]

        async with asyncio.timeout(30):
            assert await next_row() == ("server", "1", "WAITING_CONFIRM")
            intent = await who["orders"].confirms(1)
            assert await next_row() == ("server", "1", "PROCESSING")
            await who["orders"].settles(intent, succeeded=False)
            assert await next_row() == ("server", "1", "FAILED")
            await who["shop"].is_told(2, Phase.WAITING_CONFIRM, callee="orders")
            assert await next_row() == ("client", "2", "WAITING_CONFIRM")
            process.send_signal(signal.SIGINT)
            rest, said = await process.communicate()
    assert (process.returncode, rest, said) == (OK, b"", b"")


def test_a_service_that_starts_or_ends_meanwhile_does_not_end_the_watch(tmp_path: Path) -> None:
    async def take(number: int) -> None:
        async with participants(tmp_path, "shop", "orders") as who:
            await call(who["shop"], who["orders"], number)

    asyncio.run(take(1))
    watch = sources.Watch(list(ledgers(tmp_path)))
    assert watch.look() == []
    asyncio.run(take(2))
    assert sorted((row.actor, row.client_correlation_id[-1]) for row, _ledger in watch.look()) == [
        ("client", "2"),
        ("server", "2"),
    ]
    assert watch.look() == []
