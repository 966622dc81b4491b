"""Which addresses an outgoing call may go to: a deny list of our own (A-65).

``ipaddress.is_global`` answers another question (what may be routed) and changes with every Python release; it lets
through 64:ff9b::/96 and 2002::/16 with any IPv4 address inside, the metadata services at 192.0.0.192 and
168.63.129.16, ::127.0.0.1, fec0::/10 and most multicast. So the rules are spelled out here:

    IPv4    everything is public except the blocks of ``DENIED_V4``
    IPv6    nothing is public except 2000::/3, and of that not the blocks of ``DENIED_V6``
    both    an IPv4 address inside an IPv6 address is judged too: a router on the way may unwrap it

Two forms are nothing but another spelling of an IPv4 address, and are judged as it alone: ::ffff:0:0/96, which the
kernel itself unwraps, and 64:ff9b::/96, which is all that a resolver in an IPv6-only network returns for an IPv4 host.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from twophp.core.networks import Address, Network

DENIED_V4: Final = {
    IPv4Network("0.0.0.0/8"): "this_network",  # Linux connects 0.0.0.0 to itself.
    IPv4Network("10.0.0.0/8"): "private",
    IPv4Network("100.64.0.0/10"): "shared",  # Carrier-grade NAT; Alibaba's metadata service is 100.100.100.200.
    IPv4Network("127.0.0.0/8"): "loopback",
    IPv4Network("168.63.129.16/32"): "metadata",  # Azure's wire server, in the middle of public space.
    IPv4Network("169.254.0.0/16"): "link_local",  # 169.254.169.254 is most clouds' metadata service.
    IPv4Network("172.16.0.0/12"): "private",
    IPv4Network("192.0.0.0/24"): "protocol",  # Oracle's metadata service is 192.0.0.192.
    IPv4Network("192.0.2.0/24"): "documentation",
    IPv4Network("192.31.196.0/24"): "as112",
    IPv4Network("192.52.193.0/24"): "multicast_relay",
    IPv4Network("192.88.99.0/24"): "6to4_relay",
    IPv4Network("192.168.0.0/16"): "private",
    IPv4Network("192.175.48.0/24"): "as112",
    IPv4Network("198.18.0.0/15"): "benchmarking",
    IPv4Network("198.51.100.0/24"): "documentation",
    IPv4Network("203.0.113.0/24"): "documentation",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv4Network("240.0.0.0/4"): "reserved",  # With 255.255.255.255, the broadcast address.
}

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""The only IPv6 space IANA hands out to networks. Loopback, unique local (fd00:ec2::254, the metadata service of AWS,
is one), link-local, site-local, multicast, discard, segment routing and IPv4-compatible addresses are all outside."""

DENIED_V6: Final = {
    IPv6Network("2001::/23"): "protocol",  # Teredo, ORCHID, benchmarking, anycast services.
    IPv6Network("2001:db8::/32"): "documentation",
    IPv6Network("2002::/16"): "6to4",
    IPv6Network("2620:4f:8000::/48"): "as112",
    IPv6Network("3ffe::/16"): "6bone",  # Returned to IANA: a network that announces it does not own it.
    IPv6Network("3fff::/20"): "documentation",
}

LOOPBACK: Final[tuple[Network, ...]] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOW_32: Final = 0xFFFF_FFFF


def read_address(text: str) -> Address | None:
    """Read what a resolver said. A zone id ties an address to one of our own interfaces, so it is no address."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def denied(address: Address, allowed: tuple[Network, ...] = ()) -> str | None:
    """Why nothing may go to this address, or None if it is public or in one of the ``allowed`` networks.

    Only the operator may name ``allowed`` networks. The address that the packet ends at is looked for in them, so
    ::ffff:10.0.0.1 is in 10.0.0.0/8.
    """
    address = _plain(address)
    if any(address in network for network in allowed):
        return None
    return _denied_v4(address) if isinstance(address, IPv4Address) else _denied_v6(address)


def is_loopback(address: Address) -> bool:
    """Whether this is our own machine, in any spelling."""
    address = _plain(address)
    return any(address in network for network in LOOPBACK)


def _denied_v4(address: IPv4Address) -> str | None:
    return next((why for network, why in DENIED_V4.items() if address in network), None)


def _denied_v6(address: IPv6Address) -> str | None:
    if address not in GLOBAL_UNICAST:
        return "not_global_unicast"
    why = next((why for network, why in DENIED_V6.items() if address in network), None)
    if why is not None:
        return why
    inner = _isatap(address)
    return None if inner is None else _denied_v4(inner)


def _plain(address: Address) -> Address:
    """The IPv4 address, where the IPv6 address is but a way to write it."""
    if address in _MAPPED or address in _NAT64:
        return IPv4Address(int(address) & _LOW_32)
    return address


def _isatap(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an ISATAP router would tunnel to (RFC 5214): any prefix, then 0:5efe, then the address."""
    low = int(address) & 0xFFFF_FFFF_FFFF_FFFF
    return IPv4Address(low & _LOW_32) if low >> 32 in _ISATAP else None
