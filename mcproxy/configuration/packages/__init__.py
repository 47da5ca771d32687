"""Servers as their publishers describe them: `server.json` of the MCP Registry, and MCP bundles (`.mcpb`)."""
