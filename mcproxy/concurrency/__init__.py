"""Building blocks for asyncio, without MCP or HTTP: coalescer, queue, wakeup, deadlines, backoff, cancel scope."""
