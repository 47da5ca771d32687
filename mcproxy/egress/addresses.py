"""Loopback and public addresses: a host named by a server or an issuer is connected to only at the latter (R43).

An IPv6 address that stands for an IPv4 address (mapped, translated by NAT64, tunnelled by 6to4 or Teredo) is judged as
that one: the network turns a connection to it into one there.
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from typing import Final

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""RFC 6052, section 2.1: the last 32 bits are the IPv4 address."""
_NAT64_LOCAL: Final = ipaddress.ip_network("64:ff9b:1::/48")
"""RFC 8215: translated by the rules of the gateway's own network, which no address from outside may name."""
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
"""RFC 4291, section 2.5.5.1: deprecated, and still understood by some systems."""


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is loopback; an IPv6 address may stand in brackets (RFC 6761, section 6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(256)
def is_local(host: str) -> bool:
    """The same, for every spelling by which the system connects to this machine: `127.1`, `0.0.0.0`, `localhost.`."""
    address = address_of(host)
    if address is None:
        return is_loopback(host.rstrip(".").lower())
    return address.is_loopback or address.is_unspecified


def address_of(host: str) -> IPAddress | None:
    """The address that a host is, if it is no name: as the system reads it, without brackets, and IPv4 where mapped."""
    bare = host.strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        try:  # 127.1, 0x7f000001, 2130706433
            return ipaddress.IPv4Address(socket.inet_aton(bare)) if bare[:1].isdigit() and bare.isascii() else None
        except OSError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_address(host: str) -> bool:
    """Whether a URL's host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an IP address, and each that it stands for, is reachable from anywhere."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return _is_public(parsed)
    return parsed not in _NAT64_LOCAL and all(_is_public(each) for each in _meanings(parsed))


def _meanings(address: ipaddress.IPv6Address) -> list[IPAddress]:
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        return [last]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return [*address.teredo]
    return [address, last] if address in _COMPATIBLE else [address]


def _is_public(address: IPAddress) -> bool:
    return address.is_global and not address.is_multicast
