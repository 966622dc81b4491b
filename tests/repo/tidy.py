"""House rules that no linter knows, as functions from a file's text to what is wrong with it.

Each yields ``line: complaint``. test_tidy.py runs them over the project and over samples that must fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

FUNCTION_LINES = 70
FILE_LINES = 500

CLOCK_AND_DICE = frozenset({"random", "secrets", "time"})
CLOCK_AND_DICE_CALLS = frozenset(
    {"date.today", "datetime.now", "datetime.today", "datetime.utcnow", "os.urandom", "uuid.uuid1", "uuid.uuid4"}
)

# Statements that hold or change data belong in a .sql file, where they are named and can be read as one.
STATEMENT = re.compile(
    r"""\s*(
        SELECT\s.*\bFROM\b | SELECT\s+[\d(] | INSERT\s+(OR\s+\w+\s+)?INTO\b | REPLACE\s+INTO\b | UPDATE\s+\S+\s+SET\b
        | DELETE\s+FROM\b | (CREATE|DROP|ALTER)\s+(\w+\s+){0,2}(TABLE|INDEX|TRIGGER|VIEW)\b
        | WITH\s+(RECURSIVE\s+)?\w+.*\bAS\s*\( | EXPLAIN\s+(QUERY\b|SELECT\b)
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# What drives a connection is code. Capitals alone count: "commit" is also a word of ours.
CONTROL = re.compile(
    r"\s*(PRAGMA\s+\w|BEGIN(\s+(IMMEDIATE|EXCLUSIVE|DEFERRED))?\s*;?$|(COMMIT|ROLLBACK)(\s+TO\s+\S+)?\s*;?$"
    r"|(SAVEPOINT|RELEASE|ATTACH|VACUUM)\s+\S)"
)

# Written so that the patterns do not match themselves.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b")
ELSEWHERE = re.compile(
    r"(?<![\w.])/(work|root|home/\w+|opt/\w+)/|pypi[.]org|python[h]osted|registry[.]npmjs|index-ur[l][ =]https?:"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_functions(source: str) -> Iterator[str]:
    """A function fits on a screen."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines; at most {FUNCTION_LINES}"


def long_file(source: str) -> Iterator[str]:
    """A file has one subject."""
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{lines}: at most {FILE_LINES} lines"


def embedded_sql(source: str) -> Iterator[str]:
    """SQL stands in .sql files."""
    for line, text in _literals(source):
        if STATEMENT.match(text):
            yield f"{line}: SQL belongs in a .sql file: {text.strip()[:40]!r}"


def connection_control(source: str) -> Iterator[str]:
    """Transactions are the store's business."""
    for line, text in _literals(source):
        if CONTROL.match(text):
            yield f"{line}: only the SQLite store drives a connection: {text.strip()[:40]!r}"


def clock_or_dice(source: str) -> Iterator[str]:
    """Time and chance are arguments, so that every run can be repeated."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno}: imports {a.name}" for a in node.names if a.name in CLOCK_AND_DICE)
        elif isinstance(node, ast.ImportFrom):
            calls = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (f"{node.lineno}: imports {c}" for c in calls if c in CLOCK_AND_DICE | CLOCK_AND_DICE_CALLS)
        elif isinstance(node, ast.Attribute) and _tail(node) in CLOCK_AND_DICE_CALLS:
            yield f"{node.lineno}: reads {_tail(node)}"


def sleeps(source: str) -> Iterator[str]:
    """A test that waits is slow when it passes and flaky when it does not. ``sleep(0)`` only yields."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not re.search(r"(^|\.)sleep(_until|_forever)?$", ast.unparse(node.func)):
            continue
        if [ast.unparse(argument) for argument in node.args] != ["0"]:
            yield f"{node.lineno}: {ast.unparse(node)}"


def unfinished(text: str) -> Iterator[str]:
    """Work left over is an issue, not a comment."""
    yield from _matches(UNFINISHED, text)


def elsewhere(text: str) -> Iterator[str]:
    """No file knows the machine it was written on, or where packages come from."""
    yield from _matches(ELSEWHERE, text)


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield f"{number}: {found[0]}"


def _tail(node: ast.Attribute) -> str:
    """The last two names of a dotted expression: ``datetime.datetime.now`` gives ``datetime.now``."""
    return ".".join(ast.unparse(node).split(".")[-2:])


def _literals(source: str) -> Iterator[tuple[int, str]]:
    """Every string that is not a docstring; of an f-string, what stands before its first field."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
