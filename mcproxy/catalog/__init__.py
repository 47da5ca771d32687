"""Names and URIs of upstreams' entries, merged for each endpoint: the pure part, from values to values.

`gateway.listings` holds what upstreams list now: it fetches lists, and tells clients of changes.
"""
