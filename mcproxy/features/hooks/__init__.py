"""Hooks (`access.hooks`): services that are asked about calls and outcomes."""
