"""Which URLs an outgoing call may be made to, judged by their text alone (A-65).

There is one reader of URLs here, and what it does not understand it refuses. Nothing is repaired, stripped or
normalised except the case of scheme and host: every known trick lives in two parsers that repair differently.

    scheme    https; http only to loopback, and only where tests and demos say so
    userinfo  none: ``https://good.example@127.0.0.1`` goes to 127.0.0.1
    host      a name of ASCII letters, digits and hyphens with at least one dot, or an address in its one plain
              spelling: 0x7f.1, 017700000001, 2130706433 and 127.1 are all 127.0.0.1 to getaddrinfo
    port      on the list
    rest      the characters of RFC 3986, so nothing ends a line; no fragment
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, Final, cast

import msgspec
from msgspec.structs import force_setattr

from twophp.core.errors import ConfigError, EgressRefused
from twophp.core.networks import Address, Network, Networks, entries_of, network_of
from twophp.core.settings import SettingsStruct
from twophp.delivery.egress_addresses import LOOPBACK, denied, is_loopback, read_address

MAX_URL_CHARS: Final = 2048
MAX_NAME_CHARS: Final = 253
MAX_PORT: Final = 65_535
HTTPS_PORT: Final = 443
HTTP_PORT: Final = 80

RESERVED_NAMES: Final = frozenset(
    {
        "localhost",  # RFC 6761
        "invalid",
        "onion",  # RFC 7686
        "local",  # RFC 6762
        "internal",  # ICANN, 2024; the metadata service of GCP has such a name.
        "home.arpa",  # RFC 8375
        # RFC 6762, appendix G: what private networks call themselves.
        "intranet",
        "private",
        "corp",
        "home",
        "lan",
    }
)
"""Names, with everything below them, that lead nowhere or inwards."""

# Three parts that share no character at their borders, so that there is only one way to match. What the authority
# may hold is judged piece by piece below: a refusal then names its reason.
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15})://([^/?#]*)(.*)", re.DOTALL)
_REST: Final = re.compile(r"(?:[/?][A-Za-z0-9._~:/?@!$&'()*+,;=%\[\]-]*)?")
_AUTHORITY: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_LABEL: Final = re.compile(r"[a-z0-9-]{1,63}")
_HOST_RULE: Final = re.compile(r"(?:\*\.)?[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*|[0-9a-f:.]*:[0-9a-f:.]*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Rules(SettingsStruct, frozen=True, kw_only=True):
    """What the operator lets out. A rule that cannot work raises ConfigError now and not at the first call."""

    bad_code: ClassVar[str] = "bad_egress"

    ports: int | Collection[int] = frozenset({HTTPS_PORT})
    # None lets every public name through. ``*.example.com`` is everything below example.com, but not itself.
    hosts: Collection[str] | None = None
    # Networks of the operator's own that calls may go to though they are not public: "10.0.0.0/8", or ip_network's.
    networks: Networks = ()
    # For tests and demos: our own machine, with or without TLS, on any port.
    allow_insecure_loopback: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "ports", frozenset(_port(port) for port in _several("ports", self.ports)))
        if self.hosts is not None:
            force_setattr(self, "hosts", frozenset(_host_rule(host) for host in _several("hosts", self.hosts)))
        networks = entries_of("networks", self.networks, code="bad_egress")
        force_setattr(self, "networks", tuple(network_of("networks", one, code="bad_egress") for one in networks))
        if not isinstance(self.allow_insecure_loopback, bool):  # "no" would open what it is meant to close.
            message = f"allow_insecure_loopback must be True or False, not {self.allow_insecure_loopback!r}"
            raise ConfigError(message, code="bad_egress")


def _several(name: str, given: Any) -> Collection[Any]:
    """One text stands for itself and not for its letters, and one number for itself."""
    if isinstance(given, str | int):
        return (given,)
    if not isinstance(given, Collection) or isinstance(given, bytes):
        raise ConfigError(f"{name} cannot be {given!r}; write one, or a list of them", code="bad_egress")
    return given


def _port(given: object) -> int:
    if type(given) is not int or not 0 < given <= MAX_PORT:
        raise ConfigError(f"not a port that can be called: {given!r}", code="bad_egress")
    return given


def _host_rule(given: object) -> str:
    rule = given.lower() if isinstance(given, str) else ""
    if not _HOST_RULE.fullmatch(rule):
        raise ConfigError(f"not a name, an address, nor *. and a domain: {given!r}", code="bad_egress")
    return rule


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call may go, as far as its URL tells. Only ``check_url`` makes one."""

    tls: bool
    host: str  # Lower case, without brackets.
    address: Address | None  # The host, where it is an address; then nothing is resolved.
    port: int
    path: str  # With the query.
    loopback_only: bool  # Let through only because loopback is: no other address will do.
    rules: Rules

    @property
    def authority(self) -> str:
        """What the Host field says (RFC 9110 §7.2)."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == (HTTPS_PORT if self.tls else HTTP_PORT) else f"{host}:{self.port}"

    @property
    def allowed(self) -> tuple[Network, ...]:
        """The networks that need not be public."""
        own = cast("tuple[Network, ...]", self.rules.networks)
        return (*own, *LOOPBACK) if self.rules.allow_insecure_loopback else own


def check_url(url: str, *, rules: Rules) -> Target:
    """Read and judge a URL by its text, without a look-up; raises EgressRefused.

    Its address is not judged, though it may be in the text: that is done when the call is made, for names and numbers
    alike, so that no client learns from an earlier answer which addresses are let through.
    """
    scheme, authority, rest = _split(url)
    tls = scheme == "https"
    if not tls and not (scheme == "http" and rules.allow_insecure_loopback):
        raise refused("scheme")
    host, port = _host_and_port(authority, HTTPS_PORT if tls else HTTP_PORT)
    address = _literal(host)
    name = host.strip("[]").lower()
    if address is None:
        _check_name(name)
    target = Target(
        tls=tls,
        host=name if address is None else str(address),
        address=address,
        port=port,
        path=rest if rest.startswith("/") else f"/{rest}",
        loopback_only=not tls or port not in cast("frozenset[int]", rules.ports) or _is_localhost(name),
        rules=rules,
    )
    _check_rules(target)
    return target


def refused(reason: str) -> EgressRefused:
    """The same message for every reason, for people who may see it; the reason tells them what to change."""
    return EgressRefused(f"The egress gate lets nothing out to this URL: {reason}.", reason=reason)


def check_address(target: Target, address: Address | None) -> Address:
    """Judge one address that the target's host stands for; raises EgressRefused."""
    if address is None or denied(address, target.allowed) is not None:
        raise refused("address")
    if target.loopback_only and not is_loopback(address):
        raise refused("not_loopback")
    return address


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, authority and the rest, of nothing but visible ASCII."""
    if len(url) > MAX_URL_CHARS:
        raise refused("too_long")
    if not url.isascii():  # An IDN comes as A-labels: circled digits and 。 would be folded to digits and dots.
        raise refused("not_ascii")
    if not url.isprintable() or " " in url or "\\" in url:  # Many parsers drop CR, LF and tab, and read \ as /.
        raise refused("bad_character")
    match = _URL.fullmatch(url)
    if match is None:
        raise refused("not_a_url")
    if "#" in match[3]:
        raise refused("fragment")
    if not _REST.fullmatch(match[3]):
        raise refused("bad_character")
    return match[1].lower(), match[2], match[3]


def _host_and_port(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority:
        raise refused("userinfo")
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not match[1]:
        raise refused("authority")
    port = default if match[2] is None else int(match[2])
    if not 0 < port <= MAX_PORT:
        raise refused("port")
    return match[1], port


def _literal(host: str) -> Address | None:
    """The address that a host spells, or None for a name. Other spellings that getaddrinfo reads are refused."""
    if host.startswith("["):
        address = read_address(host[1:-1])
        if not isinstance(address, IPv6Address):
            raise refused("ip_literal")
        return address
    if not _NUMBER.fullmatch(host.lower().rstrip(".").rpartition(".")[2]):
        return None  # No top-level domain is a number, so this is a name (WHATWG URL, "ends in a number").
    literal = read_address(host)  # Four decimal numbers without leading zeros, nothing else.
    if not isinstance(literal, IPv4Address):
        raise refused("ip_literal")
    return literal


def _check_name(name: str) -> None:
    """A host name as certificates have it: no underscore, no empty label, so no dot at the end either."""
    labels = name.split(".")
    if len(name) > MAX_NAME_CHARS or not all(map(_is_label, labels)):
        raise refused("name")
    if len(labels) == 1 and not _is_localhost(name):  # A search list would complete it with an inner domain.
        raise refused("single_label")


def _is_label(label: str) -> bool:
    plain = _LABEL.fullmatch(label) is not None and label[0] != "-" and label[-1] != "-"
    return plain and (not label.startswith("xn--") or _is_a_label(label))


def _is_a_label(label: str) -> bool:
    """Whether the punycode stands for something that no parser folds to something else, such as ``①`` to ``1``."""
    try:
        text = label[4:].encode("ascii").decode("punycode")
    except (UnicodeError, ValueError, OverflowError):
        return False
    return unicodedata.normalize("NFKC", text) == text


def _check_rules(target: Target) -> None:
    rules = target.rules
    if target.loopback_only and not rules.allow_insecure_loopback:
        raise refused("reserved_name" if _is_localhost(target.host) else "port")
    listed = rules.hosts is not None and _is_listed(target.host, rules.hosts)
    if rules.hosts is not None and not listed:
        raise refused("host")
    if not listed and not _is_localhost(target.host) and _is_reserved(target.host):
        raise refused("reserved_name")


def _is_localhost(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _is_reserved(name: str) -> bool:
    return any(above in RESERVED_NAMES for above in _above(name))


def _is_listed(name: str, hosts: Collection[str]) -> bool:
    return name in hosts or any(f"*.{above}" in hosts for above in _above(name)[1:])


def _above(name: str) -> list[str]:
    """The name and every domain it is in: ``a.b.c``, ``b.c``, ``c``."""
    labels = name.split(".")
    return [".".join(labels[start:]) for start in range(len(labels))]
