"""Upstreams of the handshake era (2024-11-05 to 2025-11-25): the dialect, its rules over HTTP, and HTTP+SSE."""
