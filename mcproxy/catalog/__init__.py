"""Names and URIs of what upstreams list, merged for each endpoint: the pure part, values in and values out.

What upstreams list at the moment is kept in `gateway.listings`, which fetches it and tells clients of changes.
"""
