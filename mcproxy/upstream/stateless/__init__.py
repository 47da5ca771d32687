"""Upstreams of the stateless era (2026-07-28): the probe, the dialect, its rules over HTTP, and the listen stream."""
