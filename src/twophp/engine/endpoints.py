"""Which policy a request falls under, if any (A-07, draft §11: adoption "per endpoint").

A key is an optional method and a pattern for the path:

    "POST /orders"        exact
    "PUT /orders/{id}"    template: ``{id}`` stands for one segment that is not empty
    "/reports/*"          prefix: /reports and everything below it
    "*"                   star: everything

Without a method a key holds for every method that can be registered. Of all keys that fit, the most specific wins:

1. exact before template before prefix before star;
2. of two templates the one whose first differing segment is literal; of two prefixes the longer;
3. of two keys for the same paths the one that names the method.

Two keys can never tie: the same paths with the same method twice is an error. Nothing depends on the order of the
mapping. A path that fits no key is not enrolled, and its requests are the application's alone.

Paths are compared as the application's router sees them: percent-decoded, so ``/%6Frders`` is ``/orders`` and ``%2F``
is a slash; a key may be spelled either way. Several slashes in a row count as one and a trailing one is dropped: some
routers do so too, and what such a router would run must not pass unseen. Nothing else is normalised, since no router
resolves ``/./``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, TypeAlias
from urllib.parse import unquote

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.intent import Intent
from twophp.core.policy import Policy

Policies: TypeAlias = Mapping[str, Policy] | Policy

_ANY: Final = ""  # In place of a method: any of them.
_STAR: Final = "*"
_REST: Final = "/*"
_HOLE: Final = ""  # In place of a template's segment; a literal one is never empty.
_KEY: Final = re.compile(r"(?:([A-Z][A-Z0-9!#$%&'*+.^_`|~-]*) )?(\*|/[!-~]*)")
_LITERAL: Final = re.compile(r"[A-Za-z0-9._~!$&'()+,;=:@%-]+")
_NAME: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_SLASHES: Final = re.compile(r"/+")
MOST_KNOWN: Final = 1_024  # Paths whose endpoint is remembered. With the next bound: clients cannot fill our memory.
LONGEST_KNOWN: Final = 256
NEVER_REGISTERED: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Endpoint(msgspec.Struct, frozen=True):
    """What a request falls under. ``name`` is the key: metrics that used the path would grow without bound."""

    name: str
    policy: Policy
    path: str = ""  # What the key spells of the path, ``{name}`` for a hole; empty for the root and for a star.

    def names(self, path: str, suffix: str) -> bool:
        """Whether the key spells out this path, which ends in ``suffix``, and does not just happen to fit it (A-02)."""
        return self.path == path or ("{" in self.path and self.path.endswith(suffix))


_UNKNOWN: Final = Endpoint("", Policy.standard())
_ByMethod: TypeAlias = dict[str, Endpoint]
_Segments: TypeAlias = tuple[str, ...]


class Endpoints:
    """The policies of a service by their keys; one policy alone stands for ``{"*": policy}``."""

    def __init__(self, policies: Policies) -> None:
        self._exact: dict[str, _ByMethod] = {}
        self._templates: dict[_Segments, _ByMethod] = {}
        self._prefixes: dict[str, _ByMethod] = {}
        self._star: _ByMethod = {}
        self._all: list[Endpoint] = []
        self._known: dict[tuple[str, str], Endpoint | None] = {}  # What was found last, by method and path.
        for key, policy in _as_mapping(policies).items():
            self._enrol(key, policy)
        self._by_count = _by_count(self._templates)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def __iter__(self) -> Iterator[Endpoint]:
        """Every endpoint, in the order of the mapping: for checks at the start and for pages."""
        return iter(self._all)

    def match(self, method: str, path: str) -> Endpoint | None:
        """The endpoint for a path as the router sees it, decoded and without its query; None if it is not enrolled.

        A recent path costs one look-up: a handshake asks four times.
        """
        found = self._known.get((method, path), _UNKNOWN)
        return self._found(method, path) if found is _UNKNOWN else found

    def _found(self, method: str, path: str) -> Endpoint | None:
        """Find it and, if there is room, remember it."""
        found = self._find(method, path)
        if len(method) + len(path) <= LONGEST_KNOWN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[method, path] = found
        return found

    def _find(self, method: str, path: str) -> Endpoint | None:
        """Find it by the rules.

        Exact keys cost one look-up. Templates cost at most one comparison for each with as many segments, prefixes one
        look-up for each length in use; neither depends on what the request brings.
        """
        if "//" in path:
            path = _SLASHES.sub("/", path)
        path = path.removesuffix("/")
        by_method = self._exact.get(path)
        found = by_method and (by_method.get(method) or by_method.get(_ANY))
        if not found and self._by_count:
            found = self._match_template(method, path)
        if not found and self._lengths:
            found = self._match_prefix(method, path)
        return found or self._star.get(method) or self._star.get(_ANY)

    def of(self, intent: Intent) -> Endpoint | None:
        """The endpoint that an intent falls under today. Its path is kept as it came over the wire (A-01)."""
        path = intent.path
        return self.match(intent.method, unquote(path) if "%" in path else path)

    def _match_template(self, method: str, path: str) -> Endpoint | None:
        candidates = self._by_count.get(path.count("/"))
        if candidates is None:
            return None
        segments = path.split("/")[1:]
        for template, by_method in candidates:
            if _fits(template, segments) and (found := _for_method(by_method, method)):
                return found
        return None

    def _match_prefix(self, method: str, path: str) -> Endpoint | None:
        for length in self._lengths:
            if len(path) == length or path[length : length + 1] == "/":
                found = _for_method(self._prefixes.get(path[:length]), method)
                if found:
                    return found
        return None

    def _enrol(self, key: str, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            _refuse(key, "its value is not a Policy")
        method, pattern = _split(key)
        by_method, path = self._place(key, pattern)
        if method in by_method:
            _refuse(key, f"it means the same as {by_method[method].name!r}")
        endpoint = Endpoint(key, policy, path)
        by_method[method] = endpoint
        self._all.append(endpoint)

    def _place(self, key: str, pattern: str) -> tuple[_ByMethod, str]:
        """Where the endpoints of a pattern are kept, by method, and what it spells of a path."""
        if pattern == _STAR:
            return self._star, ""
        segments = _segments(key, pattern.removesuffix(_REST if pattern.endswith(_REST) else "/"))
        path = "".join(f"/{segment or '{}'}" for segment in segments)
        if pattern.endswith(_REST):
            if _HOLE in segments:
                _refuse(key, "a prefix has no {} in it")
            return self._prefixes.setdefault(path, {}), path
        if _HOLE in segments:
            return self._templates.setdefault(segments, {}), path
        return self._exact.setdefault(path, {}), path


def _as_mapping(policies: Policies) -> Mapping[str, Policy]:
    if isinstance(policies, Policy):
        return {_STAR: policies}
    if not isinstance(policies, Mapping):
        raise ConfigError("policies are a Policy, or a mapping of endpoints to policies", code="bad_policy")
    if not policies:  # Everything would run unprotected, and no error would say so.
        raise ConfigError('policies are empty: name an endpoint, or "*" for all of them', code="bad_policy")
    return policies


def _split(key: str) -> tuple[str, str]:
    found = _KEY.fullmatch(str(key))
    if found is None:
        _refuse(key, 'it must look like "POST /orders", "/orders/{id}", "/reports/*" or "*"')
    method, pattern = found.groups(default=_ANY)
    if method in NEVER_REGISTERED:
        _refuse(key, f"{method} is never registered")
    return method, pattern


def _segments(key: str, path: str) -> _Segments:
    """The segments of a pattern's path, decoded, a hole for each ``{name}``. The root has none."""
    return tuple(part for text in path.split("/")[1:] for part in _decoded(key, _segment(key, text)))


def _decoded(key: str, segment: str) -> list[str]:
    """A literal as the router sees it: an encoded slash ends a segment like any other."""
    if segment == _HOLE:
        return [_HOLE]
    parts = unquote(segment).split("/")
    if not all(parts):
        _refuse(key, "a segment is never empty")
    return parts


def _segment(key: str, text: str) -> str:
    if _NAME.fullmatch(text):
        return _HOLE
    if text.startswith(":"):  # A hole in other routers, a literal here: it would match nothing, without any error.
        _refuse(key, f"write {{{text[1:]}}} for {text!r}")
    if not _LITERAL.fullmatch(text):
        # No query, no star in the middle, no empty segment, and a template is a whole segment.
        _refuse(key, f"{text!r} is neither a literal segment nor a {{name}}")
    return text


def _by_count(templates: dict[_Segments, _ByMethod]) -> dict[int, list[tuple[_Segments, _ByMethod]]]:
    """Templates by their number of segments, the most specific first."""
    found: dict[int, list[tuple[_Segments, _ByMethod]]] = {}
    for segments in sorted(templates, key=_specificity):
        found.setdefault(len(segments), []).append((segments, templates[segments]))
    return found


def _specificity(segments: _Segments) -> tuple[list[bool], _Segments]:
    """Literal before hole, the first difference decides; two that never meet are in alphabetical order."""
    return [segment == _HOLE for segment in segments], segments


def _fits(template: _Segments, segments: list[str]) -> bool:
    """Whether each segment is the literal one, or fills a hole."""
    return all(
        wanted == segment if wanted else bool(segment) for wanted, segment in zip(template, segments, strict=True)
    )


def _for_method(by_method: _ByMethod | None, method: str) -> Endpoint | None:
    if not by_method:
        return None
    return by_method.get(method) or by_method.get(_ANY)


def _refuse(key: object, why: str) -> NoReturn:
    raise ConfigError(f"endpoint {key!r}: {why}", code="bad_policy")
