"""HTTP/1.1 (RFC 9112), client side, no more of it than each call of a gateway needs. Knows no MCP, follows nothing."""
