"""mcproxy: one endpoint in front of many Model Context Protocol (MCP) servers.

The core speaks one protocol, the newest (2026-07-28, stateless); every older revision is translated once, at the
edge where it enters.

        runtime: a Call goes right, its Outcome comes back as the return value
 client -> downstream/* --Call--> gateway.pipeline > routing --Call--> upstream/* -> server
                ^                                                         |
                +-- Client.notify / Client.ask (during the call) ---------+
                +-- Listener.signal  <- gateway  <- UpstreamEvent (between calls)

        imports: only downwards; `|` = siblings that may not see each other
 cli
 serving                                      listeners and signals around a running gateway
 app                                          the composition root: the only module that sees both edges
 service | login                              signals, systemd, reloading; pages where people log in to upstreams
 cluster                                      replicas: members, homes, the hop, what they share; only app knows it
 features                                     one folder each, one line each in its list; `gateway.feature` is the seam
 downstream | gateway | upstream | admin
 access | catalog | pending_requests
 telemetry                                    logs, metrics, traces
 call | sealing
 configuration                                the file, and how it becomes settings
 settings
 egress                                       the one way out: proxies, certificates, address rules
 protocol | http | concurrency | rlimits

Five nouns: `Call` (method, params, caller, the way back), `Client` (the way back while the call lasts: `notify`
and `ask`), `Outcome` (complete, input required, failed), `Principal` (who is asking): all in `call`; and link (a live
connection to one upstream, of one era): `upstream.link`. `mcproxy explain --pipeline` prints what happens to a call,
`gateway.feature` has the order of its stages, and docs/architecture.md follows one message through all packages.
"""

__version__ = "0.1.0"
