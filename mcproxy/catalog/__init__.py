"""Names: what upstreams offer, under the names that clients see. Values in, values out."""
