"""How a route is described: what it answers, and every refusal it may give. OpenAPI is generated from this."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from twophp.central.api.problems import MEDIA_TYPE, PROBLEMS, Problem

ALWAYS: Final = (401, 403, 422, 502, 503)
"""The caller is unknown, or not allowed; a parameter is malformed; the identity provider or the database is away."""
REF: Final = "#/components/schemas/"

_described: dict[str, type[Any]] = {}


def described() -> tuple[type[Any], ...]:
    """Every type that some route's description names."""
    return tuple(_described.values())


def reference(kind: type[Any]) -> dict[str, str]:
    """Where the schema of this type stands in the document."""
    _described.setdefault(kind.__name__, kind)
    return {"$ref": REF + kind.__name__}


def describe(answer: type[Any] | None, *also: int, body: type[Any] | None = None, **more: Any) -> dict[str, Any]:
    """Keyword arguments for a route: its answer, its refusals (``ALWAYS`` and those in ``also``) and its body."""
    responses: dict[int, Any] = {}
    if answer is not None:
        responses[200] = {"description": "Found.", "content": {"application/json": {"schema": reference(answer)}}}
    responses |= {status: refusal(status) for status in sorted({*ALWAYS, *also})}
    extra: dict[str, Any] = {}
    if body is not None:
        responses[408] = refusal(408)
        content = {"application/json": {"schema": reference(body)}}
        extra = {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
    return {"response_class": Response, "responses": responses} | extra | more


def refusal(status: int) -> dict[str, Any]:
    """What a refusal with this status says."""
    codes = sorted(code for code, kind in PROBLEMS.items() if kind.status == status)
    schema = {"$ref": REF + "Problem"}
    return {"description": " or ".join(f"`{code}`" for code in codes), "content": {MEDIA_TYPE: {"schema": schema}}}


def components() -> dict[str, Any]:
    """The schemas of everything described."""
    _schemas, found = msgspec.json.schema_components((*described(), Problem), ref_template=REF + "{name}")
    return {name: _portable(schema) for name, schema in found.items()}


def _portable(schema: Any) -> Any:
    """Patterns as JSON Schema spells them, which has other words for the two ends."""
    match schema:
        case dict():
            fixed = {name: _portable(value) for name, value in schema.items()}
            if isinstance(pattern := fixed.get("pattern"), str):
                fixed["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
            return fixed
        case list():
            return [_portable(value) for value in schema]
    return schema
