"""Finds every stable error code in the tree, wherever it is spelled."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from twophp.core.errors import OUTCOME_INDETERMINATE
from twophp.ports import NOT_IN_TRANSACTION

SRC = Path(__file__).parents[2] / "src" / "twophp"

ATTRIBUTES = {"default_code", "bad_code"}
TABLES = {"PROBLEMS", "UNRESOLVED"}
"""Dictionaries whose keys are codes."""
FIRST = {"ApiProblem", "Refuse", "_check", "_failed", "_say", "_unresolved", "problem", "refused"}
"""Callables whose first argument is a code."""
SHARED = {"OUTCOME_INDETERMINATE": OUTCOME_INDETERMINATE, "NOT_IN_TRANSACTION": NOT_IN_TRANSACTION}
"""Constants that other modules import."""
NO_CODES = ("delivery/egress", "stores/sqlite/surface.py", "stores/postgres_surface.py", "registrar/memory_bench.py")
"""Where they are other functions: of the gate, whose argument is a reason, or of a probe."""


def codes() -> dict[str, str]:
    """Every code, and one place where it is."""
    found: dict[str, str] = {}
    for path in sorted(SRC.rglob("*.py")):
        place = str(path.relative_to(SRC))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        first = FIRST - {"_failed", "refused"} if place.startswith(NO_CODES) else FIRST
        for code, line in _codes(tree, first):
            found.setdefault(code, f"{place}:{line}")
    return found


def _codes(tree: ast.Module, first: AbstractSet[str]) -> Iterator[tuple[str, int]]:
    named = SHARED | dict(_constants(tree))
    for node in ast.walk(tree):
        for value in _values(node, first):
            for part in ast.walk(value):
                text = named.get(part.id) if isinstance(part, ast.Name) else getattr(part, "value", None)
                if isinstance(text, str) and text.isidentifier():
                    yield text, value.lineno


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                yield name, text


def _values(node: ast.AST, first: AbstractSet[str]) -> Iterator[ast.expr]:
    match node:
        case ast.keyword(arg="code", value=value):
            yield value
        case ast.FunctionDef(args=arguments):
            yield from _defaults(arguments)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in ATTRIBUTES:
            yield value
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if name in ATTRIBUTES and value is not None:
            yield value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=keys)) if name in TABLES:
            yield from (key for key in keys if key is not None)
        case _:
            yield from _by_place(node, first)


def _by_place(node: ast.AST, first: AbstractSet[str]) -> Iterator[ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[code, *_]) if name in first:
            yield code
        case ast.Call(func=ast.Attribute(attr="_give_up"), args=[_, code]):
            yield code
        case ast.Assign(targets=[ast.Name(id="code")], value=value):
            yield value
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id="code"), *_])], value=ast.Tuple(elts=[value, *_])):
            yield value
        case ast.Tuple(elts=[_, ast.Name(id=kind), ast.Constant() as code, ast.Constant()]) if kind[0].isupper():
            yield code  # A line of an adapter's table: theirs, ours, the code, the words.


def _defaults(arguments: ast.arguments) -> Iterator[ast.expr]:
    spelled = [*arguments.posonlyargs, *arguments.args]
    for argument, default in zip(spelled[::-1], arguments.defaults[::-1], strict=False):
        if argument.arg == "code":
            yield default
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == "code" and value is not None:
            yield value
