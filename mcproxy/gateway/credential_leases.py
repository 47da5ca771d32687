"""Leases on the links of principals and credentials: each ends when no call or listener uses it for long enough (R39).

A stateless caller never says that it leaves, so a lease lives while calls or listeners use it, and for an idle time
after. Holds keys alone, no credentials; returns the leases that are over, and ends no link itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from mcproxy.call.errors import McpError, Reason
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR


class Lease(msgspec.Struct):
    """The use of one key: by running calls, and when it was used last, in seconds."""

    principal: str
    used: float
    calls: int = 0
    introduced: bool = False


class CredentialLeases:
    """Leases by key. Takes the time, in seconds, as an argument."""

    def __init__(self, idle: float, most_of_principal: int) -> None:
        self._leases: dict[str, Lease] = {}
        self._of_principal: Counter[str] = Counter()
        self._begun = Wakeup()
        self.reconfigure(idle, most_of_principal)

    def reconfigure(self, idle: float, most_of_principal: int) -> None:
        """Takes another idle time, in seconds, and introduces every lease to the upstreams anew with its next call."""
        self.idle = idle
        self._most_of_principal = most_of_principal
        for lease in self._leases.values():
            lease.introduced = False

    async def begun(self) -> None:
        """Returns once there is any lease."""
        while not self._leases:
            await self._begun.wait()

    @contextmanager
    def used(self, key: str, principal: str, now: float) -> Iterator[bool]:
        """Holds a lease while a call lasts. Yields whether this is the first use since the settings changed.

        Raises McpError where the principal has too many leases already.
        """
        if key not in self._leases and self._of_principal[principal] >= self._most_of_principal:
            sentence = (
                f"all your {self._most_of_principal} sets of credentials for upstreams are in use "
                "(limits.max_credentials_per_principal); try again later"
            )
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        lease = self.keep(key, principal, now)
        is_new, lease.introduced = not lease.introduced, True
        lease.calls += 1
        try:
            yield is_new
        finally:
            lease.calls -= 1

    def keep(self, key: str, principal: str, now: float) -> Lease:
        """The lease, which begins now where there was none. `lapsed` counts listeners separately."""
        if key not in self._leases:
            self._leases[key] = Lease(principal, now)
            self._of_principal[principal] += 1
            self._begun.notify_all()
        self._leases[key].used = now
        return self._leases[key]

    def end(self, key: str) -> None:
        """Ends a lease that no call uses. Idempotent."""
        if key in self._leases and not self._leases[key].calls:
            self._drop(key)

    def lapsed(self, heard: Iterable[str], now: float) -> list[str]:
        """Removes and returns the leases that were idle for too long and that no listener uses (`heard`)."""
        for key in heard:
            if key in self._leases:
                self._leases[key].used = now
        over = [key for key, lease in self._leases.items() if not lease.calls and lease.used < now - self.idle]
        for key in over:
            self._drop(key)
        return over

    def _drop(self, key: str) -> None:
        principal = self._leases.pop(key).principal
        self._of_principal[principal] -= 1
        if not self._of_principal[principal]:
            del self._of_principal[principal]
