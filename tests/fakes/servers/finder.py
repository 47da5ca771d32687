"""Tools with arguments to override and results to limit, over stdio, in the era of its client."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

server = MCPServer("finder", version="1", log_level="ERROR")


class Item(BaseModel):
    number: int
    text: str


class Items(BaseModel):
    items: list[Item]


class Search(BaseModel):
    """What a search was asked, as it came."""

    path: str
    q: str
    verbose: bool | None


@server.tool()
def search(path: str, q: str, verbose: bool | None = None) -> Search:
    return Search(path=path, q=q, verbose=verbose)


@server.tool()
def enumerate_items(count: int) -> Items:
    return Items(items=[Item(number=number, text=f"item {number} é\u2028 \\u0041") for number in range(count)])


if __name__ == "__main__":
    server.run()
