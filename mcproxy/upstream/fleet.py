"""All upstreams that run; a reload starts, changes and retires only those that differ (requirement R49).

An upstream whose settings compare equal is not touched. Waits for no upstream: a retired one ends with its last call,
in a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from mcproxy.access.audit.grant_records import RecordGrant, unrecorded
from mcproxy.call.upstreams import UpstreamEvent
from mcproxy.settings import Settings
from mcproxy.settings.access.pins import Approved
from mcproxy.settings.differences import Difference
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.connect import connected
from mcproxy.upstream.link import Connect, Prepare, unprepared
from mcproxy.upstream.oauth.authorizer import Renew
from mcproxy.upstream.oauth.logins import UpstreamLogins
from mcproxy.upstream.oauth.storage.store import GrantStore
from mcproxy.upstream.supervisor import ConnectionSlots, Supervisor


class Fleet:
    """`upstreams` are those that the settings enable, by name. Also runs those that are being retired."""

    def __init__(
        self,
        settings: Settings,
        on_event: Callable[[UpstreamEvent], None],
        metrics: Metrics,
        gateway_id: str | None = None,
        grants: GrantStore | None = None,
        record: RecordGrant = unrecorded,
        connect: Connect = connected,
        prepare: Prepare = unprepared,
        renew: Renew | None = None,
    ) -> None:
        self._renew = renew
        self._on_event = on_event
        self._metrics = metrics
        self._gateway_id = gateway_id
        self._grants = grants
        self._record = record
        self._connect = connect
        self._prepare = prepare
        self._slots = ConnectionSlots(settings.proxy.limits.max_connections_total)
        self._tasks: TaskGroup | None = None
        self.upstreams = self._upstreams(settings, {})

    def logins(self, name: str) -> UpstreamLogins | None:
        """The logins of an upstream; None if there is none of that name with `oauth`."""
        upstream = self.upstreams.get(name)
        return None if upstream is None else upstream.logins

    async def run(self) -> None:
        """Runs all upstreams until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            for upstream in self.upstreams.values():
                self._tasks.start_soon(self._run_upstream, upstream)
            await anyio.sleep_forever()

    def reconfigure(self, settings: Settings, difference: Difference) -> None:
        """Puts other settings in force; `difference` is what they change."""
        before, gone = self.upstreams, difference.gone
        specs = {spec.name: spec for spec in settings.upstreams}
        for name in difference.adjusted:
            before[name].reconfigure(specs[name])
        self._slots.limit = settings.proxy.limits.max_connections_total
        self.upstreams = self._upstreams(settings, {name: before[name] for name in before if name not in gone})
        for name in before.keys() - gone:
            before[name].retry()
        for name in gone:
            before[name].retire(settings.proxy.shutdown_grace)
        if self._tasks is not None:
            for name in difference.fresh:
                self._tasks.start_soon(self._run_upstream, self.upstreams[name])

    def _upstreams(self, settings: Settings, kept: Mapping[str, Supervisor]) -> dict[str, Supervisor]:
        """The upstreams that `settings` enable, in their order: those in `kept`, and new ones for the others."""
        return {
            spec.name: kept.get(spec.name)
            or Supervisor(
                spec,
                settings.proxy,
                self._on_event,
                self._metrics,
                slots=self._slots,
                gateway_id=self._gateway_id,
                grants=self._grants,
                record=self._record,
                renew=self._renew,
                manifest=settings.access.pins.lock.get(spec.name, Approved()).manifest,
                connect=self._connect,
                prepare=self._prepare,
            )
            for spec in settings.upstreams
            if spec.enabled
        }

    async def _run_upstream(self, upstream: Supervisor) -> None:
        """Runs one upstream, then drops its metric series (R52), unless another upstream has its name by then."""
        self._metrics.expect(upstream.name)
        await upstream.run()
        # Calls that were cut off have their outcome now, and are counted one turn of the loop later.
        await anyio.lowlevel.checkpoint()
        if upstream.name not in self.upstreams:
            self._metrics.forget(upstream.name)
