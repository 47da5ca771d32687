"""Search for tools: the index, the gateway's own tools, and calls of other tools through them."""
