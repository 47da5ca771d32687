"""The files in which hosts (Claude, Cursor, VS Code, ...) keep their servers: where, in which form."""
