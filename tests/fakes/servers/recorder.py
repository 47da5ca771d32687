"""Tools that write each of their runs to FILE, over stdio: `python -m tests.fakes.servers.recorder FILE [TOOL...]`.

All do the same, under the names that are given; `note` by default. In the era of its client. What a test reads in
FILE is what really ran, however often and for whomever.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

FILE, TOOLS = Path(sys.argv[1]), sys.argv[2:] or ["note"]

server = MCPServer("recorder", version="1", log_level="ERROR")


def note(text: str) -> str:
    """Writes a line."""
    with FILE.open("a") as file:
        file.write(f"{text}\n")
    return f"noted {text}"


for tool in TOOLS:
    server.add_tool(note, name=tool, structured_output=False)


if __name__ == "__main__":
    server.run()
