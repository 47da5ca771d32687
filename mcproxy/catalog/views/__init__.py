"""The view of an endpoint: what upstreams list, read, exposed under its names, and merged."""
