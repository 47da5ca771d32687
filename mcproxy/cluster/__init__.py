"""Several replicas behind one load balancer: what they share, and how a request reaches the replica that can answer it.

    client ---> nginx ---> replica B                                    replica A, the request's home
                             | front.app: Host, Origin, identity          ^
                             | routing: label of the id is A's            | listener: opens the envelope, checks it,
                             +---- sealed envelope and body, one hop -----+ and serves as if the client were its own
                                                                          |
                             Redis: members, session records, limits <----+ front.app -> pipeline -> upstreams
                                    grants of OAuth, one stream of cluster events

A session, a parked call or a task lives in one process, its home. The value that names it to the client begins with the
label of that process (`sealing.Sealer.seal_here`), so that any replica knows where to send what is not its own. The
request is forwarded once, whole, to the home's internal listener and executed there. When the home is dead, the one
replica that rendezvous hashing chooses takes its place (`records` restores sessions from the store).

A grant of OAuth toward an upstream has a home as well, which alone renews it (`oauth`).
A child that runs once for all replicas (`placement`) is reached by the same hop.

What must be shared goes through one protocol, `store.protocol.Store`, with two implementations: in memory, for tests,
and Redis. Every wait for it is bounded, and its failures are one exception. Nothing here elects a leader or reaches a
consensus: what needs agreement is one Redis command. Only `app` imports this package, and only where `cluster.redis` is
set: the pipeline, the edges and the catalogue do not know of replicas.
"""
