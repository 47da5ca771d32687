"""Names that are resolved to public addresses alone."""

from __future__ import annotations

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from mcproxy.access.outgoing.resolver import PublicResolver


class Names(AbstractResolver):
    """Resolves every name to the same addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self.addresses
        ]

    async def close(self) -> None:
        return


@pytest.mark.anyio
async def test_r43_of_the_addresses_of_a_name_public_ones_alone_are_used() -> None:
    found = await PublicResolver(Names("10.0.0.1", "8.8.8.8", "64:ff9b::a00:1")).resolve("mixed.example", 443)
    assert [result["host"] for result in found] == ["8.8.8.8"]


@pytest.mark.anyio
async def test_r43_a_name_without_a_public_address_is_not_found() -> None:
    with pytest.raises(OSError, match=r"private\.example has no public address"):
        await PublicResolver(Names("2002:a9fe:a9fe::1")).resolve("private.example", 443)
