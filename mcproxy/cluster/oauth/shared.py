"""What replicas share of OAuth toward upstreams, put together: grants, where they are renewed, logins under way.

Made before the upstreams, which use it; it learns of the other replicas once this one joins them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from anyio.abc import TaskGroup

from mcproxy.cluster.envelope import Envelopes
from mcproxy.cluster.events import ClusterEvent, GrantChanged, append
from mcproxy.cluster.hop import Hops
from mcproxy.cluster.oauth.grants import SharedGrants
from mcproxy.cluster.oauth.logins import SharedLogins
from mcproxy.cluster.oauth.renewals import Renewals, RenewingMembers
from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.cluster.store.redis_store import opened_store, store_at
from mcproxy.sealing import Sealer
from mcproxy.settings import Cluster
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import GrantKey
from mcproxy.upstream.oauth.logins import FindLogins, UpstreamLogins
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed

COMMAND_TIMEOUT: Final = 5.0
"""Seconds that the store has to answer a command of a person, who would rather wait than try again."""


class SharedOAuth:
    """Implements `invalidation.GrantMemory` too."""

    def __init__(self, store: Store, sealer: Sealer, metrics: Metrics) -> None:
        self.store: Final = store
        self.grants: Final = SharedGrants(store, sealer)
        self.renewals: Final = Renewals(store, sealer, self.grants, metrics)
        self.logins: Final = SharedLogins(store, sealer)
        self._find_logins: FindLogins = _no_logins
        self._tasks: TaskGroup | None = None

    def serve_with(
        self,
        members: RenewingMembers,
        envelopes: Envelopes,
        hops: Hops,
        find_logins: FindLogins,
        tasks: TaskGroup,
        absence: float,
        tell: Callable[[ClusterEvent], None],
    ) -> None:
        """`absence` is as in `Renewals.serve_with`; `tell` tells the other replicas, and never blocks."""
        self._find_logins, self._tasks = find_logins, tasks
        self.renewals.serve_with(members, envelopes, hops, self._flow, absence)
        self.grants.tell = lambda key: tell(GrantChanged(*key))

    def on_change(self, upstream: str, principal: str) -> None:
        self.grants.note_change(GrantKey(upstream, principal))
        logins = self._find_logins(upstream)
        if self._tasks is not None:
            # At once: a call may wait for this login, and one that was taken back ends here too.
            self._tasks.start_soon(self._take_over, logins, GrantKey(upstream, principal))

    async def _take_over(self, logins: UpstreamLogins | None, key: GrantKey) -> None:
        with suppress(StoreFailed):
            await self.grants.load(key)  # It remembers what was taken back, whoever uses it here.
        if logins is not None:
            await logins.take_over(key.principal)

    def on_gap(self) -> None:
        self.grants.note_gap()

    def _flow(self, upstream: str) -> OAuthFlow | None:
        logins = self._find_logins(upstream)
        return None if logins is None else logins.flow


def shared_oauth(cluster: Cluster, sealer: Sealer, metrics: Metrics) -> SharedOAuth:
    """Over the store of the settings, which is connected to when it is first used."""
    assert cluster.redis is not None
    store = store_at(cluster.redis, cluster.timeout, metrics.cluster_store_failures.inc)
    return SharedOAuth(store, sealer, metrics)


@asynccontextmanager
async def grants_of_replicas(cluster: Cluster, sealer: Sealer) -> AsyncIterator[GrantStore]:
    """The grants that replicas share, for a command: what it changed is told to them at the end. Raises StoreFailed."""
    assert cluster.redis is not None
    async with opened_store(cluster.redis, max(cluster.timeout, COMMAND_TIMEOUT)) as store:
        grants = SharedGrants(store, sealer)
        changed: list[ClusterEvent] = []
        grants.tell = lambda key: changed.append(GrantChanged(*key))
        try:
            yield grants
            await grants.settle()
        finally:
            if changed:
                try:
                    await append(store, sealer, changed)
                except StoreUnavailable as error:
                    raise StoreFailed("the other replicas could not be told: they keep what they had") from error


def _no_logins(upstream: str) -> UpstreamLogins | None:
    return None
