"""Links to upstream servers: connecting, keeping them connected, and one module for each transport of each era.

Speaks MCP over HTTP through `mcproxy.http.client`, and to children over their stdio; `oauth` asks authorization servers
through aiohttp. Knows nothing of downstream and gateway.
"""
