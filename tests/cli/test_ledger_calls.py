"""``twophp ledger tree | show | pairs`` over real ledgers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import FOUND, OK, UNUSABLE, document, run
from tests.cli.world import call, fan_out, ledgers, participants
from tests.core.calls import WORKED
from tests.stores.orders import raw
from twophp.cli import sources
from twophp.core.entry import FIELDS
from twophp.core.intent import Mode, Phase
from twophp.core.job import Enqueue
from twophp.core.job import decide as decide_job
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Records
from twophp.stores.sqlite import history
from twophp.stores.sqlite.reader import LedgerReader, ledger_reader
from twophp.stores.testing.scene import reserve

E01_TO_E14 = [f"P-10.3-E{number:02}" for number in range(1, 15)]
WORKED_ROWS = [line.split() for line in WORKED.splitlines() if line]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worked example. No test may change it."""
    folder = tmp_path_factory.mktemp("chain")
    asyncio.run(fan_out(folder))
    return folder


@pytest.fixture
def folder(chain: Path, tmp_path: Path) -> Path:
    """The worked example, to be changed."""
    return shutil.copytree(chain, tmp_path / "copy")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# tree


@pytest.mark.req("P-10.3-a", "P-10.3-b", "P-10.3-c", "P-10.4-a", "P-10.1-a", "P-10.1-b", "A-50", "A-53", *E01_TO_E14)
@pytest.mark.parametrize("member", ["client-corr-id1", "client-corr-id5", "server-corr-id7", "client-corr-id3"])
def test_the_worked_table_from_eight_ledgers_whatever_id_is_known(chain: Path, member: str) -> None:
    before = files(chain)
    result = run("ledger", "tree", member, *ledgers(chain), "--rows")
    assert (result.exit_code, result.stderr) == (OK, "")
    assert [line.split()[:-1] for line in result.stdout.splitlines()[1:]] == WORKED_ROWS
    assert files(chain) == before


def test_a_tree_is_drawn_with_both_sides_of_each_call(chain: Path) -> None:
    result = run("ledger", "tree", "client-corr-id6", *ledgers(chain))
    assert result.exit_code == OK
    lines = result.stdout.splitlines()
    assert lines[0] == "client -> serviceA/orders  done  PAIRED"
    assert lines[1].startswith("client  COMMITTED  client-corr-id1  by client, Phase 2 answered after ")
    assert lines[2].startswith("server  COMMITTED  server-corr-id1  by serviceA, confirmed after ")
    assert "ran for" in lines[2]
    calls = [line.strip("├└─│ ") for line in lines if " -> " in line]
    assert [text.split("/")[0] for text in calls] == [
        "client -> serviceA",
        "serviceA -> serviceB1",
        "serviceB1 -> serviceC1",
        "serviceA -> serviceB2",
        "serviceB2 -> serviceD1",
        "serviceA -> serviceB3",
        "serviceB3 -> serviceE1",
    ]
    assert lines[-1] == "7 calls, 14 rows: 7 PAIRED"


@pytest.mark.req("P-9.8-0")
def test_a_tree_as_json_has_the_drafts_sixteen_names(chain: Path) -> None:
    found = document(run("ledger", "tree", "server-corr-id4", *ledgers(chain), "--json"))
    (root,) = found["calls"]
    assert (root["client_correlation_id"], root["verdict"], found["cut"], found["above"]) == (
        "client-corr-id1",
        "PAIRED",
        False,
        None,
    )
    assert [child["client_correlation_id"][-1] for child in root["children"]] == ["2", "3", "4"]
    assert list(root["client"])[:16] == list(FIELDS)
    assert root["client"]["phase_1_timestamp"].startswith("2026-01-01T00:00:00.")
    assert root["server"]["ledger"].endswith("serviceA.db")
    assert root["server"]["ran_for_ms"] > 0
    rows = document(run("ledger", "tree", "client-corr-id1", *ledgers(chain), "--rows", "--json"))["rows"]
    assert [[row[name] or "null" for name in WORKED_NAMES] for row in rows] == [row[1:] for row in WORKED_ROWS]


WORKED_NAMES = (
    *("client_correlation_id", "server_correlation_id", "actor", "source", "target", "parent_reference_id"),
)


def test_what_is_in_no_ledger_is_said_and_is_no_alarm(chain: Path) -> None:
    result = run("ledger", "tree", "client-corr-id2", chain / "serviceA.db")
    assert result.exit_code == OK
    assert "? -> serviceA/orders  done  SERVER_ONLY (confirmed: its client's row is in a ledger" in result.stdout
    assert "CLIENT_ONLY (the ledger of the service it called was not read)" in result.stdout
    assert "server  no row  server-corr-id2" in result.stdout
    assert "there may be calls above it" in result.stderr
    missing_call = run("ledger", "tree", "client-corr-id5", *ledgers(chain, "client", "serviceA", "serviceB1"))
    assert missing_call.stdout.splitlines()[-1] == "1 call, 1 row: 1 SERVER_ONLY"


def test_calls_made_for_a_call_that_no_ledger_has_stand_together(folder: Path) -> None:
    raw(folder / "serviceA.db", "DELETE FROM intent")
    result = run("ledger", "tree", "client-corr-id3", folder / "serviceA.db")
    assert result.stdout.splitlines()[-1] == "3 calls, 3 rows: 3 CLIENT_ONLY"
    assert "made for the call client-corr-id1, of which no row" in result.stderr


@pytest.mark.req("P-10.4-c", "A-48")
def test_a_row_that_must_be_there_is_an_alarm(folder: Path) -> None:
    raw(folder / "serviceC1.db", "DELETE FROM intent")
    result = run("ledger", "tree", "client-corr-id1", *ledgers(folder))
    assert result.exit_code == FOUND
    assert "serviceB1 -> serviceC1/orders  done  CLIENT_ONLY (the service it called has no row of it" in result.stdout
    assert result.stdout.splitlines()[-1] == "7 calls, 13 rows: 6 PAIRED, 1 CLIENT_ONLY"


@pytest.mark.parametrize("command", ["tree", "show"])
def test_an_id_that_nobody_knows_is_one_line(chain: Path, command: str) -> None:
    result = run("ledger", command, "nobody's\x1b[2J", *ledgers(chain))
    assert (result.exit_code, result.stdout) == (UNUSABLE, "")
    assert result.stderr.startswith("error[no_such_call]: no row with the id nobody's\ufffd[2J ")


def test_a_file_named_twice_is_read_once(chain: Path) -> None:
    twice = [*ledgers(chain), *ledgers(chain), f"sqlite:///{chain}/client.db"]
    assert run("ledger", "tree", "client-corr-id1", *twice).stdout.endswith("7 calls, 14 rows: 7 PAIRED\n")


@pytest.mark.req("A-53")
def test_more_rows_than_are_shown_are_said(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (history, sources):
        monkeypatch.setattr(module, "MOST_ROWS", 4)
    result = run("ledger", "tree", "client-corr-id1", *ledgers(chain))
    assert "note: there may be more" in result.stderr
    assert document(run("ledger", "tree", "client-corr-id1", *ledgers(chain), "--json"))["cut"] is True


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("PRAGMA user_version = 99", "schema_too_new"),
        ("PRAGMA application_id = 7", "foreign_database"),
        (None, "no_such_database"),
    ],
)
@pytest.mark.parametrize(
    "command", [("tree", "x"), ("show", "x"), ("pairs",), ("stalled",), ("initiated", "x"), ("tail",), ("tail", "-f")]
)
def test_what_cannot_be_read_is_one_line_and_stays_as_it_is(
    folder: Path, command: tuple[str, ...], damage: str | None, code: str
) -> None:
    path = folder / "serviceA.db" if damage else folder / "none.db"
    if damage:
        raw(path, damage)
    before = files(folder)
    result = run("ledger", *command, folder / "client.db", path)
    assert (result.exit_code, result.stdout) == (UNUSABLE, "")
    assert result.stderr.startswith(f"error[{code}]: ")
    assert str(path) in result.stderr
    assert files(folder) == before


def test_long_ids_are_never_cut(tmp_path: Path) -> None:
    long = "0123456789abcdef" * 8

    async def fill() -> None:
        async with participants(tmp_path, "shop", "orders") as who:
            await call(who["shop"], who["orders"], long)

    asyncio.run(fill())
    for command in (("tree", f"client-corr-id{long}"), ("show", f"server-corr-id{long}"), ("pairs",), ("tail",)):
        printed = run("ledger", *command, *ledgers(tmp_path)).stdout
        assert f"client-corr-id{long}" in printed, command
        assert f"server-corr-id{long}" in printed, command


def test_nothing_in_a_ledger_moves_a_cursor(tmp_path: Path) -> None:
    async def fill() -> None:
        async with participants(tmp_path, "shop", "orders") as who:
            await call(who["shop"], who["orders"], "\x1b[2J[red]1")
            await who["orders"].registers("\x1b[2J[red]2")

    asyncio.run(fill())
    for command in (
        *(("tree", "client-corr-id\x1b[2J[red]1"), ("show", "client-corr-id\x1b[2J[red]1"), ("pairs",)),
        *(("tail",), ("stalled",), ("initiated", "shop")),
    ):
        printed = run("ledger", *command, *ledgers(tmp_path)).stdout
        assert "\x1b" not in printed, command
        assert "[2J[red]" in printed, command


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_moves_on_while_ledgers_are_opened_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, opened = asyncio.get_running_loop(), list[str]()

    async def move_on() -> None:
        intent = await who["orders"].confirms(1)
        await who["orders"].settles(intent)
        await who["shop"].is_told(1, Phase.COMMITTED)

    @contextmanager
    def opening(path: str) -> Iterator[LedgerReader]:
        with ledger_reader(path) as reader:
            reader.last_line()  # From here on, this moment is what it shows.
            opened.append(path)
            if len(opened) == 1:
                asyncio.run_coroutine_threadsafe(move_on(), loop).result()
            yield reader

    monkeypatch.setattr(sources, "ledger_reader", opening)
    async with participants(tmp_path, "shop", "orders") as who:
        await who["orders"].registers(1)
        await who["shop"].is_told(1, Phase.WAITING_CONFIRM, callee="orders")
        server_first = (tmp_path / "orders.db", tmp_path / "shop.db")
        result = await asyncio.to_thread(run, "ledger", "pairs", *server_first)
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (OK, "1 call: 1 PAIRED")
    assert len(opened) == 4


# pairs


@pytest.mark.req("P-10.4-c", "P-10.2-d")
def test_seven_pairs(chain: Path) -> None:
    result = run("ledger", "pairs", *ledgers(chain))
    assert result.exit_code == OK
    assert result.stdout.splitlines()[-1] == "7 calls: 7 PAIRED"
    found = document(run("ledger", "pairs", *ledgers(chain), "--json"))
    assert found["verdicts"] == {"PAIRED": 7}
    assert {row["actor"] for pair in found["calls"] for row in (pair["client"], pair["server"])} == {"client", "server"}


@pytest.mark.req("P-10.4-c", "A-46", "A-48", "A-49")
def test_every_verdict(tmp_path: Path) -> None:
    async def fill() -> None:
        async with participants(tmp_path, "shop", "orders") as who:
            for number in (1, 2, 3):
                await call(who["shop"], who["orders"], number)
            await who["orders"].registers(4)
            await who["orders"].registers(5, mode=Mode.TRANSPARENT, client_id_is_proxy=True)

    asyncio.run(fill())
    raw(tmp_path / "orders.db", "DELETE FROM intent WHERE client_correlation_id LIKE '%2'")
    raw(tmp_path / "orders.db", "UPDATE intent SET phase = 'FAILED' WHERE server_correlation_id LIKE '%3'")
    result = run("ledger", "pairs", *ledgers(tmp_path), "--json")
    assert result.exit_code == FOUND
    verdicts = {
        pair["client_correlation_id"][-1]: (pair["verdict"], pair["reason"]) for pair in document(result)["calls"]
    }
    assert verdicts == {
        "1": ("PAIRED", ""),
        "2": ("CLIENT_ONLY", "server_row_missing"),
        "3": ("CONFLICT", "phase_contradicts"),
        "4": ("SERVER_ONLY", "answer_under_way"),
        "5": ("SERVER_ONLY_BY_DESIGN", "transparent"),
    }
    chosen = run("ledger", "pairs", *ledgers(tmp_path), "--verdict", "CONFLICT", "--verdict", "PAIRED")
    assert chosen.exit_code == FOUND
    assert [line.split()[0] for line in chosen.stdout.splitlines()[1:3]] == ["PAIRED", "CONFLICT"]
    assert "5 calls: 1 PAIRED, 1 CLIENT_ONLY, 1 SERVER_ONLY, 1 SERVER_ONLY_BY_DESIGN, 1 CONFLICT" in chosen.stdout


def test_the_other_side_is_found_however_old_it_is(tmp_path: Path) -> None:
    async def fill() -> None:
        async with participants(tmp_path, "shop", "orders") as who:
            await call(who["shop"], who["orders"], 1)
            for number in range(2, 9):
                await who["orders"].registers(number)

    asyncio.run(fill())
    raw(tmp_path / "shop.db", "UPDATE client_entry SET phase_1_timestamp = phase_1_timestamp + 1000000")
    result = run("ledger", "pairs", *ledgers(tmp_path), "--limit", 1)
    assert result.stdout.splitlines()[-1] == "1 call: 1 PAIRED"
    assert "note: only the newest 1 row" in result.stderr


# show


def details(path: Path) -> dict[str, Any]:
    calls: list[dict[str, Any]] = document(run("ledger", "show", "server-corr-id1", *ledgers(path), "--json"))["calls"]
    (found,) = calls
    return found


async def _with_details(folder: Path) -> None:
    def owe(_records: Records) -> Change:
        job = decide_job(None, Enqueue(job_id="callback:1", work="callback", subject="server-corr-id1"), 1)
        assert job.job is not None
        return Change(answer=None, puts=(Put(record=job.job, journal=job.steps),))

    async with participants(folder, "shop", "orders") as who:
        await call(who["shop"], who["orders"], 1)
        store = who["orders"].store
        await store.transact(AdHocCommand((), owe))
        await reserve(store, "my-obligation", "k1", intent="server-corr-id1")
        await reserve(store, "another's", "k2", intent="server-corr-id9")


@pytest.mark.req("P-9.8-0", "A-47")
def test_all_about_one_call(tmp_path: Path) -> None:
    asyncio.run(_with_details(tmp_path))
    found = details(tmp_path)
    assert (found["verdict"], list(found["server"])[:16]) == ("PAIRED", list(FIELDS))
    orders, shop = found["evidence"]
    if orders["ledger"].endswith("shop.db"):
        orders, shop = shop, orders
    assert [(line["before"], line["after"]) for line in orders["journal"]] == [
        ("ABSENT", "WAITING_CONFIRM"),
        ("WAITING_CONFIRM", "PROCESSING"),
        ("PROCESSING", "COMMITTED"),
        ("ABSENT", "PENDING"),
        ("Absent", "Reserved"),
    ]
    assert (orders["intent"]["status"], orders["intent"]["fence"]) == (201, 1)
    assert [job["job_id"] for job in orders["jobs"]] == ["callback:1"]
    assert [obligation["obligation_id"] for obligation in orders["obligations"]] == ["my-obligation"]
    assert (shop["call"]["url"], shop["jobs"], shop["obligations"]) == ("https://orders.internal/orders", [], [])
    assert [line["after"] for line in shop["journal"]] == ["WAITING_CONFIRM", "COMMITTED"]


def test_one_call_is_printed_side_by_side(tmp_path: Path) -> None:
    asyncio.run(_with_details(tmp_path))
    result = run("ledger", "show", "client-corr-id1", *ledgers(tmp_path))
    assert result.exit_code == OK
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:1] == ["PAIRED:"]
    assert [line[0] for line in lines[3:19]] == list(FIELDS)
    assert ["target", "orders", "null"] in lines
    assert "callback:1" in result.stdout
    assert "my-obligation" in result.stdout
    assert "another's" not in result.stdout
    assert "payload" not in result.stdout.replace("payload_ref", "").replace("/payload", "").replace("has_payload", "")


def test_a_record_that_was_forgotten_still_has_its_history(tmp_path: Path) -> None:
    asyncio.run(_with_details(tmp_path))
    raw(tmp_path / "orders.db", "UPDATE intent SET forgotten = 1, who = NULL")
    found = next(e for e in details(tmp_path)["evidence"] if e["ledger"].endswith("orders.db"))
    assert found["intent"] is None
    assert len(found["journal"]) == 5
