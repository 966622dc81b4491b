"""What is changed: one small mistake at a time, as a programmer makes it.

Left alone is what tests should not tie down: docstrings, annotations, texts with a space (they are for people), what
a rule says of itself, the values of an enumeration that repeat their names, and how a class is made (``frozen`` and
``gc`` are the type checker's).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# Fields that say nothing about what a program does, or that make a text for people.
_ASIDE: Final = frozenset({"annotation", "returns", "decorator_list", "bases", "slice", "type_params"})
_TESTS: Final = frozenset({"test", "guard", "ifs"})
_SAID: Final = frozenset({"row", "says", "requirements"})  # Of a rule of the registrar: for its page.
_NAMED: Final = frozenset({"TypeVar", "ParamSpec", "NewType", "cast"})  # Their texts are types.


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one file."""

    number: int  # Among those of its file, in the order of the text.
    where: str  # The function or class, by its qualified name; empty in the module itself.
    statement: int  # The line on which its statement begins.
    line: int
    before: str
    after: str
    in_function: bool

    @property
    def change(self) -> str:
        """How it is told, and known again after lines have moved."""
        return f"{self.where or 'module'}: {self.before} → {self.after}"


class _Place(msgspec.Struct, frozen=True):
    """What is around a node."""

    names: tuple[str, ...] = ()  # Of classes and functions.
    in_function: bool = False
    statement: int = 0


class _Slot(msgspec.Struct, frozen=True):
    """Where a node hangs in its tree."""

    place: _Place
    parent: ast.AST
    field: str
    index: int | None  # None: it is alone in its field.

    def put(self, node: ast.AST | None) -> None:
        """Hang another node there; None takes out one of several."""
        if self.index is None:
            setattr(self.parent, self.field, node)
            return
        several: list[Any] = getattr(self.parent, self.field)
        if node is not None:
            several[self.index] = node
            return
        del several[self.index]


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a file."""
    return [_mutant(number, *change) for number, change in enumerate(_changes(ast.parse(source)))]


def mutated(source: str, number: int) -> ast.Module:
    """The file with one of its mutants in it."""
    tree = ast.parse(source)
    slot, _before, after = next(islice(_changes(tree), number, None))
    slot.put(after)
    return ast.fix_missing_locations(tree)


def _changes(tree: ast.Module) -> Iterator[tuple[_Slot, ast.AST, ast.AST | None]]:
    for slot, node in _slots(tree, _Place()):
        for after in _alternatives(node, slot):
            yield slot, node, after if after is None else ast.copy_location(after, node)


def _mutant(number: int, slot: _Slot, before: ast.AST, after: ast.AST | None) -> Mutant:
    return Mutant(
        number=number,
        where=".".join(slot.place.names),
        statement=slot.place.statement,
        line=getattr(before, "lineno", slot.place.statement),
        before=_text(before),
        after="nothing" if after is None else _text(after),
        in_function=slot.place.in_function,
    )


def _slots(parent: ast.AST, place: _Place) -> Iterator[tuple[_Slot, ast.AST]]:
    """Every node that may be changed, with where it hangs."""
    for field, value in ast.iter_fields(parent):
        if field in _ASIDE or (isinstance(parent, ast.ClassDef) and field == "keywords"):
            continue
        several = value if isinstance(value, list) else [value]
        for index, node in enumerate(several):
            if not isinstance(node, ast.AST) or _is_aside(node):
                continue
            here = replace(place, statement=node.lineno) if isinstance(node, ast.stmt) else place
            yield _Slot(here, parent, field, index if isinstance(value, list) else None), node
            yield from _below(node, here)


def _below(node: ast.AST, place: _Place) -> Iterator[tuple[_Slot, ast.AST]]:
    match node:
        case ast.ClassDef(name=name):
            yield from _slots(node, replace(place, names=(*place.names, name)))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            inside = replace(place, names=(*place.names, name))
            yield from _slots(node.args, inside)  # Defaults are made where the function is.
            body = ast.Module(body=node.body, type_ignores=[])  # Shares the list, so what it holds can be changed.
            yield from _slots(body, replace(inside, in_function=True))
        case ast.Lambda():
            yield from _slots(node, replace(place, in_function=True))
        case _:
            yield from _slots(node, place)


def _is_aside(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.keyword(arg=arg) if arg in _SAID:
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Call(func=ast.Name(id=name)) if name in _NAMED:
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)) if name == value:
            return True
        case _:
            return False


def _alternatives(node: ast.AST, slot: _Slot) -> Iterator[ast.AST | None]:
    """What may stand in a node's place; None for nothing."""
    if isinstance(node, ast.expr):
        yield from _expressions(node)
        if slot.field in _TESTS and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield ast.UnaryOp(op=ast.Not(), operand=node)
        yield from _one_less(slot)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    elif _is_one_of_several(node, slot.parent):
        yield None


def _is_one_of_several(node: ast.AST, parent: ast.AST) -> bool:
    """An argument by name, or a case beside others."""
    if isinstance(node, ast.match_case):
        return isinstance(parent, ast.Match) and len(parent.cases) > 1
    return isinstance(node, ast.keyword) and node.arg is not None


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, op in enumerate(ops):
                changed = [*ops[:index], _COMPARISONS[type(op)](), *ops[index + 1 :]]
                yield ast.Compare(left=left, ops=changed, comparators=comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(op=ast.Or() if isinstance(op, ast.And) else ast.And(), values=values)
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op=op, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield ast.BinOp(left=left, op=_OPERATORS[type(op)](), right=right)
        case ast.Constant(value=value):
            yield from _constants(value)
        case _:
            pass


def _constants(value: object) -> Iterator[ast.expr]:
    match value:
        case bool():
            yield ast.Constant(value=not value)
        case int() | float():
            yield ast.Constant(value=value + 1)
        case str() if " " not in value:
            yield ast.Constant(value=f"{value}_")
        case bytes():
            yield ast.Constant(value=value + b"_")
        case _:
            pass


def _one_less(slot: _Slot) -> Iterator[None]:
    """One element less in what is written out. Not of a table: whether one is total is a test of its own."""
    match slot.parent:
        case ast.Set() | ast.List(ctx=ast.Load()) | ast.Tuple(ctx=ast.Load()) if len(slot.parent.elts) > 1:
            yield None
        case _:
            pass


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(value=ast.Constant(value=None))
        case ast.Raise() | ast.Expr() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield ast.Pass()
        case ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Pass()
            if type(op) in _OPERATORS:
                yield ast.AugAssign(target=target, op=_OPERATORS[type(op)](), value=value)
        case _:
            pass


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
