"""What the transports of both eras share: event streams, send buffers, request headers, responses and limits."""
