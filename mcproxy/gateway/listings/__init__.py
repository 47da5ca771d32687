"""The lists of all upstreams as they stand now: fetched, merged into each caller's view, paged, and told of."""
