"""Replace the secret that state is sealed under while the gateway runs: in new values at once, then in files.

A secret is replaced in three steps, each a reload: `[old, new]` if several replicas must first all know it, `[new,
old]`, and `[new]` once nothing that the old one sealed is in use.
"""

from __future__ import annotations

import structlog

from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.sealing import Sealer
from mcproxy.service.state import secret_keys
from mcproxy.settings import Settings
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed

log = structlog.get_logger()


class SecretRotation:
    """Keeps a sealer, and the file of grants, at the secrets of the settings in force."""

    def __init__(self, settings: Settings, sealer: Sealer, grants: GrantStore) -> None:
        self._secrets = settings.proxy.secret
        self._sealer = sealer
        self._grants = grants
        self._replaced = Wakeup()

    def reconfigure(self, settings: Settings) -> None:
        """Seals with the first of the new secrets from now on. Never blocks."""
        before, self._secrets = self._secrets, settings.proxy.secret
        if self._secrets == before:
            return
        if not set(before[:1]) & set(self._secrets):
            log.warning(
                "what clients carry from before this reload is refused: the secret that sealed it is no longer listed",
                remedy="list it behind the new one: proxy.secret: [new, old]",
            )
        self._sealer.reconfigure(*secret_keys(settings))
        self._replaced.notify_all()

    async def run(self) -> None:
        """Reseals the file of grants at the start and after each change, until cancelled."""
        renewed: tuple[str, ...] | None = None
        while True:
            while renewed == self._secrets:
                await self._replaced.wait()
            renewed = self._secrets
            try:
                await self._grants.renew()
            except StoreFailed as error:
                log.warning("grants stay under the secret that they were sealed with", why=str(error))
