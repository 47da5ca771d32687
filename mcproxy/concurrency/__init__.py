"""asyncio building blocks that know neither MCP nor HTTP: coalescing, bounded queues, deadlines, backoff, cancelling."""
