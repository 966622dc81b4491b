"""The house rules hold, and each of them can fail."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.repo import tidy

ROOT = Path(__file__).parents[2]

# The only files that may read the wall clock or draw at random; everything else is given what they found.
ADAPTERS = frozenset({"src/twophp/stores/clock.py", "src/twophp/stores/vault.py"})
SQLITE = "src/twophp/stores/sqlite/"
VAGUE = frozenset({"common.py", "helpers.py", "misc.py", "util.py", "utils.py"})

Rule = Callable[[str], Iterator[str]]


def in_src(path: str) -> bool:
    return path.startswith("src/") and path.endswith(".py")


def is_python(path: str) -> bool:
    return path.endswith(".py")


RULES: list[tuple[Rule, Callable[[str], bool]]] = [
    (tidy.long_functions, is_python),
    (tidy.long_file, lambda path: path.endswith((".py", ".sql"))),
    (tidy.embedded_sql, in_src),
    (tidy.connection_control, lambda path: in_src(path) and not path.startswith(SQLITE)),
    (tidy.clock_or_dice, lambda path: in_src(path) and path not in ADAPTERS),
    (tidy.sleeps, lambda path: path.startswith("tests/") and is_python(path)),
    (tidy.unfinished, bool),
    (tidy.elsewhere, bool),  # Every path is true: no file is exempt.
]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """Every text of the project that git does not ignore, by its path. Pictures are none: they have zeros in them."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    command = [git, "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    paths = [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]
    contents = {path: (ROOT / path).read_bytes() for path in paths}
    return {path: content.decode("utf-8", "replace") for path, content in contents.items() if b"\0" not in content}


@pytest.mark.parametrize(("rule", "applies"), RULES, ids=lambda rule: getattr(rule, "__name__", ""))
def test_the_project_keeps(rule: Rule, applies: Callable[[str], bool], files: dict[str, str]) -> None:
    assert [f"{path}:{wrong}" for path, text in files.items() if applies(path) for wrong in rule(text)] == []


def test_every_file_is_named_for_what_it_holds(files: dict[str, str]) -> None:
    assert [path for path in files if Path(path).name in VAGUE] == []


BAD = [
    (tidy.long_functions, "def f():\n" + "    x = 1\n" * 70),
    (tidy.long_file, "\n" * 501),
    (tidy.embedded_sql, 'db.execute("SELECT id\\nFROM intent")'),
    (tidy.embedded_sql, 'db.execute("select 1")'),
    (tidy.embedded_sql, 'db.execute(f"insert or ignore into {table} values (1)")'),
    (tidy.embedded_sql, 'SQL = """\n  UPDATE intent SET phase = 1"""'),
    (tidy.embedded_sql, 'SQL = "CREATE UNIQUE INDEX i ON t (a)"'),
    (tidy.embedded_sql, 'SQL = "with recursive tree as (values (1))"'),
    (tidy.connection_control, 'db.execute("BEGIN IMMEDIATE")'),
    (tidy.connection_control, 'db.execute("COMMIT")'),
    (tidy.connection_control, 'db.execute(f"PRAGMA user_version = {n}")'),
    (tidy.clock_or_dice, "import time"),
    (tidy.clock_or_dice, "from time import time"),
    (tidy.clock_or_dice, "from os import urandom"),
    (tidy.clock_or_dice, "import datetime\nx = datetime.datetime.now(tz)"),
    (tidy.clock_or_dice, "import uuid\nx = uuid.uuid4()"),
    (tidy.sleeps, "time.sleep(0.1)"),
    (tidy.sleeps, "async def f(): await anyio.sleep(delay)"),
    (tidy.sleeps, "from asyncio import sleep\nsleep(1)"),
    (tidy.unfinished, "# TO" + "DO: later"),
    (tidy.elsewhere, "see /ho" + "me/someone/notes"),
    (tidy.elsewhere, "https://py" + "pi.org/simple"),
]


@pytest.mark.parametrize(("rule", "sample"), BAD)
def test_a_bad_sample_is_found(rule: Rule, sample: str) -> None:
    assert list(rule(sample))


def test_every_rule_has_a_bad_sample() -> None:
    assert {rule for rule, _ in RULES} == {rule for rule, _ in BAD}


GOOD = [
    (tidy.long_functions, "def f():\n" + "    x = 1\n" * 69),
    (tidy.embedded_sql, '"""Select the rows from the store."""'),
    (tidy.embedded_sql, 'raise ValueError("Update the policy, then set it")'),
    (tidy.connection_control, 'word = "commit"'),
    (tidy.clock_or_dice, "from datetime import datetime\nx = datetime.fromtimestamp(at, tz)"),
    (tidy.sleeps, "async def f(): await anyio.sleep(0)"),
    (tidy.elsewhere, "GET /home HTTP/1.1"),
]


@pytest.mark.parametrize(("rule", "sample"), GOOD)
def test_a_good_sample_is_left_alone(rule: Rule, sample: str) -> None:
    assert not list(rule(sample))
