"""Every Prometheus instrument of the gateway, with its labels. Counts; decides nothing.

Label values are bounded: upstreams, methods and subjects that are known, never a name that a peer chose (R52).
"""

from __future__ import annotations

import platform
from contextlib import suppress
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from mcproxy import __version__
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import LinkFailure
from mcproxy.telemetry.call_metrics import Calls
from mcproxy.telemetry.fast_metrics import Tally, counter, gauge, histogram

UNKNOWN: Final = "unknown"
"""The label value of unknown upstreams, methods and subjects."""

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_BYTES: Final = (256, 2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22)

_OWN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


def _values(labels: type[Enum]) -> str:
    return ", ".join(label.value for label in labels)


class Metrics:
    """All instruments, registered with `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        r = self.registry
        self.requests = counter(
            "mcproxy_requests",
            f"Calls by outcome: ok, input_required, tool_error, or why they failed: {_values(Reason)}.",
            ("upstream", "method", "subject", "outcome"),
        )
        self.duration = histogram(
            "mcproxy_request_duration_seconds",
            "Seconds from the arrival of a call to its outcome.",
            ("upstream", "method"),
            _SECONDS,
        )
        self.upstream_duration = histogram(
            "mcproxy_upstream_duration_seconds",
            "Seconds of a call that its upstream took.",
            ("upstream", "method"),
            _SECONDS,
        )
        self.own_duration = histogram(
            "mcproxy_own_duration_seconds",
            "Seconds of a call that the gateway itself took; only calls that went upstream and asked no client.",
            ("upstream",),
            _OWN_SECONDS,
        )
        self.result_bytes = histogram(
            "mcproxy_result_bytes",
            "Bytes of the results of tools, as callers are sent them; about four are a token.",
            ("upstream", "subject"),
            _BYTES,
        )
        for tally in (self.requests, self.duration, self.upstream_duration, self.own_duration, self.result_bytes):
            r.register(tally)
        self.calls = Calls(self.requests, self.duration, self.own_duration, self.result_bytes)
        self.in_flight = Gauge("mcproxy_requests_in_flight", "Calls without an outcome yet.", registry=r)
        self.in_flight.set_function(lambda: self.calls.running)
        self.upstream_up = Gauge(
            "mcproxy_upstream_up",
            "1 while the upstream is connected, or idle until a call needs it.",
            ("upstream",),
            registry=r,
        )
        self.reconnects = Counter(
            "mcproxy_upstream_reconnects", "Connections made after the first.", ("upstream",), registry=r
        )
        self.upstream_troubles = Counter(
            "mcproxy_upstream_troubles",
            f"Failed attempts to connect and lost connections, by reason: {_values(LinkFailure)}.",
            ("upstream", "why"),
            registry=r,
        )
        self.child_starts = Counter(
            "mcproxy_upstream_child_starts", "Starts of the upstream's child process.", ("upstream",), registry=r
        )
        self.junk_lines = Counter(
            "mcproxy_upstream_junk",
            "Messages of an upstream that were skipped as malformed.",
            ("upstream",),
            registry=r,
        )
        self.upstream_oddities = Counter(
            "mcproxy_upstream_oddities",
            "Deviations of an upstream, or of its authorization server, that were accepted, by kind.",
            ("upstream", "kind"),
            registry=r,
        )
        self.unattributed = Counter(
            "mcproxy_upstream_unattributed",
            "Requests and log messages of an upstream that could not be attributed to one client.",
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
            "mcproxy_notifications",
            "Times that a client was told of a change of an upstream's lists or resources.",
            ("upstream", "kind"),
            registry=r,
        )
        self.upstream_notifications = Counter(
            "mcproxy_upstream_notifications", "Notifications of an upstream.", ("upstream", "kind"), registry=r
        )
        self.coalesced_notifications = Counter(
            "mcproxy_coalesced_notifications",
            "Notifications of an upstream that caused no fetch of their own, since a later fetch covers them.",
            ("upstream", "kind"),
            registry=r,
        )
        self.notification_delay = Histogram(
            "mcproxy_notification_delay_seconds",
            "Seconds from an upstream's notification until the last client that it concerns was told.",
            ("upstream", "kind"),
            buckets=_SECONDS,
            registry=r,
        )
        self.subscriptions = Gauge(
            "mcproxy_subscriptions",
            "Subscriptions to resources, by side: those of clients, and those made at the upstream for all of them.",
            ("upstream", "side"),
            registry=r,
        )
        self.list_fetches = Counter(
            "mcproxy_list_fetches", "Lists fetched from an upstream.", ("upstream", "kind"), registry=r
        )
        self.entries = Gauge("mcproxy_entries", "Entries that an upstream lists.", ("upstream", "kind"), registry=r)
        self.hidden_entries = Gauge(
            "mcproxy_hidden_entries",
            "Entries of an upstream's list that callers are not shown: malformed, unapproved, or of a name in use.",
            ("upstream", "kind"),
            registry=r,
        )
        self.list_bytes = Gauge(
            "mcproxy_list_bytes", "Bytes of the entries that an upstream lists.", ("upstream", "kind"), registry=r
        )
        self.cache_reads = counter(
            "mcproxy_cache_reads",
            "Reads of resources by answer: hit, miss, stale, coalesced (shared with the fetch of another read).",
            ("upstream", "answer"),
        )
        r.register(self.cache_reads)
        self.cache_evictions = Counter(
            "mcproxy_cache_evictions", "Cached reads dropped to make room for others.", ("upstream",), registry=r
        )
        self.cache_invalidations = Counter(
            "mcproxy_cache_invalidations",
            "Times that cached reads were dropped because they may be out of date, by cause.",
            ("upstream", "cause"),
            registry=r,
        )
        self.cache_bytes = Gauge("mcproxy_cache_bytes", "Bytes of cached reads.", ("upstream",), registry=r)
        self.cache_entries = Gauge("mcproxy_cache_entries", "Cached reads.", ("upstream",), registry=r)
        self.event_loop_lag = Gauge(
            "mcproxy_event_loop_lag_seconds",
            "Seconds by which the event loop was late, at worst in the last 15 s; calls wait as long.",
            registry=r,
        )
        self.tasks = Gauge(
            "mcproxy_tasks",
            "Tasks of the event loop (asyncio), each of which does or awaits something; not tasks of the protocol.",
            registry=r,
        )
        self.build = Info("mcproxy_build", "The version of the gateway, and of what it runs on.", registry=r)
        self.build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(registry=r)
        GCCollector(registry=r)
        self.config_generation = Gauge(
            "mcproxy_config_generation", "Configurations applied since the start, the first one included.", registry=r
        )
        self.config_reloads = Counter(
            "mcproxy_config_reloads",
            "Reloads of the configuration, by result: applied or invalid.",
            ("result",),
            registry=r,
        )
        self.config_last_reload_successful = Gauge(
            "mcproxy_config_last_reload_successful",
            "1 if the configuration was valid when last read, else 0.",
            registry=r,
        )
        self.config_last_reload_success = Gauge(
            "mcproxy_config_last_reload_success_timestamp_seconds",
            "Unix time at which a valid configuration was last read.",
            registry=r,
        )
        self.parked = Gauge("mcproxy_parked_calls", "Calls parked until their client answers or retries.", registry=r)
        self.parked_ends = Counter(
            "mcproxy_parked_ends",
            "Times that a parked call was resumed by a retry of its client (answered), or given up (expired).",
            ("how",),
            registry=r,
        )
        self.approvals = Counter(
            "mcproxy_approvals",
            "Calls that waited for approval, by who was asked (caller or operator) and what came of it.",
            ("approver", "outcome"),
            registry=r,
        )
        self.approval_webhook_attempts = Counter(
            "mcproxy_approval_webhook_attempts",
            "Requests to the webhook for approvals: accepted, failed and repeated, or given up.",
            ("outcome",),
            registry=r,
        )
        self.hooks = Counter(
            "mcproxy_hooks",
            "Questions to hooks, by phase and mode, and what they decided, or that they failed.",
            ("phase", "mode", "decision"),
            registry=r,
        )
        self.approvals_waiting = Gauge("mcproxy_approvals_waiting", "Calls that wait for approval.", registry=r)
        self.large_results = Counter(
            "mcproxy_large_results",
            "Results over their limit: shortened; structured (passed whole); uncut, as images are; unkept (too large).",
            ("upstream", "verdict"),
            registry=r,
        )
        self.kept_result_bytes = Gauge(
            "mcproxy_kept_result_bytes", "Bytes of whole results whose callers were shown a part.", registry=r
        )
        self.searches = counter(
            "mcproxy_searches",
            "Searches of tools that are over, by what followed: a call of a tool that was found (called), or none "
            "within ten minutes.",
            ("followed",),
        )
        r.register(self.searches)
        self.search_rankings = Counter(
            "mcproxy_search_rankings",
            "Searches of tools, with proxy.embeddings, by what ranked them: words and meaning (both), or words alone.",
            ("by",),
            registry=r,
        )
        self.embedding_requests = Counter(
            "mcproxy_embedding_requests",
            "Requests to the service of proxy.embeddings, by outcome: ok or failed.",
            ("outcome",),
            registry=r,
        )
        self.embedded_texts = Gauge(
            "mcproxy_embedded_texts", "Texts of tools whose vectors (proxy.embeddings) are kept.", registry=r
        )
        self.limited = Counter(
            "mcproxy_limited", "Calls refused by a limit of access.limits.", ("upstream", "limit"), registry=r
        )
        self.refused_credentials = Counter(
            "mcproxy_refused_credentials",
            "Requests refused for their credentials, or for lack of any, by reason.",
            ("reason",),
            registry=r,
        )
        self.pins_refused = Gauge(
            "mcproxy_pins_refused",
            "Definitions and instructions that are not as approved (access.pins), and are held back in mode enforce.",
            ("upstream", "kind"),
            registry=r,
        )
        self.oauth_login_wanted = Gauge(
            "mcproxy_oauth_login_wanted",
            "Callers who must log in at the upstream before their calls can go on; 1 where one login serves all.",
            ("upstream",),
            registry=r,
        )
        self.oauth_token_requests = Counter(
            "mcproxy_oauth_token_requests",
            "Requests for an upstream's tokens, by outcome: granted, unavailable, refused.",
            ("upstream", "outcome"),
            registry=r,
        )
        self.oauth_token_expiry = Gauge(
            "mcproxy_oauth_token_expiry_timestamp_seconds",
            "Unix time at which the upstream's present token ends; 0 where there is none, or it says no end.",
            ("upstream",),
            registry=r,
        )
        self.cluster_members = Gauge(
            "mcproxy_cluster_members",
            "Replicas that this one knows of, itself included, by state: live, leaving or unreachable.",
            ("state",),
            registry=r,
        )
        self.cluster_mismatches = Gauge(
            "mcproxy_cluster_mismatches",
            "Other replicas that differ from this one, by what: configuration, lock or version.",
            ("what",),
            registry=r,
        )
        self.cluster_hops = Counter(
            "mcproxy_cluster_hops",
            "Requests sent on to the replica that they belong to, by outcome: answered, refused, unreachable, broken.",
            ("outcome",),
            registry=r,
        )
        self.cluster_hop_seconds = Histogram(
            "mcproxy_cluster_hop_seconds",
            "Seconds from sending a request on to another replica until the head of its response.",
            buckets=_OWN_SECONDS,
            registry=r,
        )
        self.cluster_adoptions = Counter(
            "mcproxy_cluster_adoptions",
            "Sessions of replicas that are gone, by what became of them here: restored, or refused.",
            ("outcome",),
            registry=r,
        )
        self.cluster_store_failures = Counter(
            "mcproxy_cluster_store_failures", "Operations of the shared store (Redis) that failed.", registry=r
        )
        self.cluster_events = Counter(
            "mcproxy_cluster_events",
            "Events that replicas tell each other: told by this one, heard by it, and gaps, in which it missed some.",
            ("what",),
            registry=r,
        )
        self.audit_records = Counter("mcproxy_audit_records", "Audit records written.", registry=r)
        self.audit_lost = Counter(
            "mcproxy_audit_lost", "Audit records that were not written, and are lost.", registry=r
        )
        self.audit_failing = Gauge(
            "mcproxy_audit_failing", "1 while the audit log cannot be written, else 0.", registry=r
        )

    def expect(self, upstream: str) -> None:
        """Starts each series that has an upstream as its only label at zero: alarms need a series to compare with."""
        for instrument in vars(self).values():
            if isinstance(instrument, Counter | Gauge) and instrument._labelnames == ("upstream",):
                instrument.labels(upstream)

    def forget(self, upstream: str) -> None:
        """Drops every series of an upstream that was removed (R52)."""
        for instrument in vars(self).values():
            if isinstance(instrument, MetricWrapperBase):
                with suppress(ValueError):  # no label for upstreams
                    instrument.remove_by_labels({"upstream": upstream})
            elif isinstance(instrument, Tally) and instrument.labelnames[0] == "upstream":
                instrument.forget(upstream)
        self.calls.forget(upstream)
