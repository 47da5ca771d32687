"""What the transports of both eras share: event streams, send buffers, request heads, responses and limits."""
