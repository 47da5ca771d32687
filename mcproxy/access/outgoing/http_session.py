"""A session of aiohttp's client that lives as long as its owner: made at the first request, closed with its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


class HttpSession:
    """A session of aiohttp, made when it is first used, since `make` needs a running event loop."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        self._make = make
        self._made: aiohttp.ClientSession | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has connections to close."""
        return self._made is not None

    def get(self) -> aiohttp.ClientSession:
        """The session for a request; call it while the event loop runs."""
        if self._made is None:
            self._made = self._make()
        return self._made

    async def aclose(self) -> None:
        """Closes the connections; a later request opens new ones."""
        if self._made is not None:
            made, self._made = self._made, None
            await made.close()
