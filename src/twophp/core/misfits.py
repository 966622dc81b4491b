"""Why a document is not of its type, in our words: which field, what is expected there, and what stood there.

msgspec says it in the words of Python and of regular expressions, for whoever wrote the type. What is said here is for
whoever wrote the document. What stood there is quoted only where it cannot be a secret: a number, a flag, nothing, or a
word where one of a few was meant.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises."""
WORDS: Final = "words"
"""Under this name a type's ``Meta(extra=...)`` says what it expects, where that is more than its kind."""

MOST_QUOTED_CHARS: Final = 64

_PLACE: Final = re.compile(r" - at `(?:key in )?\$(.*)`\Z", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_ANY: Final = "..."
"""How msgspec calls what stands under a name of its writer's choice."""
_FIELD: Final = re.compile(r"\AObject (missing required|contains unknown) field `(.*?)`", re.DOTALL)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_UNSUPPORTED: Final = re.compile(r"Encoding objects of type (\S+) is unsupported")

_Node: TypeAlias = inspect.Type | inspect.Field
_PLAIN: Final[dict[type, str]] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.DateTimeType: "a time with its zone, such as 2026-01-31T12:00:00Z",
}


def misfit(error: Exception, kind: Any, given: object = b"") -> str:
    """What is wrong with ``given``, which could not be read as ``kind``: bytes of JSON, or what was made of them."""
    if not isinstance(error, msgspec.ValidationError):
        return unreadable(error)
    said = str(error)
    found = _PLACE.search(said)
    place = found[1] if found else ""
    said = said[: found.start()] if found else said
    if field := _FIELD.match(said):
        within = f"{place}." if place else "."
        lacks = field[1] == "missing required"
        return f"{_named(within + field[2])} {'is missing' if lacks else 'is not known'}"
    steps = [int(index) if index.isdigit() else index or name for name, index in _STEP.findall(place)]
    node = _at(inspect.type_info(kind), steps)
    return f"{_named(place)} must be {_expected(node) or 'something else'}{_told(given, steps, node)}"


def unreadable(error: Exception) -> str:
    """Why something is no JSON at all."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 (at byte {error.start})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return "it is JSON of another kind"
    if isinstance(error, msgspec.MsgspecError):
        byte = _BYTE.search(str(error))
        return f"it is no JSON (at byte {byte[1]})" if byte else "it is no JSON: it ends too early"
    return str(error)  # A ValueError of our own.


def unwritable(error: Exception) -> str:
    """Why a value has no form in JSON."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if found := _UNSUPPORTED.search(str(error)):
        return f"it holds a value of type {found[1]}; JSON has texts, numbers, true, false, null, lists and objects"
    if isinstance(error, UnicodeEncodeError):
        return "it holds a text that is no UTF-8"
    if isinstance(error, TypeError):
        return "the names in an object must be texts"
    return "it holds a number that JSON cannot"


def _named(place: str) -> str:
    return place.removeprefix(".") or "it"


def _at(node: _Node, steps: list[str | int]) -> _Node | None:
    """The type at the end of the path, if the path can be followed."""
    for step in steps:
        inner = [one for one in (_within(part, step) for part in _parts(node)) if one is not None]
        if not inner:
            return None
        node = inner[0]
    return node


def _parts(node: _Node) -> tuple[_Node, ...]:
    if isinstance(node, inspect.Field):
        return _parts(node.type)
    if isinstance(node, inspect.UnionType):
        return node.types
    return (node,)


def _within(node: _Node, step: str | int) -> _Node | None:
    if isinstance(node, inspect.Metadata):
        return _within(node.type, step)
    if isinstance(node, inspect.StructType):
        return next((field for field in node.fields if field.encode_name == step), None)
    if isinstance(node, inspect.ListType | inspect.VarTupleType) and isinstance(step, int):
        return node.item_type
    if isinstance(node, inspect.DictType) and step == _ANY:
        return node.value_type
    return None


def _expected(node: _Node | None) -> str:
    """What may stand there, in words."""
    if node is None:
        return ""
    return ", or ".join(filter(None, (_words(part) for part in _parts(node))))


def _words(node: _Node) -> str:
    if isinstance(node, inspect.Metadata):
        return str((node.extra or {}).get(WORDS) or _words(node.type))
    plain = _PLAIN.get(type(node), "")
    match node:
        case inspect.StrType() | inspect.ListType():
            return plain + _length(node)
        case inspect.IntType() | inspect.FloatType():
            return plain + _bounds(node)
        case inspect.EnumType():
            return f"one of {', '.join(str(one.value) for one in node.cls)}"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, node.values))}"
    return plain


def _length(node: inspect.StrType | inspect.ListType) -> str:
    unit = "characters" if isinstance(node, inspect.StrType) else "entries"
    least, most = node.min_length or 0, node.max_length
    if most is not None:
        return f" of {least} to {most} {unit}"
    return f" of at least {least} {unit}" if least else ""


def _bounds(node: inspect.IntType | inspect.FloatType) -> str:
    if node.ge is not None and node.le is not None:
        return f" from {node.ge} to {node.le}"
    return f" of at least {node.ge}" if node.ge is not None else ""


def _told(given: object, steps: list[str | int], node: _Node | None) -> str:
    """What stood there, where that can be found out."""
    try:
        value: Any = msgspec.json.decode(given) if isinstance(given, bytes) else given
        for step in steps:
            value = value[step]
    except (*UNREADABLE, LookupError, TypeError):
        return ""
    is_word = isinstance(value, str) and len(value) <= MOST_QUOTED_CHARS
    return f", not {value!r}" if is_word and _is_choice(node) else f", not {_described(value)}"


def _described(value: object) -> str:
    match value:
        case None | bool() | int() | float():
            return msgspec.json.encode(value).decode()[:MOST_QUOTED_CHARS]
        case str():
            return f"a text of length {len(value):,}"
        case list() | tuple():
            return f"a list of length {len(value):,}"
    return "an object"


def _is_choice(node: _Node | None) -> bool:
    return node is not None and any(isinstance(part, inspect.EnumType | inspect.LiteralType) for part in _parts(node))
