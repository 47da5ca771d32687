"""Upstreams of the stateless era (2026-07-28): the probe, the conversation, its transports, and the listen stream."""
