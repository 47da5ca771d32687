"""Clients of the stateless era (2026-07-28): each request stands alone, and subscriptions are streams."""
