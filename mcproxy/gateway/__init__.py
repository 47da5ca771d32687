"""The core: takes a Call to its Outcome, merges the lists of all upstreams, and keeps state between calls.

    a call           pipeline: stage after stage > routing > tasks > exchange > cache (of reads) > an upstream, and back
                        |                            |
    stages come      the core: input, own_links   resolving: a caller's name -> the upstream and its own name
    from             the features                    |
                        |                            |
    everything uses  listings: the catalogue, each caller's view of it, who listens

    between calls    gateway: notifies its components and features of reloads, upstream events and listeners, in order

Packages and main modules:

    feature        what a feature may contribute, and the places where its stages may stand
    component      what the parts of the core that live between calls have in common
    pipeline       the stages that every call passes, and how stages are stacked
    routing        finds who answers a call: the gateway, a task, or an upstream
    exchange       sends a call to its upstream, and returns the outcome in the caller's names
    listings       what upstreams list, merged into each caller's view; who listens
    resolving      from a caller's names to an upstream's, and back; decides who may use what
    input          requests for input between the eras: parked calls, rounds, sealed request states
    tasks          tasks of both revisions: ids, lists, changes
    cache          results of resource reads, shared reads, and the watches that keep both up to date
    subscriptions  which client watches which resource, and what upstreams are asked to report
    log_levels     the log level that each upstream is asked for, from what its clients want
    own_links      upstream connections that belong to one session or principal
    explaining     why a caller may or may not use something

`cache`, `input`, `tasks`, `subscriptions`, `log_levels` and `own_links` never import each other, and nothing here
imports a feature (`mcproxy.features`); import-linter checks both. Only `gateway.Gateway` imports them all, and connects
them. It stacks the stages of the core and of the features into the pipeline. It gives the router the handlers for the
methods that the gateway answers itself, the tasks and the exchange. Everyone uses the upstreams as wrapped by the cache
and by features. The cache watches resources through the subscriptions, which tell it what may have changed unreported.
Nothing here depends on a transport.
"""
