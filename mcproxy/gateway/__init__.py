"""From a Call to its Outcome: the pipeline, the lists of all upstreams merged, and what is kept between calls.

    a call            pipeline > routing > tasks > exchange ------> an upstream, and back
                         |          |                         |
    on its way         input     resolving (name -> target)  cache (reads)
                         |          |                         |
    what all look up     +----------+-- listings: catalogue, routes, listeners --+

    between calls     gateway: one list of components, told of settings, upstream events and listeners, in order
                      listings, cache, subscriptions, log_levels, tasks, input, own_links

Rooms, and what each is for:

    listings       what upstreams list, merged into each caller's view; who listens; all rooms see it
    resolving      from a caller's names to an upstream's, and back; decides who may use what
    cache          results of resource reads, shared reads, and the watches that keep both right
    input          requests for input between the eras: parked calls, rounds, sealed request states
    tasks          tasks of both revisions: ids, lists, changes
    subscriptions  which client watches which resource, and what upstreams are asked to report

`cache`, `input`, `tasks` and `subscriptions` never see each other; import-linter holds it. They meet in three places:
`gateway.Gateway` hands each its collaborators; the cache subscribes through the `WatchTable` that it declares, and
subscriptions report what changed unheard through one callable; a call goes through the stage of `input`, then `tasks`,
then to an upstream whose reads the cache answers. Nothing here knows a transport.
"""
