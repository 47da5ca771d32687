"""Every Prometheus instrument of the gateway, with its labels. Counts; decides nothing.

Labels are bounded: upstreams, methods and subjects that are known by name, never what a peer made up (R52).
"""

from __future__ import annotations

import platform
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from mcproxy import __version__
from mcproxy.telemetry.fast_metrics import FastCounter, FastHistogram, Tally, counter, gauge, histogram

UNKNOWN: Final = "unknown"
"""The label for what has no name that we know."""

OTHER: Final = "other"
"""The label that subjects share which are one too many."""

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_OWN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Subjects:
    """Which tools and prompts have series of their own: of each upstream the first `most` that were called (R52)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[str, set[str]] = {}

    def label(self, upstream: str, subject: str) -> str:
        known = self._known.get(upstream)
        if known is None:
            known = self._known[upstream] = set()
        if not subject or subject in known:
            return subject
        if len(known) >= self.most:
            return OTHER
        known.add(subject)
        return subject

    def forget(self, upstream: str) -> None:
        self._known.pop(upstream, None)


class Account:
    """What is counted of the calls of one method, of an upstream and a subject. With `trace`, times have an example."""

    __slots__ = ("_duration", "_labels", "_outcomes", "_own", "_own_duration", "_requests")

    def __init__(
        self,
        labels: tuple[str, str, str],
        requests: Tally[FastCounter],
        duration: FastHistogram,
        own: Tally[FastHistogram],
    ) -> None:
        self._labels = labels
        self._requests = requests
        self._outcomes: dict[str, FastCounter] = {}
        self._duration = duration
        self._own = own
        self._own_duration: FastHistogram | None = None

    def over(self, outcome: str, seconds: float, own: float | None = None, trace: str | None = None) -> None:
        """`own` is what of a call's time its upstream did not take, where that can be told."""
        count = self._outcomes.get(outcome)
        if count is None:
            count = self._outcomes[outcome] = self._requests.labels(*self._labels, outcome)
        count.inc()
        self._duration.observe(seconds, trace)
        if own is None:
            return
        if self._own_duration is None:
            self._own_duration = self._own.labels(self._labels[0])
        self._own_duration.observe(own if own > 0 else 0.0, trace)


class Calls:
    """Counts calls. To be asked for an account when a call is over: what is forgotten meanwhile is begun anew."""

    def __init__(self, requests: Tally[FastCounter], duration: Tally[FastHistogram], own: Tally[FastHistogram]) -> None:
        self.subjects: Final = Subjects(1000)
        self.running = 0
        """Those that are not over."""
        self._requests = requests
        self._duration = duration
        self._own = own
        self._accounts: dict[tuple[str, str, str], Account] = {}

    def account(self, upstream: str, method: str, subject: str) -> Account:
        """A look-up, for a subject that has series of its own."""
        return self._accounts.get((upstream, method, subject)) or self._opened(upstream, method, subject)

    def _opened(self, upstream: str, method: str, subject: str) -> Account:
        labels = upstream, method, self.subjects.label(upstream, subject)
        if labels not in self._accounts:
            duration = self._duration.labels(upstream, method)
            self._accounts[labels] = Account(labels, self._requests, duration, self._own)
        return self._accounts[labels]

    def forget(self, upstream: str) -> None:
        self.subjects.forget(upstream)
        self._accounts = {labels: account for labels, account in self._accounts.items() if labels[0] != upstream}


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        r = self.registry
        self.requests = counter("mcproxy_requests", "Calls by outcome.", ("upstream", "method", "subject", "outcome"))
        self.duration = histogram(
            "mcproxy_request_duration_seconds",
            "From a call's entry to its outcome.",
            ("upstream", "method"),
            _SECONDS,
        )
        self.upstream_duration = histogram(
            "mcproxy_upstream_duration_seconds",
            "The part of a call's time that its upstream took.",
            ("upstream", "method"),
            _SECONDS,
        )
        self.own_duration = histogram(
            "mcproxy_own_duration_seconds",
            "The part of a call's time that the gateway itself took, of calls that went upstream and asked nobody.",
            ("upstream",),
            _OWN_SECONDS,
        )
        for tally in (self.requests, self.duration, self.upstream_duration, self.own_duration):
            r.register(tally)
        self.calls = Calls(self.requests, self.duration, self.own_duration)
        self.in_flight = Gauge("mcproxy_requests_in_flight", "Calls without an outcome yet.", registry=r)
        self.in_flight.set_function(lambda: self.calls.running)
        self.upstream_up = Gauge("mcproxy_upstream_up", "1 while the upstream is connected.", ("upstream",), registry=r)
        self.reconnects = Counter(
            "mcproxy_upstream_reconnects", "Connections made after the first.", ("upstream",), registry=r
        )
        self.upstream_troubles = Counter(
            "mcproxy_upstream_troubles",
            "Attempts to connect that failed and connections that were lost, by why: unreachable, rejected, timeout, "
            "lost, internal.",
            ("upstream", "why"),
            registry=r,
        )
        self.child_starts = Counter(
            "mcproxy_upstream_child_starts", "Times that the upstream's child was started.", ("upstream",), registry=r
        )
        self.junk_lines = Counter(
            "mcproxy_upstream_junk",
            "Messages of an upstream that were skipped as malformed.",
            ("upstream",),
            registry=r,
        )
        self.unattributed = Counter(
            "mcproxy_upstream_unattributed",
            "Requests and log messages of an upstream that could not be traced to one client.",
            ("upstream", "method"),
            registry=r,
        )
        self.sessions = Gauge(
            "mcproxy_sessions", "Live handshake sessions.", ("transport", "era", "version"), registry=r
        )
        self.streams = gauge("mcproxy_streams", "Open event streams.", ("transport", "era", "version"))
        r.register(self.streams)
        self.bytes_in = counter("mcproxy_received_bytes", "Bytes of messages from clients.", ("transport",))
        self.bytes_out = counter("mcproxy_sent_bytes", "Bytes of messages to clients.", ("transport",))
        r.register(self.bytes_in)
        r.register(self.bytes_out)
        self.received = self.bytes_in.labels
        self.sent = self.bytes_out.labels
        self.notifications = Counter(
            "mcproxy_notifications", "Change signals put to clients.", ("upstream", "kind"), registry=r
        )
        self.upstream_notifications = Counter(
            "mcproxy_upstream_notifications", "Notifications of an upstream.", ("upstream", "kind"), registry=r
        )
        self.coalesced_notifications = Counter(
            "mcproxy_coalesced_notifications",
            "Notifications of an upstream that needed no fetch of their own: one to come serves them too.",
            ("upstream", "kind"),
            registry=r,
        )
        self.notification_delay = Histogram(
            "mcproxy_notification_delay_seconds",
            "From an upstream's notification until the last client whom it concerns was signalled.",
            ("upstream", "kind"),
            buckets=_SECONDS,
            registry=r,
        )
        self.subscriptions = Gauge(
            "mcproxy_subscriptions",
            "Subscriptions to resources: those of clients, and those made upstream for them.",
            ("upstream", "side"),
            registry=r,
        )
        self.list_fetches = Counter(
            "mcproxy_list_fetches", "Lists fetched from an upstream.", ("upstream", "kind"), registry=r
        )
        self.entries = Gauge("mcproxy_entries", "Entries an upstream offers.", ("upstream", "kind"), registry=r)
        self.list_bytes = Gauge(
            "mcproxy_list_bytes", "Bytes of the entries an upstream offers.", ("upstream", "kind"), registry=r
        )
        self.cache_reads = counter(
            "mcproxy_cache_reads",
            "Reads of resources by how they were answered: hit, miss, stale, coalesced (with another's fetch).",
            ("upstream", "answer"),
        )
        r.register(self.cache_reads)
        self.cache_evictions = Counter(
            "mcproxy_cache_evictions", "Cached reads that gave way to others.", ("upstream",), registry=r
        )
        self.cache_invalidations = Counter(
            "mcproxy_cache_invalidations",
            "Times that cached reads were forgotten, by what made them doubtful.",
            ("upstream", "cause"),
            registry=r,
        )
        self.cache_bytes = Gauge("mcproxy_cache_bytes", "Bytes that cached reads take.", ("upstream",), registry=r)
        self.cache_entries = Gauge("mcproxy_cache_entries", "Cached reads.", ("upstream",), registry=r)
        self.event_loop_lag = Gauge(
            "mcproxy_event_loop_lag_seconds", "By how much the event loop was late of late, at most.", registry=r
        )
        self.tasks = Gauge("mcproxy_tasks", "Tasks of the event loop.", registry=r)
        self.build = Info("mcproxy_build", "The version of the gateway, and of what it runs on.", registry=r)
        self.build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(registry=r)
        GCCollector(registry=r)
        self.config_generation = Gauge(
            "mcproxy_config_generation", "Configurations that were in force, the present one included.", registry=r
        )
        self.config_reloads = Counter(
            "mcproxy_config_reloads",
            "Times that the configuration was read again: applied or invalid.",
            ("result",),
            registry=r,
        )
        self.config_last_reload_successful = Gauge(
            "mcproxy_config_last_reload_successful",
            "1 unless the configuration was invalid when last read.",
            registry=r,
        )
        self.config_last_reload_success = Gauge(
            "mcproxy_config_last_reload_success_timestamp_seconds",
            "When a valid configuration was last read.",
            registry=r,
        )
        self.parked = Gauge("mcproxy_parked_calls", "Calls that wait upstream for their client's input.", registry=r)
        self.parked_ends = Counter(
            "mcproxy_parked_ends",
            "Waits of parked calls that are over: answered by the client, or expired.",
            ("how",),
            registry=r,
        )
        self.limited = Counter(
            "mcproxy_limited", "Calls that a limit of access.limits refused.", ("upstream", "limit"), registry=r
        )
        self.pins_refused = Gauge(
            "mcproxy_pins_refused",
            "Definitions, and instructions, that are not as access.pins has them approved.",
            ("upstream", "kind"),
            registry=r,
        )
        self.oauth_login_wanted = Gauge(
            "mcproxy_oauth_login_wanted", "1 while the upstream needs somebody to log in.", ("upstream",), registry=r
        )
        self.oauth_token_requests = Counter(
            "mcproxy_oauth_token_requests",
            "Requests for an upstream's tokens, by outcome: granted, unavailable, refused.",
            ("upstream", "outcome"),
            registry=r,
        )
        self.oauth_token_expiry = Gauge(
            "mcproxy_oauth_token_expiry_timestamp_seconds",
            "When the upstream's present token ends; 0 where there is none, or it says no end.",
            ("upstream",),
            registry=r,
        )
        self.audit_records = Counter("mcproxy_audit_records", "Records of the audit that were written.", registry=r)
        self.audit_lost = Counter("mcproxy_audit_lost", "Records of the audit that were not.", registry=r)
        self.audit_failing = Gauge("mcproxy_audit_failing", "1 while the audit cannot be written.", registry=r)

    def expect(self, upstream: str) -> None:
        """Starts at zero what is counted by upstream alone: a series that is not there yet alarms nobody."""
        for instrument in vars(self).values():
            if isinstance(instrument, Counter | Gauge) and instrument._labelnames == ("upstream",):
                instrument.labels(upstream)

    def forget(self, upstream: str) -> None:
        """Drops every series of an upstream that is no more (R52)."""
        for instrument in vars(self).values():
            if isinstance(instrument, MetricWrapperBase):
                with suppress(ValueError):  # it has no such label
                    instrument.remove_by_labels({"upstream": upstream})
            elif isinstance(instrument, Tally) and instrument.labelnames[0] == "upstream":
                instrument.forget(upstream)
        self.calls.forget(upstream)
