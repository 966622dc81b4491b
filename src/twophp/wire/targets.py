"""Where a request goes, and which of its neighbours may be asked about it.

Ids are a credential pair: who holds both may confirm. So they go to the origin of the call and to no other (A-109).
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from twophp.wire.paths import CONFIRM_SUFFIX, bound_path, confirm_path

_PORTS: Final = {"http": 80, "https": 443}


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
        """The first label of the host; an address, whole and with its port: its first number names nobody."""
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
