"""MCP as data: messages, methods, versions and event streams. Knows no socket, no clock and no other package."""
