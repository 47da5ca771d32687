"""From a Call to its Outcome: the pipeline, the lists of all upstreams merged, and what is kept between calls.

    a call           pipeline: stage after stage > routing > tasks > exchange > cache (of reads) > an upstream, and back
                         |                            |
    some stages are  search, input, hooks,        resolving: a caller's name -> the upstream and its own name
    those of         approval, results                |
                         |                            |
    all look up in   listings: the catalogue, each caller's view of it, who listens

    between calls    gateway: one list of components, told of settings, upstream events and listeners, in order

Rooms, and what each is for:

    listings       what upstreams list, merged into each caller's view; who listens; all rooms see it
    resolving      from a caller's names to an upstream's, and back; decides who may use what
    input          requests for input between the eras: parked calls, rounds, sealed request states
    approval       calls that wait until a person has approved them
    search         tools found by search: the index, the gateway's own tools, and calls through these
    results        large results of tools, shown in part and kept whole
    tasks          tasks of both revisions: ids, lists, changes
    cache          results of resource reads, shared reads, and the watches that keep both right
    subscriptions  which client watches which resource, and what upstreams are asked to report

`approval`, `cache`, `hooks`, `input`, `tasks`, `subscriptions`, `results`, `search`, `log_levels` and `own_links` never
see each other; import-linter holds it. `gateway.Gateway` alone knows them all, and connects them: it puts their stages
into the pipeline, hands `routing` what answers each method, the tasks and the exchange, gives everyone the upstreams as
the cache wraps them, has the cache watch through the subscriptions (the `WatchTable` that it declares), and has these
tell the cache what changed unheard. Nothing here knows a transport.
"""
