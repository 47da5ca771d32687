"""Tools that are found by search: the index, the gateway's own tools, and calls of tools through these."""
