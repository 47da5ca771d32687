"""HTTP/1.1 for the hot path: a server and a client, libraries of their own that know nothing of MCP."""
