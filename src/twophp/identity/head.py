"""A request's head as ``identify`` and the guards see it, and the scheme it really came by.

An edge (ASGI, WSGI, gateway) builds one ``Head`` per opted-in request, before it reads any of the body (A-16).
Everything a helper may ask for is in it, the time of arrival too: requests are judged by when they arrived, so no
helper needs a clock of its own (A-20).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.networks import Address, Network, Networks, entries_of, network_of
from twophp.core.records import Instant

T = TypeVar("T")
Scheme: TypeAlias = Literal["http", "https"]
Peer: TypeAlias = tuple[str, int]

UNIX: Final = "unix"
"""Stands for a peer without an address among the trusted proxies: a proxy that connects through a Unix socket."""


class Headers(Mapping[str, str]):
    """Header fields by name in any case, decoded when first asked for.

    A field that was sent several times reads as its values joined by a comma (RFC 9110 §5.3), which is also what a
    WSGI server makes of it: no helper can be made to see only the first or only the last. ``getall`` has the lines.
    """

    __slots__ = ("_index", "_raw")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = raw if isinstance(raw, list | tuple) else tuple(raw)
        self._index: dict[bytes, list[str]] | None = None

    def __getitem__(self, name: str) -> str:
        lines = self.getall(name)
        if not lines:
            raise KeyError(name)
        return ", ".join(lines)

    @overload
    def get(self, name: str, default: None = None) -> str | None: ...

    @overload
    def get(self, name: str, default: str | T) -> str | T: ...

    def get(self, name: str, default: object = None) -> object:
        """As of any mapping; the inherited one would raise and catch a KeyError for every field that is not there."""
        lines = self.getall(name)
        return default if not lines else lines[0] if len(lines) == 1 else ", ".join(lines)

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._indexed())

    def __len__(self) -> int:
        return len(self._indexed())

    def getall(self, name: str) -> list[str]:
        """The field's lines in the order they came, none if it was not sent."""
        key = _key(name)
        if self._index is not None:
            return list(self._index.get(key, ()))
        length, lines = len(key), []
        for found, value in self._raw:  # Length first: most names are ruled out without a copy.
            if len(found) == length and found.lower() == key:
                lines.append(_text(value))
        return lines

    def _indexed(self) -> dict[bytes, list[str]]:
        """All fields at once. Most helpers ask for one or two, and looking for those is cheaper than this."""
        if self._index is None:
            index: dict[bytes, list[str]] = {}
            for name, value in self._raw:
                index.setdefault(name.lower(), []).append(_text(value))
            self._index = index
        return self._index

    def __repr__(self) -> str:
        return f"<Headers {', '.join(self)}>"  # Names only: values are credentials, and a repr ends up in a log.


@lru_cache(maxsize=256)  # Only our code and the service's name fields, and these are few.
def _key(name: str) -> bytes:
    return name.encode("latin-1", "replace").lower()  # What is not latin-1 becomes "?", which no name has.


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip(" \t")


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows of the client's certificate."""

    subject: str = ""  # The distinguished name, as RFC 4514 writes it.
    chain: tuple[str, ...] = ()  # PEM, the client's own certificate first.
    error: str = ""  # Why the certificate was not accepted; empty when it was, or when there is none.


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its body."""

    method: str
    path: str  # Raw: still percent-encoded, without the query.
    headers: Headers
    scheme: str  # The server's own view of it; ``effective_scheme`` knows about proxies.
    received_at: Instant  # When the head arrived, by the clock the store uses as well.
    client: Peer | None = None  # Who connected, which may be a proxy. None without an address.
    tls: Tls | None = None
    scope: Mapping[str, Any] = {}  # The ASGI scope, or the WSGI environ.
    wall_ahead_ms: int = 0  # How far the machine's clock, which may be set, is ahead of the store's time.

    def by_wall(self, at: Instant) -> Instant:
        """An instant of the store's time as the machine's clock shows it: tokens and signatures are judged by that."""
        return at + self.wall_ahead_ms

    def __repr__(self) -> str:
        return f"<Head {self.method} {self.path}>"  # The scope holds the raw headers: see Headers.


def tls_facts(extension: Mapping[str, Any]) -> Tls:
    """The facts out of what ASGI's TLS extension reports (``scope["extensions"]["tls"]``)."""
    return Tls(
        subject=extension.get("client_cert_name") or "",
        chain=tuple(extension.get("client_cert_chain") or ()),
        error=extension.get("client_cert_error") or "",
    )


class Proxies(msgspec.Struct, frozen=True):
    """The peers whose word about a request's origin is taken."""

    networks: tuple[Network, ...] = ()
    unix: bool = False

    def trust(self, peer: Peer | None) -> bool:
        """Whether the peer is one of them. Nothing a request says about itself plays a part."""
        if peer is None or not peer[0]:
            return self.unix
        if not self.networks:
            return False
        address = _address(peer[0])
        return address is not None and any(address in network for network in self.networks)


NO_PROXIES: Final = Proxies()
TRUSTED: Final = "trusted_proxies"
BAD_PROXY: Final = "bad_proxy"


def proxies(addresses: Networks) -> Proxies:
    """The proxies of a service: addresses, networks, or ``"unix"``. Raises ConfigError on anything else."""
    entries = entries_of(TRUSTED, addresses, code="bad_setting")
    return Proxies(
        networks=tuple(_network(entry) for entry in entries if entry != UNIX),
        unix=UNIX in entries,
    )


def _network(entry: object) -> Network:
    network = network_of(TRUSTED, entry, code=BAD_PROXY)
    if network.prefixlen == 0:
        # A-64 wants *configured* addresses. To trust every peer is to let every client name its own scheme.
        raise ConfigError(f"{TRUSTED}: trusting every address trusts every client: {entry!r}", code=BAD_PROXY)
    return network


def _address(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None  # A test client's name, or an empty one: no address.
    # A dual-stack socket shows an IPv4 peer as ::ffff:192.0.2.1; it is the same peer.
    return getattr(address, "ipv4_mapped", None) or address


def effective_scheme(head: Head, trusted: Proxies = NO_PROXIES) -> Scheme:
    """How the client's request travelled; anything but a clear ``https`` is ``http`` (A-64).

    The server's own scheme counts. A peer among the trusted proxies may correct it, either way, in ``Forwarded``
    (RFC 7239) or ``X-Forwarded-Proto``: each proxy adds its own hop at the end, so

    * the last hop must say ``https``. It is the only one that the trusted peer itself has written;
    * no earlier hop may say anything else. It may be forged, but a forger can only talk himself out of it;
    * the two fields must not contradict each other, and what cannot be read is not ``https``.

    A proxy has to append to these fields or to replace them. One that passes them through unchanged is no proxy to
    trust.
    """
    own: Scheme = "https" if head.scheme.lower() == "https" else "http"
    if not trusted.trust(head.client):
        return own
    said = [*_said_by_forwarded(head), *_said_by_x_forwarded_proto(head)]
    if not said:
        return own
    return "https" if all(said) else "http"


def _said_by_x_forwarded_proto(head: Head) -> list[bool]:
    value = head.headers.get("x-forwarded-proto")
    return [] if value is None else [hop.strip(" \t").lower() == "https" for hop in value.split(",")]


def _said_by_forwarded(head: Head) -> list[bool]:
    value = head.headers.get("forwarded")
    if value is None:
        return []
    hops = _forwarded_protos(value)
    if hops is None:
        return [False]
    if not any(hops):
        return []  # The field is about addresses only.
    return [hops[-1] == "https", *(hop == "https" for hop in hops if hop)]


# One ``name=value`` of RFC 7239 §4 with what ends it. The alternatives of every repeat are disjoint, so a match takes
# linear time. Values are taken as they come (many proxies do not quote ``for=192.0.2.1:80``), but a quote must be
# closed: one left open by a client would swallow what the proxy appended.
_PAIR: Final = re.compile(r'[ \t]*(?:([\w!#$%&\'*+.^`|~-]+)=([^\s",;]+|"(?:[^"\\]|\\.)*"))?[ \t]*([;,]|\Z)', re.ASCII)
_MAX_FORWARDED: Final = 4096


def _forwarded_protos(value: str) -> list[str] | None:
    """The ``proto`` of each hop, empty where it names none. None when the field cannot be read."""
    if len(value) > _MAX_FORWARDED:
        return None
    hops, at = [""], 0
    while True:
        pair = _PAIR.match(value, at)
        if pair is None:
            return None
        name, text, end = pair.groups(default="")
        if name.lower() == "proto":
            if hops[-1]:
                return None  # RFC 7239 §4: "Each parameter MUST NOT occur more than once per field-value."
            hops[-1] = text.strip('"').lower() or "?"
        if not end:
            return hops
        if end == ",":
            hops.append("")
        at = pair.end()
