"""Networks as an operator writes them into a setting, parsed in the same way for every setting.

An address or a network is a text, or an object of ``ipaddress``. One stands for a list of one. Numbers and bytes are
refused: to ``ip_network``, 10 is 0.0.0.10.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any, Final, TypeAlias

from twophp.core.errors import ConfigError
from twophp.core.settings import several

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Written: TypeAlias = str | Address | Network
Networks: TypeAlias = Written | Iterable[Written]

_OBJECTS: Final = (IPv4Address, IPv6Address, IPv4Network, IPv6Network)


def entries_of(name: str, given: Any, *, code: str) -> tuple[Any, ...]:
    """The entries of the setting ``name``, not parsed yet. A network is one entry, not the list of its addresses."""
    return (given,) if isinstance(given, _OBJECTS) else several(name, given, code)


def network_of(name: str, entry: Any, *, code: str) -> Network:
    """Parse one entry of the setting ``name``. Raises ConfigError with the caller's ``code``."""
    if not isinstance(entry, (str, *_OBJECTS)):
        raise ConfigError(f"{name}: not an address or network: {entry!r}; write it as a text", code=code)
    try:
        return ip_network(entry)
    except ValueError as error:
        raise ConfigError(f"{name}: {_what_is_wrong(entry)}", code=code) from error


def _what_is_wrong(entry: Any) -> str:
    try:
        whole = ip_network(entry, strict=False)
    except ValueError as error:
        return f"not an address or network: {entry!r}; {error}"
    one = str(entry).partition("/")[0]
    return f"{entry!r} is one address with the length of a network; write {str(whole)!r} for all of it, or {one!r}"
