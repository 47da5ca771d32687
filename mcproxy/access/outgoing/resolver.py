"""Resolves host names for aiohttp to public addresses alone (requirement R43), as `addresses` defines them."""

from __future__ import annotations

import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from mcproxy.egress.addresses import is_public


class PublicResolver(AbstractResolver):
    """Finds public addresses alone. The connection is made to the address found here: no second look-up can differ."""

    def __init__(self, resolver: AbstractResolver | None = None) -> None:
        self._resolver = resolver or aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises OSError if there is none."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [result for result in found if is_public(result["host"])]
        if not allowed:
            raise OSError(None, f"{host} has no public address")
        return allowed

    async def close(self) -> None:
        await self._resolver.close()
