from __future__ import annotations

import ast
from pathlib import Path

import pytest

import twophp
from twophp.wire import fields

SOURCE = Path(twophp.__file__).parent
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# draft §14.1, in its order.
REGISTRY = [
    "DTT-2PHP-Enabled",
    "DTT-2PHP-Client-Correlation-ID",
    "DTT-2PHP-Auto-Confirm",
    "DTT-2PHP-Callback",
    "DTT-2PHP-Requested-TTL",
    "DTT-2PHP-Server-Correlation-ID",
    "DTT-2PHP-Phase-State",
    "DTT-2PHP-TTL",
    "DTT-2PHP-PONR-Deadline",
    "DTT-2PHP-Resource-ID",
    "DTT-2PHP-Replay-Policy",
    "DTT-2PHP-Message",
]


@pytest.mark.req("P-14.1-m")
def test_there_are_exactly_the_twelve_registered_names() -> None:
    assert [field.name for field in fields.FIELDS] == REGISTRY


@pytest.mark.req("A-17")
@pytest.mark.parametrize("field", fields.FIELDS, ids=lambda field: field.name)
def test_the_key_is_the_name_in_lower_case(field: fields.Field) -> None:
    assert field.key == field.name.lower().encode()
    assert fields.BY_KEY[field.key] is field


@pytest.mark.req("A-19")
def test_browsers_are_offered_request_and_response_names() -> None:
    assert list(fields.CORS_ALLOW_HEADERS) == REGISTRY[:6]
    assert list(fields.CORS_EXPOSE_HEADERS) == REGISTRY[5:]


@pytest.mark.req("A-03")
def test_the_application_sees_none_of_the_twelve() -> None:
    ours = [(name.encode(), b"x") for name in REGISTRY] + [(name.lower().encode(), b"x") for name in REGISTRY]
    others = [(b"Host", b"h"), (b"dtt-2php-client-corr-id", b"x"), (b"x-dtt-2php-ttl", b"1")]
    assert fields.without_fields([*others, *ours]) == others


@pytest.mark.req("A-17")
def test_http_1_gets_the_drafts_spelling() -> None:
    raw = [(b"dtt-2php-ponr-deadline", b"x"), (b"cache-control", b"no-store"), (b"content-type", b"caf\xe9")]
    assert fields.canonical(raw) == [
        ("DTT-2PHP-PONR-Deadline", "x"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "café"),
    ]


def _strings(tree: ast.Module) -> list[str]:
    """Every string and bytes literal of a module but its docstrings and comments: prose may name a field."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, _WITH_DOCSTRING)]
    prose = {id(statement.value) for body in bodies for statement in body if isinstance(statement, ast.Expr)}
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose]
    return [str(node.value) for node in literals if isinstance(node.value, str | bytes)]


@pytest.mark.req("P-14.1-m", "P-1-e")
def test_no_other_module_spells_a_field_name() -> None:
    spelled = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for literal in _strings(ast.parse(path.read_text(encoding="utf-8")))
        if "dtt-2php-" in literal.lower()
    }
    assert spelled == {"wire/fields.py"}
