"""Where a request goes, and which URLs beside it may be asked about it.

Ids are a credential pair: who holds both may confirm. So they go to the origin of the call and to no other (A-109).
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import idna

from twophp.wire.paths import CONFIRM_SUFFIX, bound_path, confirm_path

_PORTS: Final = {"http": 80, "https": 443}
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")  # With the underscore, which no DNS allows and Docker uses.


class Target(NamedTuple):
    """A URL in parts: scheme and authority without userinfo, the raw path, the query."""

    origin: str
    path: str
    query: str = ""

    @property
    def url(self) -> str:
        """All of it."""
        return f"{self.resource}?{self.query}" if self.query else self.resource

    @property
    def resource(self) -> str:
        """Without the query, which may hold anything: this is what ledgers and logs may know."""
        return self.origin + self.path

    @property
    def is_secure(self) -> bool:
        """Whether it is reached over TLS (draft §13.6)."""
        return self.origin.startswith("https:")

    @property
    def service(self) -> str:
        """The first label of the host. An address is whole and with its port, since its first number is no name."""
        authority = self.origin.partition("://")[2]
        host = authority.partition(":")[0]
        is_address = authority.startswith("[") or host.replace(".", "").isdecimal()
        return authority if is_address else host.partition(".")[0]

    def confirms_at(self, suffix: str = CONFIRM_SUFFIX) -> Target:
        """Where Phase 2 goes (A-01): derived from what was actually called, so that rewriting proxies work."""
        return Target(self.origin, confirm_path(self.path, suffix))

    def endpoint_of(self, service: str) -> str:
        """What both rows of the call have as ``service_endpoint`` (A-55)."""
        return f"{service}{bound_path(self.path) or '/'}"

    def status_at(self, method: str, location: str, resource_id: str) -> Target:
        """Where a poll goes (A-04): where the server said, else below a POST's path, else where the call went."""
        found = self.within(location) if location else None
        if found is not None:
            return found
        if method != "POST" or not resource_id:
            return self._replace(query="")
        return Target(self.origin, f"{bound_path(self.path)}/{quote(resource_id, safe='')}")

    def within(self, reference: str) -> Target | None:
        """What a Location names, seen from here; None if it leads to another origin or nowhere."""
        try:
            found = target_of(urljoin(self.url, reference))
        except ValueError:
            return None
        return found if found.origin == self.origin else None


def target_of(url: str) -> Target:
    """Take a URL apart. Raises ValueError if it has no host or a port that is none."""
    parts = urlsplit(url)
    scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    if not host:
        raise ValueError("a URL needs a host")
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port is None or port == _PORTS.get(scheme) else f"{shown}:{port}"
    return Target(f"{scheme}://{authority}", parts.path or "/", parts.query)


@lru_cache(maxsize=1_024)
def origin_of(text: str) -> str:
    """An origin in the one form in which two are compared: small letters, IDNA, no default port, no slash at the end.

    Raises ValueError that says what is wrong, without a quotation: userinfo may hold a password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("is no URL") from error
    rules = [
        (parts.scheme in _PORTS, "must begin with http:// or https://"),
        ("@" not in parts.netloc, "must not hold a user or a password"),
        (parts.path in ("", "/") and not any(mark in text for mark in "?#"), "must end after host and port"),
        (bool(parts.hostname), "must name a host"),
        (port != 0 and not parts.netloc.endswith(":"), "must name a port after the colon"),
        (text.isprintable() and not any(map(str.isspace, text)), "must not hold blanks"),
    ]
    for holds, problem in rules:
        if not holds:
            raise ValueError(problem)
    host = _host(parts.hostname or "", is_address="[" in parts.netloc)
    return f"{parts.scheme}://{host}" if port in (None, _PORTS[parts.scheme]) else f"{parts.scheme}://{host}:{port}"


def _host(name: str, *, is_address: bool) -> str:
    try:
        if is_address:
            return f"[{IPv6Address(name).compressed}]"
        host = name if name.isascii() else idna.encode(name, uts46=True).decode("ascii")
    except ValueError as error:  # idna's errors are such, too.
        raise ValueError("names no host that can be called") from error
    if not all(map(_is_label, host.removesuffix(".").split("."))):
        raise ValueError("names no host that can be called")
    return host


def _is_label(label: str) -> bool:
    return _LABEL.fullmatch(label) is not None and label[0] != "-" and label[-1] != "-"
