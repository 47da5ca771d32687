"""Upstreams of the handshake era (2024-11-05 to 2025-11-25): the conversation, and its transports."""
