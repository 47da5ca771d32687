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
 app                                          the only module that sees both edges
 reloading | signals                          what has it go by another configuration, or end
 downstream | gateway | upstream | admin
 access | catalog | channel | tracing
 call | sealing
 configuration                                the file, and what it becomes
 settings | metrics | logs | systemd | propagation | descriptors
 protocol | tallies

Five nouns: `Call` (method, params, caller, the way back), `Client` (the way back while the call lasts: `notify`
and `ask`), `Outcome` (complete, input required, failed), link (a live connection to one upstream, of one era) and
`Principal` (who is asking). They are defined in `call`; `gateway.pipeline` shows what happens to a call.
"""

__version__ = "0.1.0"
