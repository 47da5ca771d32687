"""Building blocks for asyncio, without MCP or HTTP: coalescer, bounded queue, deadlines, backoff, cancel scope."""
